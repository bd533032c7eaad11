"""Where everything is delivered to: an HTTP server in a process of its own that does little, and counts.

    python -m homing.benching.sink --port 8099

It answers 200 to every POST and knows what it took by the number in its body (`"n":4711`), whoever sends it.
Told so, it refuses a share of the numbers with 503 when they come for the first time. `/_report`,
`/_arrivals` and `/_reset` are for who measures. It also takes texts as Twilio would, and numbers them.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import subprocess
import sys
import threading
import time
from typing import Any, Self, cast

import msgspec
from msgspec import Struct

_OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
_MARK = b'"n":'
_MIX = 2_654_435_761
"""Knuth's multiplier: which numbers are refused must not depend on their neighbours."""


class SinkReport(Struct, frozen=True, kw_only=True):
    """What came since the last reset."""

    requests: int = 0
    taken: int = 0
    """Different numbers that were answered with 200."""
    repeated: int = 0
    """Answers of 200 to a number that had one already."""
    refused: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    """Of the first and the last 200, by the wall clock."""


class _Books:
    """Every number that came, and when it was first taken."""

    def __init__(self, failing: float = 0.0) -> None:
        self.arrived: dict[int, float] = {}
        self.refused: set[int] = set()
        self.repeated = 0
        self._threshold = round(failing * 2**32)

    def answer(self, number: int) -> bytes:
        if number in self.arrived:
            self.repeated += 1
            return _OK
        if self._threshold and number not in self.refused and number * _MIX % 2**32 < self._threshold:
            self.refused.add(number)
            return _BUSY
        self.arrived[number] = time.time()
        return _OK

    def report(self) -> SinkReport:
        times = self.arrived.values()
        return SinkReport(
            requests=len(self.arrived) + self.repeated + len(self.refused),
            taken=len(self.arrived),
            repeated=self.repeated,
            refused=len(self.refused),
            first_at=min(times, default=0.0),
            last_at=max(times, default=0.0),
        )


class _Server:
    """All connections write into the same books."""

    def __init__(self) -> None:
        self.books = _Books()
        self.texts = 0

    def asked(self, path: bytes, body: bytes) -> bytes:
        """What a control request is answered with."""
        said: object = {}
        if path == b"/_reset":
            self.books = _Books(**msgspec.json.decode(body or b"{}"))
            self.texts = 0
        elif path.startswith(b"/2010-04-01/"):  # a text to Twilio: numbered as they come
            said = {"sid": f"SM{self.texts:032x}"}
            self.texts += 1
        elif path == b"/_arrivals":
            said = self.books.arrived
        else:
            said = self.books.report()
        told = msgspec.json.encode(said)
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told)


class _Connection(asyncio.Protocol):
    """Reads requests as they come, several in one piece or one in several."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._had = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._had + data if self._had else data
        while (head := data.find(b"\r\n\r\n")) >= 0:
            end = head + 4 + _length(data, head)
            if end > len(data):
                break
            self._transport.write(self._answer(data, head, end))
            data = data[end:]
        self._had = data

    def _answer(self, data: bytes, head: int, end: int) -> bytes:
        at = data.find(_MARK, head)
        if 0 <= at < end:
            at += len(_MARK)
            stop = at
            while data[stop] in b"0123456789":
                stop += 1
            return self._server.books.answer(int(data[at:stop]))
        return self._server.asked(data.split(b" ", 2)[1], data[head + 4 : end])


def _length(data: bytes, head: int) -> int:
    at = data.find(b"ontent-Length:", 0, head)
    if at < 0:
        at = data[:head].lower().find(b"ontent-length:")
    return 0 if at < 0 else int(data[at + 14 : data.find(b"\r\n", at)])


async def serve(port: int) -> None:
    """Until it is ended; says its port first."""
    server = _Server()
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Connection(server), "127.0.0.1", port, backlog=4096
    )
    sys.stdout.write(f"{listening.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await listening.serve_forever()


class Sink:
    """The sink's process, for a `with` block, and how to ask it."""

    def __init__(self) -> None:
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "homing.benching.sink", "--until-eof"]
        self._process = subprocess.Popen(  # noqa: S603 (our own)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it

    def reset(self, *, failing: float = 0.0) -> None:
        """Empty books; `failing` of the numbers are refused once."""
        self._ask("/_reset", msgspec.json.encode({"failing": failing}))

    def report(self) -> SinkReport:
        return msgspec.convert(self._ask("/_report"), SinkReport)

    def arrivals(self) -> dict[int, float]:
        """Number → when it was first taken, by the wall clock."""
        return {int(number): at for number, at in self._ask("/_arrivals").items()}

    def _ask(self, path: str, body: bytes = b"{}") -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, body)
            return msgspec.json.decode(connection.getresponse().read())
        finally:
            connection.close()


def main() -> None:
    """The process itself."""
    from homing.benching.loops import run

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--until-eof", action="store_true", help="end with the input, and with whoever wrote it"
    )
    given = parser.parse_args()
    if given.until_eof:
        threading.Thread(target=_end_with_the_input, daemon=True).start()
    run(serve(given.port))


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
