"""Measures accepting over HTTP (`notifications/send`, committed before the answer) against an empty handler.

    python bench/http_ingest.py [STORE] [--rounds N] [--seconds S] [--connections N] [--profile FILE]

STORE is postgresql://… of a server that allows creating databases. The default is SQLite in a temporary
folder. One process serves three handlers: `empty` does nothing, but checks the same key and the same typed
body as a send; `send` is the real route, whose rows are committed; `bare` has neither key nor body and
shows the limit of the server. Rounds alternate. The figure to read is the ratio of send to empty, since a
busy machine slows both. The ratio of CPU time is even less affected. wrk generates the load if it is
installed, otherwise a thread of the benchmark. The script fails if the number of
rows differs from the number of sends answered with 202, or if the ratio is below the target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from homing import Homing
from homing.api.all_routes import all_routes
from homing.api.http.app import App
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.benching.scratch_store import ScratchStore, open_scratch_store
from homing.benching.worker_processes import run_async
from homing.cli.common.process_setup import tune_garbage_collector
from homing.compose import service
from homing.core.access.scopes import Scope
from homing.core.send_request import SendRequest
from homing.engine.system_runtime import SystemRandomSource
from homing.http_server.server import HttpServer, open_listener
from homing.http_server.settings import ServerSettings

BAR = 0.5
SEND = "/api/v1/notifications/send"
EMPTY = "/empty"
BARE = "/bare"
BODY = json.dumps(
    {
        "recipient": {"url": "https://example.org/hook", "locale": "en-GB"},
        "channel": "webhook",
        "type": "order_confirmed",
        "content": {"subject": "Your order 1815 is on its way", "body": "It left us today. " * 20},
        "metadata": {"entry_id": 1815},
    }
)

bare = Routes("Bare", prefix="")


@bare.post(EMPTY, scope=Scope.SEND)
async def empty(call: ApiCall, body: SendRequest) -> None:
    """Accepts the same request as a send, and does nothing with it."""


@bare.post(BARE)
async def nothing(call: ApiCall) -> None:
    """Does nothing. Needs neither a key nor a body."""


class Counting:
    """Wraps the application and counts its responses by path and status."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.answers: Counter[tuple[str, int]] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.answers[scope["path"], message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)


