"""Three workers on PostgreSQL while everything goes wrong: nothing may be lost.

    python tests/acceptance/chaos_run.py

Workers are killed with `kill -9`, the server is stopped as by a power cut and started again, its connections
are cut, and workers are suspended for three leases, all at random moments while this process goes on sending.
Then every accepted notification must be accounted for, nothing may have been sent more often than it was
attempted, and what a suspended worker wanted to settle too late must have been refused. At last the time to
recover is measured, for each kind of fault: from when it is over until every attempt that was under way has
ended or was given up for lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import asyncpg
from msgspec import Struct

from homing import Homing
from homing.core.errors import StoreUnavailable

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.private_postgres import PrivatePostgres
from support.worker_fleet import LEASE_MS, Count, Fleet, count, send_some, settled, show

PAUSE_S = 3 * LEASE_MS / 1000
RECOVERY_S = 2 * LEASE_MS / 1000
Attempts: TypeAlias = "list[asyncpg.Record]"
UNDER_WAY = "SELECT seq, attempts FROM homing.live WHERE status = 'sending' AND worker LIKE $1"
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
PATIENCE_S = 300.0
"""Longer than a breaker stays open, should one have opened, and than all workers need to start anew."""
IN_FLIGHT = 60
"""Sent at once while a fault is to hit something."""


class Plan(Struct, frozen=True, kw_only=True):
    """How much goes wrong."""

    kills: int = 100
    restarts: int = 20
    cuts: int = 20
    pauses: int = 5
    probes: int = 5
    notifications: int = 6000


class Report(Struct, kw_only=True):
    """What a run found."""

    count: Count
    stale: int
    """Settlements that came too late and were refused."""
    recovery_s: dict[str, float]
    """The slowest for each kind of fault."""
    seconds: float

    @property
    def good(self) -> bool:
        recovered = max(self.recovery_s.values(), default=0.0) <= RECOVERY_S
        return self.count.good and self.stale > 0 and recovered


class Chaos:
    """One run over a server of its own."""

    def __init__(self, folder: Path, plan: Plan, seed: int) -> None:
        self._folder = folder
        self._plan = plan
        self._chance = random.Random(seed)
        self._accepted: list[str] = []

    async def run(self, show_progress: Callable[[str], None] = lambda line: None) -> Report:
        began = time.monotonic()
        with PrivatePostgres() as self._server:
            self._fleet = Fleet(self._folder, self._server.url)
            async with Homing(config_file=self._fleet.config) as self._homing:
                self._fleet.start()
                try:
                    await self._go_wrong(show_progress)
                    await settled(self._homing, len(self._accepted))
                    recovery_s = await self._recoveries()
                finally:
                    await asyncio.to_thread(self._fleet.stop)
                return Report(
                    count=await count(self._homing, self._folder, self._accepted),
                    stale=_stale(self._folder / "workers.log"),
                    recovery_s=recovery_s,
                    seconds=round(time.monotonic() - began, 1),
                )

    async def _go_wrong(self, show_progress: Callable[[str], None]) -> None:
        plan = self._plan
        faults = [self._kill] * plan.kills + [self._restart] * plan.restarts
        faults += [self._cut] * plan.cuts + [self._pause] * plan.pauses
        self._chance.shuffle(faults)
        for number, fault in enumerate(faults):
            await self._send(plan.notifications // len(faults))
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            await fault()
            show_progress(f"fault {number + 1}/{len(faults)}, accepted {len(self._accepted)}")

    async def _recoveries(self) -> dict[str, float]:
        """How long it takes until nothing hangs any more that was under way, the slowest of each fault."""
        slowest: dict[str, float] = {}
        faults = {"kill": self._kill_busy, "cut": self._cut_busy, "restart": self._restart_busy}
        for name, fault in list(faults.items()) * self._plan.probes:
            hit = await fault()
            began = time.monotonic()
            while any(attempt in hit for attempt in await self._query(UNDER_WAY, "%")):
                pass
            slowest[name] = max(slowest.get(name, 0.0), round(time.monotonic() - began, 2))
            await settled(self._homing, len(self._accepted))
        return slowest

    async def _send(self, number: int) -> None:
        """A store that is away is a reason to try again, with what was not promised yet."""
        wanted = len(self._accepted) + number
        for _ in range(1_200):
            try:
                await send_some(self._homing, wanted - len(self._accepted), self._accepted)
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            else:
                return
        raise AssertionError("the store does not come back")

    async def _kill(self) -> None:
        await asyncio.to_thread(self._fleet.kill_one, self._chance)

    async def _restart(self) -> None:
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._server.start)

    async def _cut(self) -> None:
        await self._query(CUT)

    async def _pause(self) -> None:
        """Until a suspended one came too late: it may have been caught before its sends, or after them."""
        log = self._folder / "workers.log"
        refused = _stale(log)
        for _ in range(20):
            async with self._caught_busy():
                await asyncio.sleep(PAUSE_S)
            for _ in range(50):  # before the next fault hits the same one
                if _stale(log) > refused:
                    return
                await asyncio.sleep(0.1)

    async def _kill_busy(self) -> Attempts:
        """In the middle of its deliveries; which those were. So do the next two."""
        async with self._caught_busy() as (worker, hit):
            await asyncio.to_thread(self._fleet.kill, worker)
        return hit

    async def _cut_busy(self) -> Attempts:
        hit = await self._busy()
        await self._cut()
        return hit

    async def _restart_busy(self) -> Attempts:
        hit = await self._busy()
        await self._restart()
        return hit

    async def _busy(self) -> Attempts:
        """What is under way, as soon as something is."""
        async with self._traffic():
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                if found := await self._query(UNDER_WAY, "%"):
                    return found
        raise AssertionError("nothing is ever under way")

    @asynccontextmanager
    async def _caught_busy(self) -> AsyncIterator[tuple[subprocess.Popen[bytes], Attempts]]:
        """A suspended worker that has deliveries under way."""
        async with AsyncExitStack() as meanwhile:
            await meanwhile.enter_async_context(self._traffic())
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                with self._fleet.suspended(self._chance) as worker:
                    if found := await self._query(UNDER_WAY, f"%:{worker.pid}"):
                        await meanwhile.aclose()
                        yield worker, found
                        return
        raise AssertionError("no worker is ever busy")

    @asynccontextmanager
    async def _traffic(self) -> AsyncIterator[None]:
        """Goes on sending meanwhile."""
        flows = True

        async def flow() -> None:
            while flows:
                await self._send(IN_FLIGHT)

        sending = asyncio.create_task(flow())
        try:
            yield
        finally:
            flows = False
            await sending

    async def _query(self, sql: str, *parameters: object) -> Attempts:
        connection = await asyncpg.connect(self._server.url)
        try:
            return list(await connection.fetch(sql, *parameters))
        finally:
            await connection.close()


def _stale(log: Path) -> int:
    """What the workers say they were refused."""
    marked = [line for line in log.read_text().splitlines() if "came too late" in line]
    return sum(int(word) for line in marked for word in line.split() if word.isdecimal())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in ((f, getattr(Plan(), f)) for f in Plan.__struct_fields__):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = vars(parser.parse_args())
    seed = options.pop("seed")
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), Plan(**options), seed)
        report = asyncio.run(chaos.run(lambda line: print(f"\r{line}", end="", file=sys.stderr)))
    print(f"\nseed {seed}, {Plan(**options)}")
    show(report)
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
