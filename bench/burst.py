"""Measures how late webhooks to one host start, if they are due at 200 per second for 15 seconds.

    python bench/burst.py                                                   (a temporary SQLite file)
    python bench/burst.py sqlite: postgresql://postgres@127.0.0.1/postgres
    python bench/burst.py --rate 400 --seconds 5 --latency-ms 100

All settings that limit concurrency have their defaults. The lateness is the time from `send_at` until the
request has reached the host, which takes `--latency-ms` to answer.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from homing.benching.scratch_store import ScratchStore, open_scratch_store
from homing.benching.worker_processes import run_async
from homing.benching.workload import accept_all, build_request
from homing.library import Homing

_LEAD_S = 3.0
"""Time from the start of the acceptance to the first due time, at least."""

_PATIENCE_S = 60.0

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

_CONFIG = """
store = "{store}"

[http]
allow_http = true
allow_networks = ["127.0.0.0/8"]

[providers.webhook]
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""


class SlowHost:
    """An HTTP server that answers every request after a fixed time, and records when each one arrived."""

    def __init__(self, latency_ms: int) -> None:
        self._latency_s = latency_ms / 1000
        self.arrived: dict[int, float] = {}
        """Number of the notification → Unix time of its first request."""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        while head := await _read_head(reader):
            length = int(head[1])
            await reader.readexactly(length)
            self.arrived.setdefault(int(head[0]), time.time())
            await asyncio.sleep(self._latency_s)
            writer.write(_OK)
        writer.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the server in a thread for the duration of the `with` block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self.serve, "127.0.0.1", 0), loop
        ).result()
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


_PATH = re.compile(rb"POST /(\d+)")

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """Returns the number in the path and the content length of the next request, or None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    path, length = _PATH.match(head), _LENGTH.search(head)
    return None if path is None or length is None else (path[1], length[1])


async def measure(server: str, options: argparse.Namespace) -> list[float]:
    """Returns the lateness of each notification in seconds, sorted."""
    number = options.rate * options.seconds
    host = SlowHost(options.latency_ms)
    with host.running():
        async with open_scratch_store(server) as scratch:
            scratch.config.write_text(_CONFIG.format(store=scratch.store), encoding="utf-8")
            async with Homing(loaded_settings=scratch.settings()) as homing:
                due = await _accept(homing, host.url, number, options.rate, scratch)
                homing.start_worker()
                ends_at = due[-1] + _PATIENCE_S
                while len(host.arrived) < number and time.time() < ends_at:  # noqa: ASYNC110
                    await asyncio.sleep(0.5)  # the requests arrive in another thread
                await homing.stop_worker()
    return sorted(host.arrived.get(n, ends_at) - due[n] for n in range(number))


async def _accept(homing: Homing, url: str, number: int, rate: int, scratch: ScratchStore) -> list[float]:
    """Accepts the notifications and returns their due times, which are whole milliseconds."""
    first_at = time.time() + _LEAD_S + number / 1000
    due = [round(first_at + n / rate, 3) for n in range(number)]
    requests = (build_request(n, url, send_at=datetime.fromtimestamp(at, UTC)) for n, at in enumerate(due))
    await accept_all(homing, requests)
    await scratch.rested()
    return due


async def main(options: argparse.Namespace) -> None:
    """Measures each store and prints a table."""
    print(
        f"{options.rate}/s for {options.seconds} s to one host that answers after {options.latency_ms} ms,"
        " default settings\n"
    )
    print(f"{'store':<12}{'median':>10}{'p99':>10}{'latest':>10}")
    for server in options.servers:
        late = await measure(server, options)
        figures = (late[len(late) // 2], late[len(late) * 99 // 100], late[-1])
        name = "postgresql" if server.startswith("postgres") else "sqlite"
        print(f"{name:<12}" + "".join(f"{value * 1000:>7.0f} ms" for value in figures), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="*", default=["sqlite:"], help="sqlite: or a PostgreSQL URL")
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--latency-ms", type=int, default=50)
    logging.getLogger("homing").setLevel(logging.ERROR)
    run_async(main(parser.parse_args()))