def serve(place: ScratchStore, pipe: Connection) -> None:
    """Main function of the server process.

    Sends its port and API key, then its CPU time on request, and finally its response counts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def work() -> None:
        settings = place.settings(service={"key_file": str(place.folder / "key")})
        async with Homing(loaded_settings=settings) as homing:
            await service.ensure_first_key(settings, homing)
            made = service.build_service(settings, homing)
            routes = (*bare.all, *all_routes())
            app = Counting(App(made, routes, random_source=SystemRandomSource()))
            server = HttpServer(app, ServerSettings())
            at = open_listener("127.0.0.1", 0)
            pipe.send((at.getsockname()[1], (place.folder / "key").read_text().strip()))
            tune_garbage_collector()
            serving = asyncio.create_task(server.serve([at]))
            while await asyncio.to_thread(pipe.recv) == "cpu":
                pipe.send(time.process_time())
            server.stop()
            await serving
            pipe.send(app.answers)

    run_async(work())


def wrk(url: str, key: str, folder: Path, seconds: float, connections: int) -> float:
    """Generates load with wrk and returns requests per second."""
    script = folder / "post.lua"
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = {json.dumps(BODY)}\n'
        f'wrk.headers["Content-Type"] = "application/json"\nwrk.headers["Authorization"] = "Bearer {key}"\n'
    )
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        sys.exit(f"some requests failed:\n{output}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found, output
    return float(found[1])


def load(url: str, key: str, folder: Path, seconds: float, connections: int) -> float:
    """Generates load without wrk and returns requests per second."""
    host, _, rest = url.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    head = (
        f"POST /{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
    ).encode()

    async def one(until: float) -> int:
        reader, writer = await asyncio.open_connection(host, int(port))
        done = 0
        while time.monotonic() < until:
            writer.write(head)
            answered = await reader.readuntil(b"\r\n\r\n")
            if not answered.startswith(b"HTTP/1.1 20"):
                sys.exit(f"unexpected response: {answered!r}")
            length = re.search(rb"content-length: (\d+)", answered)
            await reader.readexactly(int(length[1]) if length else 0)
            done += 1
        writer.close()
        return done

    async def run_all() -> float:
        began = time.monotonic()
        done = await asyncio.gather(*(one(began + seconds) for _ in range(connections)))
        return sum(done) / (time.monotonic() - began)

    with ThreadPoolExecutor(1) as apart:  # the caller's thread already runs an event loop
        return apart.submit(asyncio.run, run_all()).result()


async def measure(given: argparse.Namespace) -> float:
    """Runs all rounds and returns the median ratio of the rates of send and empty."""
    async with open_scratch_store(given.store) as place:
        mine, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(place, theirs), daemon=True
        )
        process.start()
        port, key = mine.recv()
        generate = wrk if shutil.which("wrk") else load
        ratios, rates, costs = [], [], []

        def used_s() -> float:
            mine.send("cpu")
            return float(mine.recv())

        def rate(path: str, seconds: float = given.seconds) -> tuple[float, float]:
            """Returns responses per second, and CPU time per response in µs."""
            before_s = used_s()
            found = generate(f"http://127.0.0.1:{port}{path}", key, place.folder, seconds, given.connections)
            return found, (used_s() - before_s) * 1e6 / (found * seconds)

        for path in (BARE, EMPTY, SEND):
            rate(path, 1)
        profiler = _profiler(given.profile, process.pid)
        for number in range(given.rounds):
            (emptied, empty_us), (sends, send_us) = rate(SEND if profiler else EMPTY), rate(SEND)
            least, least_us = rate(SEND if profiler else BARE)
            ratios.append(sends / emptied)
            costs.append(empty_us / send_us)
            rates.append(sends)
            print(
                f"round {number + 1}: empty {emptied:,.0f}/s ({empty_us:.0f} µs), send {sends:,.0f}/s "
                f"({send_us:.0f} µs), ratio {ratios[-1]:.2f} (CPU time: {costs[-1]:.2f}); "
                f"bare {least:,.0f}/s ({least_us:.0f} µs)",
                flush=True,
            )
        if profiler:
            profiler.send_signal(signal.SIGINT)
            profiler.wait()
        mine.send("stop")
        answers = mine.recv()
        process.join(30)
        rows, sent = await place.rows(), answers[SEND, 202]
        ended = {(path, 408) for path in (SEND, EMPTY, BARE)}  # requests cut off when the load ended
        expected = {(SEND, 202), (EMPTY, 200), (BARE, 200)} | ended
        if rows != sent or set(answers) - expected:
            sys.exit(f"invalid: {sent} responses with 202, but {rows} rows; all responses: {dict(answers)}")
        print(
            f"{sent:,} responses with 202, {rows:,} rows; median {statistics.median(rates):,.0f} sends/s, "
            f"CPU time ratio {statistics.median(costs):.2f}"
        )
        return statistics.median(ratios)


def _profiler(file: str | None, pid: int | None) -> subprocess.Popen[bytes] | None:
    if file is None:
        return None
    return subprocess.Popen(
        ["py-spy", "record", "-o", file, "-p", str(pid), "-r", "100", "-f", "raw", "-d", "600", "--gil"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", nargs="?", default="sqlite:")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--profile", metavar="FILE", help="profile the service with py-spy during sends")
    given = parser.parse_args()
    ratio = run_async(measure(given))
    print(f"ratio {ratio:.2f} (target: {BAR})")
    if ratio < BAR and given.profile is None:
        sys.exit(1)


if __name__ == "__main__":
    main()
