"""A TCP proxy in front of a server, which can cut, swallow and delay its traffic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

from support.private_postgres import free_port

_CHUNK = 65_536


class TcpProxy:
    """Forwards connections to a port of this machine. It runs on a thread, so any test can use it.

    `target` can be changed. The change applies to new connections.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._delay_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        self.resume()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def resume(self) -> None:
        """Accepts connections and forwards everything, also what was held back."""
        self._call(self._resume())

    def cut(self) -> None:
        """Resets all connections and refuses new ones, as when a server's process has died."""
        self._call(self._cut())

    def swallow(self) -> None:
        """Accepts connections and data and forwards nothing, as when a machine or a network hangs."""
        self._call(self._swallow())

    def delay(self, seconds: float) -> None:
        """Forwards each piece of data this much later."""
        self._delay_s = seconds

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    async def _resume(self) -> None:
        self._delay_s = 0.0
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _swallow(self) -> None:
        self._flowing.clear()

    async def _cut(self) -> None:
        if self._server is not None:
            for listener in self._server.sockets:
                self._loop.remove_reader(listener.fileno())
            await (
                _let_callbacks_run()
            )  # a connection that was just accepted needs the server until it has a task
            self._server.close()
            self._server = None
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _let_callbacks_run()  # the sockets are closed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            writers.append(back)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, back))
                both.create_task(self._pump(there, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in writers:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards data in one direction. The end of the data ends the whole connection."""
        while data := await reader.read(_CHUNK):
            await asyncio.sleep(self._delay_s)
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.close()
        raise ConnectionResetError


async def _let_callbacks_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
