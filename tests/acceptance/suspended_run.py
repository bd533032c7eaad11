"""Suspends workers inside their transactions on PostgreSQL: nothing else may wait longer than a lease.

    python tests/acceptance/suspended_run.py --lease-s 40

Each of 20 workers is suspended at a moment when it provably holds locks: the server waits for its next
statement. All of them stay suspended for three leases. Meanwhile two other workers go on, and this process
keeps sending. The longest waits are measured: of a request until it is accepted, of a due notification until
it is claimed, and of an expired lease until it is reclaimed. Everything that was accepted must have been
delivered before the workers are resumed. They must go on afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import asyncpg
from msgspec import Struct, field

from homing import Homing
from homing.core.errors import StoreUnavailable

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.private_postgres import PrivatePostgres
from support.worker_fleet import (
    DeliveryCount,
    Fleet,
    count,
    ports_of,
    send_some,
    settled,
    show,
    suspend_inside_transaction,
)

# Every change of a live row takes so long that a worker is often inside a transaction.
_SLOW_CHANGES = """
CREATE TABLE public.pause (seconds float8);
INSERT INTO public.pause VALUES (0);
CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_sleep(seconds) FROM public.pause; RETURN NULL; END';
CREATE TRIGGER pause AFTER UPDATE OR DELETE ON homing.live FOR EACH STATEMENT EXECUTE FUNCTION public.pause()
"""
_PAUSE_S = 0.2
_CHANGES_A_ROW = "SELECT client_port FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
_LATEST = """
SELECT coalesce(max(homing.now_ms() - due_at) FILTER (WHERE lease_until IS NULL), 0),
       coalesce(max(homing.now_ms() - lease_until), 0)
FROM homing.live
"""
_EVERY_S = 0.05
_POLL_MS = 1_000
"""Without LISTEN, a worker polls five times as often. Many workers that poll more often need all CPUs."""
_PATIENCE_S = 120


class Plan(Struct, frozen=True, kw_only=True):
    """The size of a run."""

    suspended: int = 20
    others: int = 2
    lease_s: int = 8
    """Length of the leases. All workers stay suspended for three of them."""


class Report(Struct, kw_only=True):
    """The result of a run."""

    count: DeliveryCount
    suspended: int
    """Workers that were suspended inside a transaction at the same time."""
    statements: dict[str, int]
    """Their last statements, with the number of workers."""
    delivered_meanwhile: bool
    """True if everything was delivered while they were suspended."""
    alive: int
    """Workers that go on after they were resumed."""
    longest_accept_s: float = 0.0
    longest_due_s: float = 0.0
    """How long a due notification waited until it was claimed."""
    longest_expired_s: float = 0.0
    """How long an expired lease waited until it was reclaimed."""
    tracebacks: int = 0
    """Unexpected errors in the workers' log."""

    def good(self, plan: Plan) -> bool:
        """Returns True if nothing was lost and nothing stopped. The waits are not judged here."""
        complete = self.suspended == plan.suspended and self.alive == plan.suspended + plan.others
        return self.count.good and complete and self.delivered_meanwhile and not self.tracebacks


class Waits(Struct):
    """The longest waits of one run."""

    accept_s: float = 0.0
    due_s: float = 0.0
    expired_s: float = 0.0
    accepted: list[str] = field(default_factory=list)


async def run(folder: Path, plan: Plan, seed: int) -> Report:
    """Runs once. The workers are killed at the end if one of them hangs."""
    chance = random.Random(seed)
    connections = 6 * (plan.suspended + plan.others) + 40
    with PrivatePostgres(options={"max_connections": str(connections)}) as server:
        fleet = Fleet(
            folder,
            f"{server.url}?pool_size=4&listen=false",
            workers=plan.suspended + plan.others,
            lease_ms=1000 * plan.lease_s,
            poll_ms=_POLL_MS,
        )
        connection = await asyncpg.connect(server.url)
        async with Homing(config_file=fleet.config) as homing:
            await connection.execute(_SLOW_CHANGES)
            fleet.start()
            try:
                return await _run(homing, fleet, connection, plan, chance, folder, server.url)
            finally:
                await asyncio.to_thread(fleet.stop)
                await connection.close()


