"""Three workers on PostgreSQL while everything goes wrong: nothing may be lost.

    python tests/acceptance/chaos_run.py

Workers are killed with `kill -9`, the server is stopped as by a power cut and started again, its connections
are cut, and workers are suspended for three leases, all at random moments while this process goes on sending.
Then every accepted notification must be accounted for, nothing may have been sent more often than it was
attempted, and what a suspended worker wanted to settle too late must have been refused. At last the time to
recover is measured: from a fault until all that was under way has ended.
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
from pathlib import Path

import asyncpg
from fleet import LEASE_MS, Count, Fleet, count, send_some, settled, show
from msgspec import Struct

from homing import Homing
from homing.core.errors import StoreUnavailable

sys.path.insert(0, str(Path(__file__).parents[1]))

from private_postgres import PrivatePostgres

PAUSE_S = 3 * LEASE_MS / 1000
IN_FLIGHT = 300
"""Sent right before a fault, so that it hits something."""


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
    slowest_recovery_s: float
    seconds: float

    @property
    def good(self) -> bool:
        return self.count.good and self.stale > 0


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
                    recoveries = [await self._recovery() for _ in range(self._plan.probes)]
                finally:
                    await asyncio.to_thread(self._fleet.stop)
                return Report(
                    count=await count(self._homing, self._folder, self._accepted),
                    stale=_stale(self._folder / "workers.log"),
                    slowest_recovery_s=round(max(recoveries, default=0.0), 2),
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

    async def _recovery(self) -> float:
        """From a kill in the middle of deliveries until all of them have ended."""
        await self._send(IN_FLIGHT)
        await self._kill()
        began = time.monotonic()
        await settled(self._homing, len(self._accepted))
        return time.monotonic() - began

    async def _send(self, number: int) -> None:
        """A store that is away is a reason to try again, with what was not promised yet."""
        wanted = len(self._accepted) + number
        for _ in range(200):
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
        connection = await asyncpg.connect(self._server.url)
        try:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        finally:
            await connection.close()

    async def _pause(self) -> None:
        await self._send(IN_FLIGHT)
        await asyncio.to_thread(self._fleet.pause_one, self._chance, PAUSE_S)


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
    show(report.count)
    for name in ("stale", "slowest_recovery_s", "seconds"):
        print(f"{name:>18}  {getattr(report, name)}")
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
