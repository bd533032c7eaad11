"""Restores PostgreSQL to an earlier time under running workers, and checks what is lost and what is repeated.

    python tests/acceptance/restore_run.py --kind point-in-time
    python tests/acceptance/restore_run.py --kind snapshot

Two `homing worker` processes and a sender keep running while the server is replaced by a backup of itself.
This is either a base backup that is recovered up to a restore point, which begins a new timeline, or a copy
as of the end of the backup, which stays on its timeline like a restored snapshot of a disk. Groups of
notifications show what happens to those that were accepted, sent, scheduled or cancelled before and after
that time. A steady load of other notifications must not lose anything that is acknowledged after the restore.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from homing import Homing

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.private_postgres import PrivatePostgres
from support.webhook_load import (
    ACCEPTED,
    CONFIG,
    HELD,
    Acknowledgement,
    Audit,
    LossReports,
    Sender,
    WebhookEndpoint,
    audit,
    statuses,
    until,
    workers,
)

KINDS = ("point-in-time", "snapshot")
TENANT = "default"
WORKERS = 2
TIMEOUT_MS = 90_000
LEASE_MS = 100_000
"""Longer than the backup and the restore on any machine. The run itself ends the leases of lost attempts."""
END_LEASES = "UPDATE homing.live SET lease_until = homing.now_ms() WHERE lease_until < {before}"
PATIENCE_S = 60.0


class Fate(Struct, frozen=True, kw_only=True):
    """What became of the notifications of a group."""

    status: str
    """Status in the store, or `lost`."""
    sends: int
    """Number of requests that the endpoint received for each."""


EXPECTED = {
    "delivered before": Fate(status="delivered", sends=1),
    "in flight": Fate(status="delivered", sends=2),
    "scheduled, sent after": Fate(status="delivered", sends=2),
    "scheduled, cancelled after": Fate(status="pending", sends=0),
    "accepted after": Fate(status="lost", sends=1),
    "accepted after, in flight": Fate(status="lost", sends=1),
    "repeated after the restore": Fate(status="delivered", sends=1),
}
"""Group → its fate. `before` and `after` mean before and after the time to which the server is restored.

Notifications that were in flight at that time are sent again when their leases end, and those that were
scheduled when they are due again. Some of those that were accepted after that time are in flight during the
restore; the endpoint answers them afterwards. The last group are the requests of `accepted after`, sent again
with the same idempotency keys: they are new notifications.
"""


class Report(Struct, kw_only=True):
    """The result of a run."""

    fates: dict[str, list[Fate]]
    """Group → the different fates of its notifications."""
    unrecognized: int
    """Number of repeated requests of `delivered before` that were not recognized by their keys. Must be 0."""
    before: Audit
    """The load that was acknowledged before the time to which the server was restored."""
    between: Audit
    """The load that began and was acknowledged between that time and the restore. All of it is lost."""
    since: Audit
    """The load that began after the restore."""
    lost: int
    """Number of all acknowledged notifications that the store does not have any more."""
    reported: int
    """Number of lost notifications that the sender's process has reported. Must be that of all lost ones."""
    errors: dict[str, int]
    """Errors that the sender got, by type, each followed by another call."""
    ended_workers: int
    """Worker processes that have ended. Must be 0."""
    recovery_s: float
    """Time from the end of the restore until the first delivery of a notification that was sent after it."""
    seconds: float

    @property
    def good(self) -> bool:
        groups = self.fates == {name: [fate] for name, fate in EXPECTED.items()}
        kept = not (self.before.lost or self.before.wrong or self.before.unfinished)
        lost = len(self.between.lost) == self.between.acknowledged > 0
        since = self.since.flawless and self.since.acknowledged > 0
        known = self.lost == self.reported
        return groups and kept and lost and since and known and not (self.unrecognized or self.ended_workers)