async def _run(
    homing: Homing,
    fleet: Fleet,
    connection: asyncpg.Connection[asyncpg.Record],
    plan: Plan,
    chance: random.Random,
    folder: Path,
    url: str,
) -> Report:
    waits, flows = Waits(), asyncio.Event()
    flows.set()
    await send_some(homing, 10 * len(fleet.workers), waits.accepted)
    await settled(homing, len(waits.accepted))
    sending = asyncio.create_task(_send(homing, waits, flows))
    await connection.execute("UPDATE public.pause SET seconds = $1", _PAUSE_S)
    watching = asyncio.create_task(_watch(url, waits))
    statements = await _suspend(fleet, connection, plan.suspended, chance)
    suspended = [worker for worker in fleet.workers if _is_stopped(worker.pid)]
    await connection.execute("UPDATE public.pause SET seconds = 0")
    await asyncio.sleep(3 * plan.lease_s)
    flows.clear()
    await sending
    meanwhile = await settled(homing, len(waits.accepted), within_s=_PATIENCE_S)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    for worker in suspended:
        worker.send_signal(signal.SIGCONT)
    await send_some(homing, 10 * len(fleet.workers), waits.accepted)
    await settled(homing, len(waits.accepted))
    await asyncio.sleep(1)
    return Report(
        count=await count(homing, folder, waits.accepted),
        suspended=len(suspended),
        statements=statements,
        delivered_meanwhile=meanwhile,
        alive=sum(worker.poll() is None for worker in fleet.workers),
        longest_accept_s=round(waits.accept_s, 2),
        longest_due_s=round(waits.due_s, 2),
        longest_expired_s=round(waits.expired_s, 2),
        tracebacks=(folder / "workers.log").read_text().count("Traceback"),
    )


async def _suspend(
    fleet: Fleet, connection: asyncpg.Connection[asyncpg.Record], number: int, chance: random.Random
) -> dict[str, int]:
    """Suspends workers, each inside a transaction, and returns their last statements."""
    left, statements = list(fleet.workers), Counter[str]()
    async with asyncio.timeout(_PATIENCE_S):
        while sum(statements.values()) < number:
            ports = {port for (port,) in await connection.fetch(_CHANGES_A_ROW)}
            changing = [worker for worker in left if ports.intersection(ports_of(worker.pid))]
            if not changing:
                await asyncio.sleep(_PAUSE_S / 10)
                continue
            worker = chance.choice(changing)
            statement = await suspend_inside_transaction(worker, connection)
            if statement is not None:
                left.remove(worker)
                statements[" ".join(statement.split())[:60]] += 1
    return dict(statements)


async def _send(homing: Homing, waits: Waits, flows: asyncio.Event) -> None:
    """Sends all the time."""
    while flows.is_set():
        began, wanted = time.monotonic(), len(waits.accepted) + 2
        while len(waits.accepted) < wanted:
            with suppress(StoreUnavailable):
                await send_some(homing, wanted - len(waits.accepted), waits.accepted)
        waits.accept_s = max(waits.accept_s, time.monotonic() - began)
        await asyncio.sleep(0.02)


async def _watch(url: str, waits: Waits) -> None:
    """Looks at the longest waits all the time."""
    connection = await asyncpg.connect(url)
    try:
        while True:
            due_ms, expired_ms = await connection.fetchrow(_LATEST) or (0, 0)
            waits.due_s = max(waits.due_s, due_ms / 1000)
            waits.expired_s = max(waits.expired_s, expired_ms / 1000)
            await asyncio.sleep(_EVERY_S)
    finally:
        await connection.close()


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in ((f, getattr(Plan(), f)) for f in Plan.__struct_fields__):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=17)
    options = vars(parser.parse_args())
    seed = options.pop("seed")
    plan = Plan(**options)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(Path(folder), plan, seed))
    print(f"seed {seed}, {plan}")
    show(report)
    longest_s = max(report.longest_accept_s, report.longest_due_s, report.longest_expired_s)
    good = report.good(plan) and longest_s <= plan.lease_s
    print("nothing waited longer than a lease" if good else "SOMETHING IS WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
