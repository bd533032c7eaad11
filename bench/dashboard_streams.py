"""Measures what open dashboards cost a worker and the database.

    python bench/dashboard_streams.py sqlite:/dev/shm/streams.db
    python bench/with_servers.py postgres -- python bench/dashboard_streams.py {postgres}

`homing serve --no-worker` serves the screen Now to 20 clients, each with a session and a stream of its own.
Meanwhile, a worker in another process delivers what was accepted before. The figure is the processor time of
that worker and of the database server per notification, with streams and without, in alternating rounds. The
bar is a ratio of at most 1.05 of the medians.

The store must be new. A PostgreSQL server must run on this machine, because its processes are read in /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dashboard_pages import SETTINGS, serving
from homing import Homing
from homing.core.access.scopes import Caller, Scope
from homing.providers.local.scripted import ScriptedProvider
from server_cpu import ServerCpu

BAR = 1.05

STREAMS = 20


class Streams:
    """Clients that each hold a stream open and read it."""

    def __init__(self) -> None:
        self.events = 0
        """Number of events that all clients have received."""
        self._all = asyncio.Event()

    @asynccontextmanager
    async def open(self, address: str, cookies: list[str]) -> AsyncIterator[None]:
        """Opens one stream per cookie, and waits until each has received its first event."""
        reading = [asyncio.create_task(self._read(address, cookie)) for cookie in cookies]
        try:
            async with asyncio.timeout(60):
                await self._all.wait()
            yield
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, address: str, cookie: str) -> None:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        request = f"GET /ui/live/now HTTP/1.1\r\nHost: {address}\r\nCookie: homing_session={cookie}\r\n\r\n"
        writer.write(request.encode("ascii"))
        try:
            while line := await reader.readline():
                if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                    raise SystemExit(f"a stream was refused: {line!r}")
                self.events += line.startswith(b"id:")
                if self.events >= STREAMS:
                    self._all.set()
        finally:
            writer.close()


async def work(store: str, number: int) -> None:
    """Delivers this many notifications, once told to, and prints the processor time of this process."""
    provider = ScriptedProvider()
    async with Homing(store=store.removeprefix("sqlite:"), providers={"mail": provider}) as homing:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.process_time()
        homing.start_worker()
        while len(provider.sent) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await homing.stop_worker()
        print(time.process_time() - began, flush=True)


async def one_round(store: str, number: int) -> float:
    """Accepts and delivers, and returns the microseconds of processor time per delivered notification."""
    async with Homing(store=store.removeprefix("sqlite:"), providers={"mail": ScriptedProvider()}) as homing:
        request = {
            "channel": "email",
            "recipient": {"email": "ada@example.org"},
            "content": {"subject": "hello", "body": "x" * 200},
        }
        async for _ in homing.send_many([request] * number):
            pass
    command = [sys.executable, __file__, store, "--work", str(number)]
    worker = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    if await worker.stdout.readline() != b"ready\n":
        raise SystemExit("the worker did not start")
    server = await ServerCpu.of(store)
    before = server.read_s()
    worker.stdin.write(b"go\n")
    own = float(await asyncio.wait_for(worker.stdout.readline(), 120))
    used = server.read_s() - before
    await worker.wait()
    return 1e6 * (own + used) / number


async def compare(store: str, number: int, rounds: int, address: str) -> bool:
    """Runs the rounds and prints the figures. Returns True if the bar is met."""
    caller = Caller(tenant="default", who="bench", scopes=frozenset({Scope.ADMIN}))
    async with Homing(store=store.removeprefix("sqlite:"), providers={"mail": ScriptedProvider()}) as homing:
        cookies = [await homing.web_sessions.start(caller, lasts_ms=3_600_000) for _ in range(STREAMS)]
    await one_round(store, number)
    without, with_streams = list[float](), list[float]()
    for turn in range(rounds):
        without.append(await one_round(store, number))
        streams = Streams()
        async with streams.open(address, cookies):
            before = streams.events
            with_streams.append(await one_round(store, number))
        print(
            f"round {turn + 1}: {without[-1]:6.1f} µs without, {with_streams[-1]:6.1f} µs with"
            f" {STREAMS} streams, which received {streams.events - before} events",
            flush=True,
        )
    ratio = statistics.median(with_streams) / statistics.median(without)
    print(f"ratio of the medians: {ratio:.3f}   {'met' if ratio <= BAR else 'MISSED'}")
    return ratio <= BAR


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="sqlite:FILE or postgresql://…, which must be new")
    parser.add_argument("--number", type=int, default=20_000, help="notifications per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        asyncio.run(work(given.store, given.work))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = SETTINGS.format(store=given.store.removeprefix("sqlite:"), declared=[], folder=folder)
        with serving(settings, folder) as address:
            good = asyncio.run(compare(given.store, given.number, given.rounds, address))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
