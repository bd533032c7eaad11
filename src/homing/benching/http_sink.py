"""The sink: a minimal HTTP server in its own process that receives and counts all deliveries.

    python -m homing.benching.http_sink --port 8099

It answers every POST with 200 and identifies deliveries by the number in their body (`"n":4711`). It can
refuse a share of the numbers once with 503. Benchmarks control it with `/_report`, `/_arrivals` and
`/_reset`. It also imitates Twilio's message API and numbers the messages.
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

_HASH_MULTIPLIER = 2_654_435_761
"""Multiplier of Knuth's multiplicative hash, which spreads the refused numbers evenly."""


class SinkReport(Struct, frozen=True, kw_only=True):
    """Counts and times of the requests since the last reset."""

    requests: int = 0
    taken: int = 0
    """Distinct numbers that were answered with 200."""
    repeated: int = 0
    """Repeated deliveries of a number that was already answered with 200."""
    refused: int = 0
    """Numbers that were refused once with 503."""
    first_at: float = 0.0
    """Unix time of the first 200. 0 if there is none."""
    last_at: float = 0.0
    """Unix time of the last 200, not counting repeated deliveries. 0 if there is none."""


class _Records:
    """Records every number, and when it was first answered with 200."""

    def __init__(self, failing: float = 0.0) -> None:
        self.arrived: dict[int, float] = {}
        self.refused: set[int] = set()
        self.repeated = 0
        self._threshold = round(failing * 2**32)

    def answer(self, number: int) -> bytes:
        if number in self.arrived:
            self.repeated += 1
            return _OK
        if (
            self._threshold
            and number not in self.refused
            and number * _HASH_MULTIPLIER % 2**32 < self._threshold
        ):
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
    """State that all connections share."""

    def __init__(self) -> None:
        self.records = _Records()
        self.texts = 0

    def control_response(self, path: bytes, body: bytes) -> bytes:
        """Returns the response to a control request or to a Twilio message."""
        result: object = {}
        if path == b"/_reset":
            self.records = _Records(**msgspec.json.decode(body or b"{}"))
            self.texts = 0
        elif path.startswith(b"/2010-04-01/"):  # Twilio's message API: message ids are consecutive
            result = {"sid": f"SM{self.texts:032x}"}
            self.texts += 1
        elif path == b"/_arrivals":
            result = self.records.arrived
        else:
            result = self.records.report()
        encoded = msgspec.json.encode(result)
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(encoded), encoded)


class _Connection(asyncio.Protocol):
    """Parses HTTP requests, which may arrive several at once or in pieces."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        while (head := data.find(b"\r\n\r\n")) >= 0:
            end = head + 4 + _length(data, head)
            if end > len(data):
                break
            self._transport.write(self._answer(data, head, end))
            data = data[end:]
        self._buffer = data

    def _answer(self, data: bytes, head: int, end: int) -> bytes:
        at = data.find(_MARK, head)
        if 0 <= at < end:
            at += len(_MARK)
            stop = at
            while data[stop] in b"0123456789":
                stop += 1
            return self._server.records.answer(int(data[at:stop]))
        return self._server.control_response(data.split(b" ", 2)[1], data[head + 4 : end])


def _length(data: bytes, head: int) -> int:
    at = data.find(b"ontent-Length:", 0, head)
    if at < 0:
        at = data[:head].lower().find(b"ontent-length:")
    return 0 if at < 0 else int(data[at + 14 : data.find(b"\r\n", at)])


async def run_sink_server(port: int) -> None:
    """Prints the port, then serves until the process ends."""
    server = _Server()
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Connection(server), "127.0.0.1", port, backlog=4096
    )
    sys.stdout.write(f"{listening.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await listening.serve_forever()


class HttpSink:
    """Runs the sink's process inside a `with` block and sends it control requests."""

    def __init__(self) -> None:
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "homing.benching.http_sink", "--until-eof"]
        self._process = subprocess.Popen(  # noqa: S603 (fixed command)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closing its stdin ends the process

    def reset(self, *, failing: float = 0.0) -> None:
        """Clears all records. From now on, the share `failing` of the numbers is refused once with 503."""
        self._ask("/_reset", msgspec.json.encode({"failing": failing}))

    def report(self) -> SinkReport:
        return msgspec.convert(self._ask("/_report"), SinkReport)

    def arrivals(self) -> dict[int, float]:
        """Returns, for each number, the Unix time at which it was first answered with 200."""
        return {int(number): at for number, at in self._ask("/_arrivals").items()}

    def _ask(self, path: str, body: bytes = b"{}") -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, body)
            return msgspec.json.decode(connection.getresponse().read())
        finally:
            connection.close()


def main() -> None:
    """Runs the sink as a process."""
    from homing.benching.worker_processes import run_async

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--until-eof", action="store_true", help="exit when stdin closes, which it does when the parent exits"
    )
    given = parser.parse_args()
    if given.until_eof:
        threading.Thread(target=_exit_when_stdin_closes, daemon=True).start()
    run_async(run_sink_server(given.port))


def _exit_when_stdin_closes() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
