"""Measures how fast `homing serve` accepts requests over HTTP and commits them before it answers."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from homing.benching import InvalidMeasurement
from homing.benching.report import Figure
from homing.benching.scratch_store import ScratchStore, open_scratch_store
from homing.benching.workload import BenchContext, BenchPlan, build_request, check_store
from homing.library import Homing

CONNECTIONS = 64

BATCH = 500

ONE, MANY = f"over HTTP, {CONNECTIONS} connections", f"over HTTP, batches of {BATCH}"

_COMMAND = "import sys; from homing.cli import main; sys.exit(main())"

_LISTENING_AT = re.compile(rb"http://127\.0\.0\.1:(\d+)")

_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")

_HOOK = "https://example.org/hook"

_STARTS_WITHIN_S = 60.0


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return 2 * plan.rounds if _possible() else 0


def _possible() -> bool:
    return all(importlib.util.find_spec(name) for name in ("uvicorn", "httptools", "starlette"))


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures requests with one notification and requests with a batch."""
    if not _possible():
        stage.note("accepting over HTTP needs a server, which is missing: pip install 'homing[service]'")
        return
    plan = stage.plan
    found = await stage.run_alternating(
        "serve",
        {
            ONE: _one_round(stage, "send", [[number] for number in range(plan.concurrent)]),
            MANY: _one_round(stage, "batch", list(_batches(plan.many))),
        },
    )
    for name, rounds in found.items():
        yield Figure(part="serve", name=name, store=stage.store, unit="/s", rounds=rounds)


def _batches(count: int) -> Iterator[list[int]]:
    for first in range(0, count, BATCH):
        yield list(range(first, min(count, first + BATCH)))


def _one_round(stage: BenchContext, path: str, bodies: Sequence[list[int]]) -> Callable[[], Awaitable[float]]:
    async def one_round() -> float:
        async with open_scratch_store(stage.server) as place:
            async with _served(place) as (port, key):
                requests = [_request(path, numbers, key) for numbers in bodies]
                took_s = await _post_all(port, requests)
            accepted = sum(len(numbers) for numbers in bodies)
            async with Homing(loaded_settings=place.settings()) as homing:
                await check_store(homing, place, pending=accepted)
        return accepted / took_s

    return one_round


@asynccontextmanager
async def _served(place: ScratchStore) -> AsyncIterator[tuple[int, str]]:
    """Runs the service without a worker, and yields its port and an API key with all scopes."""
    key_file = place.folder / "key"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _COMMAND, "serve", "--config", str(place.config)),
        *("--listen", "127.0.0.1:0", "--no-worker"),
        env={**os.environ, "HOMING_SERVICE__KEY_FILE": str(key_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield await _port(process), _key(key_file)
    finally:
        process.terminate()
        await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    async with asyncio.timeout(_STARTS_WITHIN_S):
        async for line in process.stdout:
            if found := _LISTENING_AT.search(line):
                return int(found[1])
    raise InvalidMeasurement("`homing serve` exited before it was listening")


def _key(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()


def _request(path: str, numbers: Sequence[int], key: str) -> bytes:
    bodies = [build_request(number, _HOOK) for number in numbers]
    body = msgspec.json.encode(bodies if path == "batch" else bodies[0])
    head = (
        f"POST /api/v1/notifications/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _post_all(port: int, requests: Sequence[bytes]) -> float:
    """Posts all requests over persistent connections and returns the seconds taken."""
    left = iter(requests)

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8 * 1024 * 1024)
        for one in left:
            writer.write(one)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
                raise InvalidMeasurement(f"a valid request was answered with {head[:40]!r} {body[:200]!r}")
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(min(CONNECTIONS, len(requests)))))
    return time.perf_counter() - began
