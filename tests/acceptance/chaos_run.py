"""Runs three workers on PostgreSQL or MongoDB during many faults: nothing may be lost.

    python tests/acceptance/chaos_run.py
    python tests/acceptance/chaos_run.py --store mongodb

Workers are killed with `kill -9`, the server is stopped as by a power cut and started again, its connections
are cut, and workers are suspended for three leases, all at random moments while this process keeps sending.
Some of them are suspended inside a transaction, when they hold locks that others need. MongoDB is a replica
set of three: a cut makes its primary step down, and a restart kills its primary. It ends the transaction of
a suspended worker after some seconds instead of a minute, which is the server's default. Afterwards every
accepted notification must be accounted for, nothing may have been sent more often than it was attempted, and
late settlements of suspended workers must have been refused. Finally the recovery time is measured for each
kind of fault: from its end until every attempt in flight has ended or was declared lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol, Self

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from homing import Homing
from homing.core.errors import StoreUnavailable

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.mongo_server import PrivateMongo
from support.private_postgres import PrivatePostgres
from support.worker_fleet import (
    LEASE_MS,
    DeliveryCount,
    Fleet,
    count,
    ports_of,
    send_some,
    settled,
    show,
    suspend_inside_transaction,
)

PAUSE_S = 3 * LEASE_MS / 1000
Attempts = list[tuple[object, int]]
"""Attempts in flight: notification and number of attempts."""
UNDER_WAY = "SELECT seq, attempts FROM homing.live WHERE status = 'sending' AND worker LIKE $1"
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
PATIENCE_S = 300.0
"""Longer than a breaker stays open, and longer than all workers need to restart."""
TRANSACTION_S = 5
"""MongoDB ends the transaction of a suspended worker after this time. Until then its rows are locked."""
IN_FLIGHT = 60
"""Number of notifications sent together before a fault, so that it hits some in flight."""


class Plan(Struct, frozen=True, kw_only=True):
    """The number of faults of each kind."""

    kills: int = 100
    restarts: int = 20
    cuts: int = 20
    pauses: int = 5
    freezes: int = 5
    """Suspensions inside a transaction."""
    probes: int = 5
    notifications: int = 6000


class ChaosServer(Protocol):
    """A database server that can be disturbed."""

    recovery_s: float
    """Longest time from the end of a fault until every attempt in flight has ended."""

    @property
    def url(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    async def restart(self) -> None:
        """Kills the server and starts it again."""

    async def cut(self) -> None:
        """Cuts the connections of all clients."""

    async def under_way(self, pid: int | None = None) -> Attempts:
        """Returns the attempts in flight, of one worker or of all."""

    async def suspend_inside_transaction(self, worker: subprocess.Popen[bytes]) -> bool:
        """Suspends a worker if it is inside a transaction that has written something."""


class ChaosPostgres:
    """One PostgreSQL server."""

    recovery_s = 2 * LEASE_MS / 1000

    def __init__(self) -> None:
        self._server = PrivatePostgres()

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._server.start)

    async def cut(self) -> None:
        await self._query(CUT)

    async def under_way(self, pid: int | None = None) -> Attempts:
        found = await self._query(UNDER_WAY, "%" if pid is None else f"%:{pid}")
        return [(row["seq"], row["attempts"]) for row in found]

    async def suspend_inside_transaction(self, worker: subprocess.Popen[bytes]) -> bool:
        connection = await asyncpg.connect(self._server.url)
        try:
            return await suspend_inside_transaction(worker, connection) is not None
        finally:
            await connection.close()

    async def _query(self, sql: str, *parameters: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._server.url)
        try:
            return list(await connection.fetch(sql, *parameters))
        finally:
            await connection.close()


class ChaosMongo:
    """A replica set of three. A fault ends with an election, which takes seconds."""

    recovery_s = 15.0

    def __init__(self) -> None:
        self._server = PrivateMongo(3, parameters=(f"transactionLifetimeLimitSeconds={TRANSACTION_S}",))

    @property
    def url(self) -> str:
        return self._server.database_url("chaos")

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    async def restart(self) -> None:
        primary = await asyncio.to_thread(self._server.primary)
        primary.end()
        await asyncio.to_thread(primary.start)
        await asyncio.to_thread(self._server.wait_for_primary)

    async def cut(self) -> None:
        await asyncio.to_thread(self._server.step_down)

    async def under_way(self, pid: int | None = None) -> Attempts:
        return await asyncio.to_thread(self._under_way, pid)

    async def suspend_inside_transaction(self, worker: subprocess.Popen[bytes]) -> bool:
        worker.send_signal(signal.SIGSTOP)
        if await asyncio.to_thread(self._server.wait_for_end_of_calls, ports_of(worker.pid)):
            return True
        worker.send_signal(signal.SIGCONT)
        return False

    def _under_way(self, pid: int | None) -> Attempts:
        condition = {
            "lease_until": {"$exists": True},
            "worker": {"$regex": "" if pid is None else f":{pid}$"},
        }
        with self._server.client() as client:
            found = client["chaos"]["notifications"].find({**condition, "status": "sending"})
            return [(one["_id"], one["attempts"]) for one in found]


SERVERS: dict[str, Callable[[], ChaosServer]] = {"postgresql": ChaosPostgres, "mongodb": ChaosMongo}


class Report(Struct, kw_only=True):
    """The result of a run."""

    plan: Plan
    count: DeliveryCount
    stale: int
    """Late settlements that were refused."""
    frozen: int
    """Workers that were suspended inside a transaction while everything that was accepted was delivered."""
    recovery_s: dict[str, float]
    """The slowest recovery for each kind of fault, in seconds."""
    recovery_limit_s: float
    seconds: float

    @property
    def good(self) -> bool:
        recovered = max(self.recovery_s.values(), default=0.0) <= self.recovery_limit_s
        frozen = self.frozen == self.plan.freezes
        refused = self.stale > 0 or not self.plan.pauses
        return self.count.good and refused and frozen and recovered


class Chaos:
    """One run with its own server."""

    def __init__(self, folder: Path, plan: Plan, seed: int, server: ChaosServer | None = None) -> None:
        """`server` is PostgreSQL by default."""
        self._folder = folder
        self._server = server or ChaosPostgres()
        self._plan = plan
        self._chance = random.Random(seed)
        self._accepted: list[str] = []
        self._frozen = 0

    async def run(self, show_progress: Callable[[str], None] = lambda line: None) -> Report:
        began = time.monotonic()
        with self._server:
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
                    plan=self._plan,
                    count=await count(self._homing, self._folder, self._accepted),
                    stale=_stale(self._folder / "workers.log"),
                    frozen=self._frozen,
                    recovery_s=recovery_s,
                    recovery_limit_s=self._server.recovery_s,
                    seconds=round(time.monotonic() - began, 1),
                )

    async def _go_wrong(self, show_progress: Callable[[str], None]) -> None:
        plan = self._plan
        faults = [self._kill] * plan.kills + [self._restart] * plan.restarts
        faults += [self._cut] * plan.cuts + [self._pause] * plan.pauses + [self._freeze] * plan.freezes
        self._chance.shuffle(faults)
        for number, fault in enumerate(faults):
            await self._send(plan.notifications // len(faults))
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            await asyncio.to_thread(self._fleet.restart_ended)
            await fault()
            show_progress(f"fault {number + 1}/{len(faults)}, accepted {len(self._accepted)}")

    async def _recoveries(self) -> dict[str, float]:
        """Measures how long attempts in flight take to end after a fault, and keeps the slowest."""
        slowest: dict[str, float] = {}
        faults = {"kill": self._kill_busy, "cut": self._cut_busy, "restart": self._restart_busy}
        for name, fault in list(faults.items()) * self._plan.probes:
            hit = await fault()
            began = time.monotonic()
            while any(attempt in hit for attempt in await self._server.under_way()):
                pass
            slowest[name] = max(slowest.get(name, 0.0), round(time.monotonic() - began, 2))
            await settled(self._homing, len(self._accepted))
        return slowest

    async def _send(self, number: int) -> None:
        """Sends, and repeats the unanswered requests while the store is unavailable."""
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
        await self._server.restart()

    async def _cut(self) -> None:
        await self._server.cut()

    async def _pause(self) -> None:
        """Suspends workers until one settles too late. Others were suspended before or after their sends."""
        log = self._folder / "workers.log"
        refused = _stale(log)
        for _ in range(20):
            async with self._caught_busy():
                await asyncio.sleep(PAUSE_S)
            for _ in range(50):  # before the next fault hits the same worker
                if _stale(log) > refused:
                    return
                await asyncio.sleep(0.1)

    async def _freeze(self) -> None:
        """Suspends a worker inside a transaction. Everything that it has locked is delivered meanwhile."""
        worker = None
        try:
            async with self._traffic(), asyncio.timeout(PATIENCE_S):
                while worker is None:
                    self._fleet.restart_ended()
                    chosen = self._chance.choice(self._fleet.workers)
                    if await self._server.suspend_inside_transaction(chosen):
                        worker = chosen
            await asyncio.sleep(PAUSE_S)
            self._frozen += await settled(self._homing, len(self._accepted), within_s=PATIENCE_S)
        finally:
            if worker is not None:
                worker.send_signal(signal.SIGCONT)

    async def _kill_busy(self) -> Attempts:
        """Kills a worker during its deliveries, and returns those. The next two methods do the same."""
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
        """Waits for attempts in flight and returns them."""
        async with self._traffic():
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                if found := await self._server.under_way():
                    return found
        raise AssertionError("no attempt was ever in flight")

    @asynccontextmanager
    async def _caught_busy(self) -> AsyncIterator[tuple[subprocess.Popen[bytes], Attempts]]:
        """Suspends a worker that has deliveries in flight."""
        async with AsyncExitStack() as meanwhile:
            await meanwhile.enter_async_context(self._traffic())
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                with self._fleet.suspended(self._chance) as worker:
                    if found := await self._server.under_way(worker.pid):
                        await meanwhile.aclose()
                        yield worker, found
                        return
        raise AssertionError("no worker is ever busy")

    @asynccontextmanager
    async def _traffic(self) -> AsyncIterator[None]:
        """Keeps sending meanwhile."""
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


def _stale(log: Path) -> int:
    """Counts the refused settlements in the workers' log."""
    marked = [line for line in log.read_text().splitlines() if "came too late" in line]
    return sum(int(word) for line in marked for word in line.split() if word.isdecimal())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in Plan.__struct_fields__:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--store", choices=SERVERS, default="postgresql")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = vars(parser.parse_args())
    seed, store = options.pop("seed"), options.pop("store")
    plan = replace(Plan(), **{name: value for name, value in options.items() if value is not None})
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), plan, seed, SERVERS[store]())
        report = asyncio.run(chaos.run(lambda line: print(f"\r{line}", end="", file=sys.stderr)))
    print(f"\nseed {seed}")
    show(report)
    print("nothing was lost" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
