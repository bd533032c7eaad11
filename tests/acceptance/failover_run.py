"""Fails over between two PostgreSQL servers under load, and checks the result by a ledger outside of them.

    python tests/acceptance/failover_run.py --kind synchronous --rounds 20 --rate 150

Two `homing worker` processes and a sender use one URL with both servers. In each round the primary is stopped
as by a power cut, suspended (`hung`) or made read-only (`fenced`), and its standby is promoted. Nothing is
restarted. With synchronous replication, every acknowledged notification must be delivered exactly once. With
asynchronous replication, each round loses the commits of its last moments. Then everything that is
acknowledged after the failover must be delivered and have its own outcome, and the sender's process must
report how many are lost.

The time of a recovery is measured from the moment at which the promoted server accepts writes until the
endpoint receives the first notification whose send began after it.
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
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from homing import Homing

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.postgres_cluster import PostgresCluster
from support.webhook_load import (
    CONFIG,
    HELD,
    Acknowledgement,
    Audit,
    LossReports,
    Sender,
    WebhookEndpoint,
    WorkerProcess,
    audit,
    until,
    workers,
)
from support.worker_fleet import show

KINDS = ("synchronous", "asynchronous", "hung", "fenced")
LIMITS_S = {"synchronous": 3.0, "asynchronous": 5.0, "hung": 10.0, "fenced": 5.0}
"""Longest recovery of a long run."""
WORKERS = 2
LEASES_MS = {"synchronous": 15_000, "asynchronous": 11_000, "hung": 20_000, "fenced": 20_000}
"""Longer than an attempt and a failover, so that no attempt that was sent is declared lost meanwhile."""
TIMEOUT_MS = 10_000
PATIENCE_S = 60.0
LOST = 40
"""Number of acknowledged sends that an asynchronous failover loses, in addition to those of the load."""
LATE_ANSWER_S = 0.25
"""Time after the end of the old primary in which the sender may still record its last answers."""
FENCING_S = 0.2
"""Time in which open sessions of the server notice that it was made read-only."""
OLD_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND xact_start < to_timestamp({fenced_at})
"""


class Round(Struct, kw_only=True):
    """One failover. The times are those of the monotonic clock."""

    held_at: float
    """Start of the time whose commits may be lost."""
    down_at: float
    """The old primary accepts no more writes."""
    promotion_s: float
    """Time that PostgreSQL needed to promote the standby."""
    recovery_s: float
    """Time after the promotion until the first delivery of a notification that was sent after it."""


class Report(Struct, kw_only=True):
    """The result of a run."""

    kind: str
    rounds: list[Round]
    audit: Audit
    lost_in_time: int
    """Acknowledged by the old primary after the standby had stopped to receive its commits, and lost."""
    lost_after: int
    """Acknowledged before that or after the old primary was down, and lost. Must be 0."""
    reported: int
    """Number of lost notifications that the sender's process has reported. Must be that of all lost ones."""
    errors: dict[str, int]
    """Errors that the sender got, by type, each followed by another call."""
    slowest_call_s: float
    ended_workers: int
    """Worker processes that have ended. Must be 0."""
    seconds: float

    @property
    def good(self) -> bool:
        """True if nothing is wrong. The time of the recoveries does not matter."""
        if self.kind != "asynchronous":
            return self.audit.flawless and not self.ended_workers
        as_known = len(self.audit.lost) == self.lost_in_time == self.reported > 0
        return as_known and not (self.audit.wrong or self.audit.unfinished or self.ended_workers)

    @property
    def slowest_s(self) -> float:
        return max(one.recovery_s for one in self.rounds)


