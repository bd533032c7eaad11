"""A message broker on a TCP port, and a bridge that consumes from it.

A consumer sends how many messages it wants, gets one line of JSON per message, and sends back the number of
each message that need not come again. Messages of a broken connection go to the next consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from homing import InvalidRequest
from homing.core.ports.bridges import BridgeMessage, HandledMessage


class SocketBroker:
    """One queue of numbered messages, kept while the listener is stopped and started again."""

    def __init__(self) -> None:
        self.port = 0
        self.ready: dict[int, bytes] = {}
        self.acknowledged: list[int] = []
        self.delivered = 0
        self._published = 0
        self._arrived = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    def publish(self, body: bytes) -> int:
        self._published += 1
        self.ready[self._published] = body
        self._arrived.set()
        return self._published

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the listener and aborts all connections. The messages stay."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        out: dict[int, bytes] = {}
        delivering: asyncio.Task[None] | None = None
        try:
            while line := await reader.readline():
                word, number = line.split()
                if word == b"want":
                    delivering = asyncio.create_task(self._deliver(writer, out, int(number)))
                else:
                    del out[int(number)]
                    self.acknowledged.append(int(number))
        except ConnectionError:
            pass
        finally:
            if delivering is not None:
                delivering.cancel()
            self.ready = {**out, **self.ready}
            self._arrived.set()
            self._writers.discard(writer)
            writer.close()

    async def _deliver(self, writer: asyncio.StreamWriter, out: dict[int, bytes], limit: int) -> None:
        while not self.ready:
            self._arrived.clear()
            await self._arrived.wait()
        for number in sorted(self.ready)[:limit]:
            out[number] = self.ready.pop(number)
            self.delivered += 1
            writer.write(b"%d %s\n" % (number, out[number]))
        writer.write(b"\n")


class SocketBridge:
    """Consumes from a `SocketBroker`."""

    def __init__(self, broker: SocketBroker) -> None:
        self._broker = broker
        self.rejected: dict[int, str] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        self._wanted = False

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        assert self._writer is not None
        if not self._wanted:
            self._writer.write(b"want %d\n" % limit)
        self._wanted = True
        messages = []
        while (line := await self._reader.readline()) != b"\n":
            if not line:
                raise ConnectionError("the broker has closed the connection")
            number, body = line.rstrip(b"\n").split(b" ", 1)
            messages.append(BridgeMessage(key=number.decode(), request=_read(body), reference=int(number)))
        self._wanted = False
        return messages

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None:
        assert self._writer is not None
        for one in handled:
            if one.rejection is not None:
                self.rejected[one.message.reference] = one.rejection
            self._writer.write(b"ack %d\n" % one.message.reference)
        await self._writer.drain()

    async def check(self) -> None:
        assert self._writer is not None
        if self._writer.is_closing():
            raise ConnectionError("the connection is closed")

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _read(body: bytes) -> dict[str, Any] | InvalidRequest:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        return InvalidRequest("message", f"is not JSON: {error}")
