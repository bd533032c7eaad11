"""A timer over a TCP connection: the server keeps due times in a heap and reports each when it has come."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence

import msgspec

from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import Wake

_LINE = msgspec.json.Decoder(DueTime)


class SocketTimerServer:
    """Receives due times, one per line, and writes each to all connections when it is due."""

    def __init__(self) -> None:
        self.port = 0
        self.received: list[DueTime] = []
        self._heap: list[tuple[int, str]] = []
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Closes the listener and all connections, and forgets every due time."""
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self._heap.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                one = _LINE.decode(line)
                self.received.append(one)
                heapq.heappush(self._heap, (one.due_at, one.id))
                self._changed.set()
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _tick(self) -> None:
        while True:
            while self._heap and self._heap[0][0] <= time.time_ns() // 1_000_000:
                due_at, _ = heapq.heappop(self._heap)
                for writer in self._writers:
                    writer.write(b"%d\n" % due_at)
            wait_s = self._heap[0][0] / 1000 - time.time() if self._heap else None
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue


class SocketTimer:
    """A process's connection to the `SocketTimerServer`."""

    def __init__(self, server: SocketTimerServer) -> None:
        self._server = server
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        _, self._writer = await self._connect()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        if self._writer is None or self._writer.is_closing():
            _, self._writer = await self._connect()
        self._writer.writelines([msgspec.json.encode(one) + b"\n" for one in batch])
        await self._writer.drain()

    async def listen(self, wake: Wake) -> None:
        reader, writer = await self._connect()
        wake()
        try:
            while line := await reader.readline():
                wake(int(line))
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._server.port)
