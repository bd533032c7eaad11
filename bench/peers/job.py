"""The job that every peer runs, one POST of a small JSON document, and the command line of their scripts.

The peers' scripts run in a separate environment without Homing, which `make bench-peers` creates:

    python bench/peers/NAME.py prepare            (creates empty tables and queues)
    python bench/peers/NAME.py bulk N             (enqueues N jobs with the bulk API, if there is one)
    python bench/peers/NAME.py singles N          (enqueues N jobs from 64 callers, one per call)
    python bench/peers/NAME.py left               (counts the jobs that are not done)
    python bench/peers/NAME.py worker             (runs worker processes until they are killed)

Each call prints one line of JSON. The addresses are in `BENCH_SINK`, `BENCH_POSTGRES`, `BENCH_REDIS` and
`BENCH_AMQP`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import sys
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SINK = os.environ.get("BENCH_SINK", "http://127.0.0.1:8099/hook")
POSTGRES = os.environ.get("BENCH_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/9")
AMQP = os.environ.get("BENCH_AMQP", "amqp://guest:guest@127.0.0.1:5672//")
CALLERS = 64
BATCH = 1000
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "2"))
QUEUE = "homing_bench"

_HEADERS = {"Content-Type": "application/json"}
_TEXT = "Your order is on its way and should be with you on Thursday. " * 4
_sink = urllib.parse.urlsplit(SINK)
_idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()
_session: Any = None


def body(number: int) -> bytes:
    """Returns about 260 bytes of JSON. The job builds them; a peer's queue holds only the number."""
    return json.dumps({"n": number, "text": _TEXT}, separators=(",", ":")).encode()


def post(number: int) -> None:
    """Posts one document, for peers that use threads. Reuses open connections."""
    try:
        connection = _idle.get_nowait()
    except queue.Empty:
        connection = http.client.HTTPConnection(_sink.hostname or "", _sink.port, timeout=30)
    connection.request("POST", _sink.path, body(number), _HEADERS)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the sink answered {answer.status}")
    _idle.put(connection)


async def post_async(number: int) -> None:
    """Posts one document, for peers that use an event loop. Uses one aiohttp session per process."""
    global _session
    import aiohttp

    if _session is None:
        _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=_HEADERS)
    async with _session.post(SINK, data=body(number)) as answer:
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the sink answered {answer.status}")


def by_threads(count: int, call: Callable[[int], Any]) -> float:
    """Makes `count` calls from 64 threads and returns the seconds taken."""
    left = iter(range(count))  # `next` on a range iterator is atomic, so threads can share it

    def caller() -> None:
        for number in left:
            call(number)

    began = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as threads:
        for done in [threads.submit(caller) for _ in range(CALLERS)]:
            done.result()
    return time.perf_counter() - began


async def by_tasks(count: int, call: Callable[[int], Awaitable[Any]]) -> float:
    """Makes `count` calls from 64 tasks and returns the seconds taken."""
    left = iter(range(count))

    async def caller() -> None:
        for number in left:
            await call(number)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return time.perf_counter() - began


def batches(count: int) -> list[range]:
    return [range(first, min(count, first + BATCH)) for first in range(0, count, BATCH)]


def main(**commands: Callable[..., Any]) -> None:
    """Runs the command named in the arguments and prints its result as JSON."""
    name, *arguments = sys.argv[1:]
    print(json.dumps(commands[name](*(int(argument) for argument in arguments))), flush=True)
