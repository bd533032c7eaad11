"""Sends through PgBouncer in transaction pooling while it is killed again and again: nothing may be lost.

    python tests/acceptance/pooler_run.py --notifications 5000 --kills 10

Two `homing worker` processes and a sender reach PostgreSQL only through PgBouncer, with the default settings
of PgBouncer and a URL without any option. Every notification must be delivered exactly once. Finally the
wake-up latency is measured: from the start of a send until the endpoint has the request, while the workers
are idle.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from homing import Homing

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.pgbouncer import PgBouncer
from support.private_postgres import PrivatePostgres
from support.webhook_load import ACCEPTED, CONFIG, Audit, Sender, WebhookEndpoint, audit, until, workers
from support.worker_fleet import show

WORKERS = 2
LEASE_MS = 30_000
TIMEOUT_MS = 10_000
PATIENCE_S = 120.0
EXPECTED_ERRORS = {"StoreUnavailable", "StoreBusy"}
LOGGING = """
[log]
level = "info"
"""
MESSAGES = ("connections go through a pooler", "accepts LISTEN, but no message arrives")
"""What each worker logs about the pooler, once."""


class Plan(Struct, frozen=True, kw_only=True):
    """The size of a run."""

    notifications: int = 5000
    kills: int = 10
    rate: int = 250
    probes: int = 30
    """Number of sends to measure the wake-up latency."""


class Report(Struct, kw_only=True):
    """The result of a run."""

    plan: Plan
    audit: Audit
    errors: dict[str, int]
    """Errors that the sender got, by type, each followed by another call."""
    ended_workers: int
    """Worker processes that have ended. Must be 0."""
    messages: list[list[int]]
    """How often each worker has logged each of `MESSAGES`."""
    wake_up_ms: list[float]
    seconds: float

    @property
    def good(self) -> bool:
        complete = self.audit.acknowledged == self.plan.notifications and self.audit.flawless
        logged = self.messages == [[1] * len(MESSAGES)] * WORKERS
        return complete and logged and not (self.ended_workers or set(self.errors) - EXPECTED_ERRORS)


async def run(
    folder: Path, plan: Plan, seed: int, show_progress: Callable[[str], None] = lambda line: None
) -> Report:
    began = time.monotonic()
    rng = random.Random(seed)
    endpoint = WebhookEndpoint(rng)
    url = await endpoint.start()
    config = folder / "homing.toml"
    with PrivatePostgres(fsync=False) as server, PgBouncer(server.url) as pooler:
        config.write_text(CONFIG.format(store=pooler.url, lease_ms=LEASE_MS, timeout_ms=TIMEOUT_MS) + LOGGING)
        async with Homing(config_file=config) as homing, workers(config, WORKERS) as running:
            sender = Sender(homing, url, plan.rate, rng, limit=plan.notifications)
            async with sender.sending():
                for number in range(1, plan.kills + 1):
                    due = plan.notifications * number // (plan.kills + 1)
                    await until(lambda due=due: len(sender.acknowledged) >= due, PATIENCE_S)  # type: ignore[misc]
                    pooler.kill()
                    await asyncio.sleep(rng.uniform(0.0, 0.5))
                    pooler.start()
                    show_progress(f"killed {number}/{plan.kills}, acknowledged {len(sender.acknowledged)}")
                await until(lambda: len(sender.acknowledged) == plan.notifications, PATIENCE_S)
            found = await audit(homing, sender.acknowledged, endpoint, PATIENCE_S)
            wake_up_ms = [await _wake_up_ms(sender, endpoint, rng) for _ in range(plan.probes)]
            ended = sum(worker.process.poll() is not None for worker in running)
            messages = [[worker.log.count(message) for message in MESSAGES] for worker in running]
    endpoint.close()
    return Report(
        plan=plan,
        audit=found,
        errors=dict(sender.errors),
        ended_workers=ended,
        messages=messages,
        wake_up_ms=wake_up_ms,
        seconds=round(time.monotonic() - began, 1),
    )


async def _wake_up_ms(sender: Sender, endpoint: WebhookEndpoint, rng: random.Random) -> float:
    await asyncio.sleep(rng.uniform(0.5, 1.5))  # so that the probes meet the workers' polls at all phases
    one = await sender.send(ACCEPTED)
    await until(lambda: endpoint.receipts[-1].number == one.number, PATIENCE_S)
    return (endpoint.receipts[-1].at - one.begun_at) * 1000


class _Summary(Struct, kw_only=True):
    """The lines that `main` prints."""

    acknowledged: int
    lost: int
    unfinished: int
    wrong_outcome: int
    doubled: int
    ended_workers: int
    log_lines_about_the_pooler: list[list[int]]
    wake_up_median_ms: float
    wake_up_max_ms: float
    seconds: float
    errors: dict[str, int]

    @classmethod
    def of(cls, report: Report) -> _Summary:
        found = report.audit
        return cls(
            acknowledged=found.acknowledged,
            lost=len(found.lost),
            unfinished=len(found.unfinished),
            wrong_outcome=len(found.wrong),
            doubled=len(found.doubled),
            ended_workers=report.ended_workers,
            log_lines_about_the_pooler=report.messages,
            wake_up_median_ms=round(statistics.median(report.wake_up_ms or [0.0]), 1),
            wake_up_max_ms=round(max(report.wake_up_ms, default=0.0), 1),
            seconds=report.seconds,
            errors=report.errors,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in ((f, getattr(Plan(), f)) for f in Plan.__struct_fields__):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = vars(parser.parse_args())
    seed = options.pop("seed")
    with tempfile.TemporaryDirectory() as folder:
        work = run(
            Path(folder), Plan(**options), seed, lambda line: print(f"\r{line}", end="", file=sys.stderr)
        )
        report = asyncio.run(work)
    print(f"\nseed {seed}, {report.plan}")
    show(_Summary.of(report))
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