class Failover:
    """One run with its own servers."""

    def __init__(
        self, folder: Path, kind: str, rounds: int, rate: float, seed: int, outage_s: float = 0.0
    ) -> None:
        """`outage_s` is the time between the end of the old primary and the promotion."""
        self._outage_s = outage_s
        self._folder = folder
        self._kind = kind
        self._rounds = rounds
        self._rate = rate
        self._rng = random.Random(seed)

    async def run(self, show_progress: Callable[[str], None] = lambda line: None) -> Report:
        began = time.monotonic()
        endpoint = WebhookEndpoint(self._rng)
        url = await endpoint.start()
        config = self._folder / "homing.toml"
        cluster = PostgresCluster(synchronous=self._kind != "asynchronous")
        with LossReports() as reports, cluster as self._cluster:
            lease_ms = LEASES_MS[self._kind]
            config.write_text(CONFIG.format(store=cluster.url, lease_ms=lease_ms, timeout_ms=TIMEOUT_MS))
            async with Homing(config_file=config) as homing, workers(config, WORKERS) as running:
                self._endpoint = endpoint
                self._sender = Sender(homing, url, self._rate, self._rng, held_url=endpoint.held_url)
                async with self._sender.sending():
                    rounds = [await self._round(number, show_progress) for number in range(self._rounds)]
                patience_s = PATIENCE_S + lease_ms / 1000
                found = await audit(homing, self._sender.acknowledged, endpoint, patience_s)
                reported = await _reported(reports, len(found.lost))
                ended = sum(worker.process.poll() is not None for worker in running)
                _keep_logs(running, self._folder)
        endpoint.close()
        return Report(
            kind=self._kind,
            rounds=rounds,
            audit=found,
            lost_in_time=sum(_was_in_time(rounds, one) for one in found.lost),
            lost_after=sum(not _was_in_time(rounds, one) for one in found.lost),
            reported=reported,
            errors=dict(self._sender.errors),
            slowest_call_s=round(self._sender.slowest_call_s, 2),
            ended_workers=ended,
            seconds=round(time.monotonic() - began, 1),
        )

    async def _round(self, number: int, show_progress: Callable[[str], None]) -> Round:
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        held_at = time.monotonic()
        if self._kind == "asynchronous":
            await self._lag(number)
        await asyncio.to_thread(self._take_down)
        down_at = time.monotonic()
        await asyncio.sleep(self._outage_s)
        promotion_at = time.monotonic()
        await asyncio.to_thread(self._cluster.promote)
        promoted_at = time.monotonic()
        recovery_s = await self._recovered(promoted_at)
        self._endpoint.gate.set()
        await asyncio.sleep(self._rng.uniform(0.5, 1.0))
        await asyncio.to_thread(self._cluster.rebuild_standby)
        show_progress(
            f"failover {number + 1}/{self._rounds}, {recovery_s:.2f} s, "
            f"acknowledged {len(self._sender.acknowledged)}"
        )
        promotion_s = promoted_at - promotion_at
        return Round(held_at=held_at, down_at=down_at, promotion_s=promotion_s, recovery_s=recovery_s)

    async def _lag(self, number: int) -> None:
        """Holds the last commits back from the standby, among them the first ones of a new tenant.

        Some of the lost notifications are in flight during the failover. The endpoint answers them
        afterwards, when the new primary has given their places in the queue to others.
        """
        await asyncio.to_thread(self._cluster.wait_for_standby)
        await asyncio.to_thread(self._cluster.hold_replication)
        self._sender.tenants = ("default", f"tenant-{number}")
        self._endpoint.gate.clear()
        seen = len(self._endpoint.receipts)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(self._sender.send(HELD) for _ in range(LOST)))
        await until(lambda: any(one.answer == HELD for one in self._endpoint.receipts[seen:]), PATIENCE_S)
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))

    def _take_down(self) -> None:
        primary = self._cluster.primary
        if self._kind == "hung":
            primary.freeze()
        elif self._kind == "fenced":
            primary.fence()
            time.sleep(FENCING_S)
            [(fenced_at,)] = primary.query("SELECT extract(epoch FROM clock_timestamp())")
            deadline = time.monotonic() + PATIENCE_S
            while primary.query(OLD_TRANSACTIONS.format(fenced_at=fenced_at)) != [(0,)]:
                assert time.monotonic() < deadline, "a transaction from before the fencing does not end"
                time.sleep(0.01)
            self._cluster.wait_for_standby()
        else:
            primary.stop()

    async def _recovered(self, promoted_at: float) -> float:
        """Waits for the first delivery of what was sent after the promotion, and returns how long it took."""
        seen = len(self._endpoint.receipts)
        deadline = promoted_at + PATIENCE_S
        while time.monotonic() < deadline:
            for receipt in self._endpoint.receipts[seen:]:
                if self._sender.begun[receipt.number] > promoted_at:
                    return receipt.at - promoted_at
            await asyncio.sleep(0.01)
        return float("inf")


async def _reported(reports: LossReports, expected: int) -> int:
    """Waits until the expected number is reported, and returns the number that was reported in the end."""
    with suppress(TimeoutError):
        await until(lambda: reports.lost >= expected, PATIENCE_S)
    return reports.lost


def _was_in_time(rounds: list[Round], lost: Acknowledgement) -> bool:
    """Returns True if the old primary acknowledged the call while its commits were held back.

    A call may begin on the old primary and be acknowledged by the new one, which must not lose it.
    """
    return any(
        lost.begun_at < one.down_at and one.held_at < lost.at < one.down_at + LATE_ANSWER_S for one in rounds
    )


def _keep_logs(running: list[WorkerProcess], folder: Path) -> None:
    """Writes the log of all workers into one file."""
    (folder / "workers.log").write_text("".join(worker.log for worker in running))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="synchronous")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=150, help="sends per second")
    parser.add_argument("--outage", type=float, default=0.0, help="seconds until the standby is promoted")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        failover = Failover(
            Path(folder), options.kind, options.rounds, options.rate, options.seed, options.outage
        )
        report = asyncio.run(failover.run(lambda line: print(f"\r{line}", end="", file=sys.stderr)))
    print(f"\nseed {options.seed}")
    print(" round  promotion  recovery")
    for number, one in enumerate(report.rounds, start=1):
        print(f"{number:6}   {one.promotion_s:6.2f} s  {one.recovery_s:6.2f} s")
    show(_Summary.of(report))
    good = report.good and report.slowest_s <= LIMITS_S[report.kind]
    print("everything is as it should be" if good else "SOMETHING IS WRONG")
    return 0 if good else 1


class _Summary(Struct, kw_only=True):
    """The lines that `main` prints."""

    acknowledged: int
    lost: int
    lost_in_time: int
    lost_after: int
    reported: int
    unfinished: int
    wrong_outcome: int
    doubled: int
    slowest_recovery_s: float
    slowest_call_s: float
    ended_workers: int
    seconds: float
    errors: dict[str, int]

    @classmethod
    def of(cls, report: Report) -> _Summary:
        found = report.audit
        return cls(
            acknowledged=found.acknowledged,
            lost=len(found.lost),
            lost_in_time=report.lost_in_time,
            lost_after=report.lost_after,
            reported=report.reported,
            unfinished=len(found.unfinished),
            wrong_outcome=len(found.wrong),
            doubled=len(found.doubled),
            slowest_recovery_s=round(report.slowest_s, 2),
            slowest_call_s=report.slowest_call_s,
            ended_workers=report.ended_workers,
            seconds=report.seconds,
            errors=report.errors,
        )


if __name__ == "__main__":
    sys.exit(main())