class Restore:
    """One run with its own server."""

    def __init__(self, folder: Path, kind: str, number: int, rate: float, seed: int) -> None:
        """`number` is the size of each group."""
        self._folder = folder
        self._kind = kind
        self._number = number
        self._rate = rate
        self._rng = random.Random(seed)
        self._groups: dict[str, list[Acknowledgement]] = {}

    async def run(self) -> Report:
        began = time.monotonic()
        self._endpoint = WebhookEndpoint(self._rng)
        url = await self._endpoint.start()
        config = self._folder / "homing.toml"
        with LossReports() as reports, PrivatePostgres(archive=True, fsync=False) as self._server:
            store = self._server.url
            config.write_text(CONFIG.format(store=store, lease_ms=LEASE_MS, timeout_ms=TIMEOUT_MS))
            async with Homing(config_file=config) as self._homing, workers(config, WORKERS) as running:
                self._sender = Sender(self._homing, url, self._rate, self._rng)
                async with self._sender.sending():
                    unrecognized, recovery_s = await self._go_back()
                load = await self._audit_load()
                lost = sum(
                    status is None
                    for status in (await statuses(self._homing, self._sender.acknowledged)).values()
                )
                with suppress(TimeoutError):
                    await until(lambda: reports.lost >= lost, PATIENCE_S)
                report = Report(
                    fates={name: await self._fates(group) for name, group in self._groups.items()},
                    unrecognized=unrecognized,
                    before=load[0],
                    between=load[1],
                    since=load[2],
                    lost=lost,
                    reported=reports.lost,
                    errors=dict(self._sender.errors),
                    ended_workers=sum(worker.process.poll() is not None for worker in running),
                    recovery_s=recovery_s,
                    seconds=round(time.monotonic() - began, 1),
                )
        self._endpoint.close()
        return report

    async def _go_back(self) -> tuple[int, float]:
        """Restores the server amid the groups.

        Returns the number of repeated requests that were not recognized, and the time of the recovery.
        """
        backup = await asyncio.to_thread(self._server.base_backup, "early")
        await self._before()
        self._point = [time.monotonic()]
        if self._kind == "snapshot":
            backup = await asyncio.to_thread(self._server.base_backup, "snapshot")
        else:
            await asyncio.to_thread(self._server.restore_point, "point")
        self._point.append(time.monotonic())
        await self._after()
        target = None if self._kind == "snapshot" else "point"
        self._down_at, down_ms = time.monotonic(), time.time_ns() // 1_000_000
        await asyncio.to_thread(self._server.restore, backup, until=target)
        self._restored_at = time.monotonic()
        await asyncio.to_thread(self._server.query, END_LEASES.format(before=down_ms + LEASE_MS))
        recovery_s = await self._recovered()
        self._endpoint.gate.set()
        return await self._repeat(), recovery_s

    async def _before(self) -> None:
        self._groups["delivered before"] = await self._send(ACCEPTED)
        await self._delivered("delivered before")
        self._groups["in flight"] = await self._send(HELD)
        later = datetime.now(UTC) + timedelta(hours=1)
        for name in ("scheduled, sent after", "scheduled, cancelled after"):
            self._groups[name] = await self._send(ACCEPTED, send_at=later)
        await self._in_flight("in flight")

    async def _after(self) -> None:
        self._endpoint.gate.set()
        self._sender.tenants = (TENANT, "a new tenant")
        for one in self._groups["scheduled, sent after"]:
            await self._homing.retry(one.id)
        for one in self._groups["scheduled, cancelled after"]:
            await self._homing.cancel(one.id)
        self._groups["accepted after"] = await self._send(ACCEPTED)
        for name in ("in flight", "scheduled, sent after", "accepted after"):
            await self._delivered(name)
        self._endpoint.gate.clear()
        self._groups["accepted after, in flight"] = await self._send(HELD)
        await self._in_flight("accepted after, in flight")

    async def _repeat(self) -> int:
        """Does again what was lost: makes the scheduled ones due, and sends the lost ones with their keys."""
        for one in self._groups["scheduled, sent after"]:
            await self._homing.retry(one.id)
        lost, kept = self._groups["accepted after"], self._groups["delivered before"]
        repeated = [await self._sender.send(ACCEPTED, TENANT, again=one) for one in (*lost, *kept)]
        self._groups["repeated after the restore"] = repeated[: len(lost)]
        for name in ("repeated after the restore", "in flight", "scheduled, sent after"):
            await self._delivered(name)
        known = {one.id for one in kept}
        return sum(not one.duplicate or one.id not in known for one in repeated[len(lost) :])

    async def _send(self, answer: str, send_at: datetime | None = None) -> list[Acknowledgement]:
        return [await self._sender.send(answer, TENANT, send_at=send_at) for _ in range(self._number)]

    async def _in_flight(self, name: str) -> None:
        """Waits until the endpoint has requests for all notifications of a group."""
        ids = {one.id for one in self._groups[name]}
        await until(lambda: ids <= self._endpoint.requests.keys(), PATIENCE_S)

    async def _delivered(self, name: str) -> None:
        """Waits until all notifications of a group have ended. Their fates are compared later."""
        await audit(self._homing, self._groups[name], self._endpoint, PATIENCE_S)

    async def _recovered(self) -> float:
        def first() -> float | None:
            times = (
                receipt.at - self._restored_at
                for receipt in self._endpoint.receipts
                if self._sender.begun[receipt.number] > self._restored_at
            )
            return next(times, None)

        await until(lambda: first() is not None, PATIENCE_S)
        return first() or 0.0

    async def _audit_load(self) -> tuple[Audit, Audit, Audit]:
        """Audits the load before the point, between the point and the restore, and since the restore."""
        grouped = {one.number for group in self._groups.values() for one in group}
        load = [one for one in self._sender.acknowledged if one.number not in grouped]
        early, late = self._point
        parts = (
            [one for one in load if one.at < early],
            [one for one in load if one.begun_at > late and one.at < self._down_at],
            [one for one in load if one.begun_at > self._restored_at],
        )
        before, between, since = [
            await audit(self._homing, part, self._endpoint, PATIENCE_S) for part in parts
        ]
        return before, between, since

    async def _fates(self, group: Sequence[Acknowledgement]) -> list[Fate]:
        """Returns the different fates of the notifications of a group."""
        found, sends = await statuses(self._homing, group), self._endpoint.requests
        fates = {
            Fate(status="lost" if status is None else status.value, sends=sends[id_])
            for id_, status in found.items()
        }
        return sorted(fates, key=lambda fate: (fate.status, fate.sends))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument(
        "--number", type=int, default=20, help="notifications in each group, all in flight at once"
    )
    parser.add_argument("--rate", type=float, default=150, help="other sends per second")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Restore(Path(folder), options.kind, options.number, options.rate, options.seed)
        report = asyncio.run(run.run())
    print(f"seed {options.seed}, {report.seconds} s, first delivery after {report.recovery_s:.2f} s")
    print(f"{'group':>28}  in the store  sends of each")
    for name, fates in report.fates.items():
        for fate in fates:
            print(f"{name:>28}  {fate.status:12}  {fate.sends}")
    print(f"{'load':>28}  acknowledged  lost  unfinished  wrong outcome  doubled")
    for name, found in (("before", report.before), ("between", report.between), ("since", report.since)):
        print(
            f"{name:>28}  {found.acknowledged:12}  {len(found.lost):4}  {len(found.unfinished):10}"
            f"  {len(found.wrong):13}  {len(found.doubled):7}"
        )
    print(f"lost {report.lost}, reported as lost {report.reported}")
    print(f"unrecognized repetitions {report.unrecognized}, ended workers {report.ended_workers}")
    print(f"errors of the sender {report.errors}")
    print("everything is as documented" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
