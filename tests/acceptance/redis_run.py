"""Restarts Redis and kills workers again and again while it wakes them and takes events: nothing may be lost.

    python tests/acceptance/redis_run.py --restarts 50 --kills 50

Three `homing worker` processes share a store, and Redis is the timer of all priorities and a sink. Redis is
killed and started again, in turns with and without its data. Every notification must be sent, and sent again
only after an attempt whose end is unknown: `lost` with its worker, or `ambiguous`. The stream must have the
event of each that is sent once Redis keeps its data. Workers poll every second, which is how late a
notification may be while Redis is away.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from homing import Homing, Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.redis_server import RedisServer
from support.worker_fleet import DeliveryCount, Fleet, count, show

PATIENCE_S = 300.0
LEASE_MS = 5_000
REDIS = """
[timers]
critical = "redis"
high = "redis"
medium = "redis"
low = "redis"

[timers.redis]
url = "{url}"
timeout_ms = "500ms"

[sinks.stream]
kind = "redis"
url = "{url}"
timeout_ms = "500ms"
events = ["StatusChanged"]
"""
STREAM = "homing:events"


class Plan(Struct, frozen=True, kw_only=True):
    """The size of a run."""

    restarts: int = 50
    kills: int = 50
    per_step: int = 20
    """Number of notifications that are sent around each restart, half of them due a little later."""
    workers: int = 3


class Report(Struct, kw_only=True):
    """The result of a run."""

    plan: Plan
    deliveries: DeliveryCount
    unfinished: int
    """Notifications that were not delivered. Must be 0."""
    unpublished: int
    """Notifications whose event is not in the stream, although Redis has lost no data since. Must be 0."""
    timer_failures: int
    """Failed calls of the sender's timer."""
    seconds: float

    @property
    def good(self) -> bool:
        return self.deliveries.good and not (self.unfinished or self.unpublished)


async def run(
    folder: Path, plan: Plan, seed: int, show_progress: Callable[[str], None] = lambda line: None
) -> Report:
    began, rng = time.monotonic(), random.Random(seed)
    fleet = Fleet(folder, str(folder / "homing.db"), workers=plan.workers, lease_ms=LEASE_MS, poll_ms=1_000)
    with RedisServer(durable=True) as server:
        with fleet.config.open("a") as config:
            config.write(REDIS.format(url=server.url))
        ids: list[str] = []
        async with Homing(config_file=fleet.config) as homing:
            fleet.start()
            try:
                steps = max(plan.restarts, plan.kills, 1)
                for step in range(steps):
                    await _send(homing, ids, plan.per_step // 2, rng)
                    if step < plan.restarts:
                        server.kill()
                        await _send(homing, ids, plan.per_step - plan.per_step // 2, rng)
                        server.restart(lose_data=step % 2 == 0)
                    if step < plan.kills:
                        fleet.kill_one(rng)
                    show_progress(f"step {step + 1}/{steps}, sent {len(ids)}")
                unfinished = await _wait(homing, ids, PATIENCE_S)
                kept = await _published_after(homing, ids, server, plan.per_step, rng)
                failures = homing.snapshot().timers["redis"].failures
            finally:
                fleet.stop()
            deliveries = await count(homing, folder, ids)
    return Report(
        plan=plan,
        deliveries=deliveries,
        unfinished=unfinished,
        unpublished=kept,
        timer_failures=failures,
        seconds=round(time.monotonic() - began, 1),
    )


async def _send(homing: Homing, ids: list[str], number: int, rng: random.Random) -> None:
    for place in range(number):
        later = timedelta(milliseconds=rng.randrange(50, 800)) if place % 2 else None
        sent = await homing.send(
            "ada@example.org",
            channel="email",
            body="Hi",
            priority=rng.choice(("critical", "low")),
            send_at=later,
        )
        ids.append(sent.id)


async def _wait(homing: Homing, ids: list[str], within_s: float) -> int:
    """Waits until all have been sent, and returns the number of those that have not."""
    until, left = time.monotonic() + within_s, list(ids)
    while left and time.monotonic() < until:
        left = [id for id in left if (await homing.get(id)).status is not Status.SENT]
        await asyncio.sleep(0.1)
    return len(left)


async def _published_after(
    homing: Homing, ids: list[str], server: RedisServer, number: int, rng: random.Random
) -> int:
    """Sends some more, now that Redis loses no data any more, and returns how many events are missing."""
    first = len(ids)
    await _send(homing, ids, number, rng)
    await _wait(homing, ids[first:], PATIENCE_S)
    missing, until = set(ids[first:]), time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < until:
        for fields in await server.read_stream(STREAM):
            if msgspec.json.decode(fields[b"body"])["status"] == "sent":
                missing.discard(fields[b"homing-notification-id"].decode())
        await asyncio.sleep(0.2)
    return len(missing)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in ((f, getattr(Plan(), f)) for f in Plan.__struct_fields__):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = vars(parser.parse_args())
    seed = options.pop("seed")
    with tempfile.TemporaryDirectory() as folder:
        work = run(
            Path(folder), Plan(**options), seed, lambda line: print(f"\r{line}", end="", file=sys.stderr)
        )
        report = asyncio.run(work)
    print(f"\nseed {seed}")
    show(report)
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
