"""Three workers on PostgreSQL while everything goes wrong: nothing may be lost.

    python tests/acceptance/chaos_run.py

Workers are killed with `kill -9`, the server is stopped as by a power cut and started again, its connections
are cut, and workers are suspended for three leases, all at random moments while this process goes on sending.
Then every accepted notification must be accounted for, nothing may have been sent more often than it was
attempted, and what a suspended worker wanted to settle too late must have been refused. At last the time to
recover is measured, for each kind of fault: from when the fault is over until all that was under way has ended.
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
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from fleet import LEASE_MS, Count, Fleet, count, send_some, settled, show
from msgspec import Struct

from homing import Homing
from homing.core.errors import StoreUnavailable

sys.path.insert(0, str(Path(__file__).parents[1]))

from private_postgres import PrivatePostgres

PAUSE_S = 3 * LEASE_MS / 1000
RECOVERY_S = 2 * LEASE_MS / 1000
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
        """From a fault in the middle of deliveries until all of them have ended, the slowest of each kind."""
        slowest: dict[str, float] = {}
        for _ in range(self._plan.probes):
            for name, fault in (("kill", self._kill_busy), ("cut", self._cut), ("restart", self._restart)):
                sending = asyncio.create_task(self._send(IN_FLIGHT))
                await self._until_busy()
                await fault()
                began = time.monotonic()
                await sending
                await settled(self._homing, len(self._accepted))
                slowest[name] = max(slowest.get(name, 0.0), round(time.monotonic() - began, 2))
        return slowest

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
        async with self._caught_busy():
            await asyncio.sleep(PAUSE_S)

    async def _kill_busy(self) -> None:
        async with self._caught_busy() as worker:
            pass
        await asyncio.to_thread(self._fleet.kill, worker)

    async def _until_busy(self) -> None:
        while not await self._under_way("%"):
            await asyncio.sleep(0.005)

    @asynccontextmanager
    async def _caught_busy(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        """A suspended worker that has deliveries under way."""
        for _ in range(200):
            sending = asyncio.create_task(self._send(IN_FLIGHT // 10))
            await self._until_busy()
            with self._fleet.suspended(self._chance) as worker:
                await sending
                if await self._under_way(f"%:{worker.pid}"):
                    yield worker
                    return
        raise AssertionError("no worker is ever busy")

    async def _under_way(self, worker: str) -> int:
        connection = await asyncpg.connect(self._server.url)
        try:
            found = "SELECT count(*) FROM homing.live WHERE status = 'sending' AND worker LIKE $1"
            number: int = await connection.fetchval(found, worker)
            return number
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
