"""Measures how late notifications start with Redis as a timer, compared with the store alone in the same run.

    python bench/redis_timer.py [--store postgresql://…] [--rounds 3]

2,000 notifications become due within 20 s. One process sends them, and another works. Each round has both
figures, in changing order, because only figures of one run can be compared. The result is the median of the
rounds' ratios. Without --redis, a Redis server is started. The CPU time is that of the worker, which a busy
machine does not change much.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from homing import Delivery, Homing
from homing.settings import Settings, load_settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

_LEAD_S = 10.0
"""Time between the start of the sends and the first due time, in which all are accepted."""

_PATIENCE_S = 60
_PRIORITIES = ("critical", "high", "medium", "low")


def settings_for(store: str, redis: str) -> Settings:
    timers = {**dict.fromkeys(_PRIORITIES, "redis"), "redis": {"url": redis}} if redis else {}
    return load_settings(flags={"store": store, "timers": timers})


def work(settings: Settings, expected: int, results: Connection) -> None:
    """Delivers in a process of its own, and reports how late each attempt started, in milliseconds."""

    async def deliver() -> None:
        late: list[float] = []
        done = asyncio.Event()

        async def provider(delivery: Delivery) -> None:
            late.append((time.time() - float(delivery.content.body or 0)) * 1000)
            if len(late) == expected:
                done.set()

        async with Homing(loaded_settings=settings, providers={"p": provider}, worker=True):
            results.send("ready")
            await asyncio.wait_for(done.wait(), _PATIENCE_S + 60)
        results.send((late, time.process_time()))

    uvloop.run(deliver())


async def send(settings: Settings, due: int, within_s: float) -> None:
    async def provider(delivery: Delivery) -> None: ...

    async with Homing(loaded_settings=settings, providers={"p": provider}) as homing:
        first = time.time() + _LEAD_S
        for number in range(due):
            at = first + within_s * number / due
            await homing.send(
                "ada@example.org",
                channel="email",
                body=f"{at:.6f}",
                priority=_PRIORITIES[number % 2],
                send_at=datetime.fromtimestamp(at, UTC),
            )
        assert time.time() < first, "the machine is too slow: the first was due before the last was accepted"


def measure(store: str, redis: str, due: int, within_s: float) -> tuple[list[float], float]:
    """Returns how late each notification was, in milliseconds, and the CPU time of the worker in seconds."""
    settings = settings_for(store, redis)
    ours, theirs = get_context("spawn").Pipe()
    worker = get_context("spawn").Process(target=work, args=(settings, due, theirs), daemon=True)
    worker.start()
    assert ours.recv() == "ready"
    uvloop.run(send(settings, due, within_s))
    if not ours.poll(within_s + _PATIENCE_S):
        raise TimeoutError("not everything was delivered")
    late, cpu_s = ours.recv()
    worker.join()
    return late, cpu_s


def quantile(late: list[float], share: float) -> float:
    return late[min(len(late) - 1, int(share * len(late)))]


def stores(given: str, folder: Path) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield given or str(folder / f"homing-{number}.db")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", default="", help="a database without other work; SQLite by default")
    parser.add_argument("--redis", default="", help="URL of a Redis server")
    parser.add_argument("--due", type=int, default=2_000)
    parser.add_argument("--within-s", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = asked.redis
        if not url:
            from support.redis_server import RedisServer

            url = stack.enter_context(RedisServer()).url
        found: dict[str, list[float]] = {"store alone": [], "Redis timer": []}
        ratios: list[float] = []
        cpu_s = dict.fromkeys(found, 0.0)
        store = stores(asked.store, folder)
        for number in range(asked.rounds):
            order = list(found) if number % 2 == 0 else list(reversed(found))
            p99: dict[str, float] = {}
            for name in order:
                redis = url if name == "Redis timer" else ""
                late, used_s = measure(next(store), redis, asked.due, asked.within_s)
                p99[name] = quantile(sorted(late), 0.99)
                found[name] += late
                cpu_s[name] += used_s / asked.rounds
            ratios.append(p99["Redis timer"] / p99["store alone"])
            shown = ", ".join(f"{name} {p99[name]:.1f} ms" for name in found)
            print(f"round {number + 1}: p99 {shown}, ratio {ratios[-1]:.2f}", flush=True)
    print(f"{'ms late':<14} {'median':>8} {'p90':>8} {'p99':>8} {'max':>8} {'CPU s':>8}")
    for name, late in found.items():
        late.sort()
        numbers = [*(quantile(late, share) for share in (0.5, 0.9, 0.99, 1.0)), cpu_s[name]]
        print(f"{name:<14} " + " ".join(f"{number:>8.1f}" for number in numbers))
    ratio = statistics.median(ratios)
    met = "met" if ratio <= 1.2 else "MISSED"
    print(f"p99 with the timer: {ratio:.2f} of the store alone (target at most 1.2: {met})")


if __name__ == "__main__":
    main()
