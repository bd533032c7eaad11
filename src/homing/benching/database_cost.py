"""Measures what one notification costs the database, from accept to settle, in a small and a large store.

The client counts statements. The server counts pages and write-ahead log, so nothing else may use the server
during the measurement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from homing import compose
from homing.benching import InvalidMeasurement
from homing.benching.delivery_rate import SETTLED_WITHIN_S, check_sink
from homing.benching.report import Figure
from homing.benching.scratch_store import ScratchStore, connect_postgres, open_scratch_store
from homing.benching.worker_processes import ProcessSlot, WorkerProcesses, run_async, run_homing_worker
from homing.benching.workload import (
    BenchContext,
    BenchPlan,
    accept_all,
    build_request,
    build_requests,
    check_store,
)
from homing.core.lifecycle.claims import Claim, ClaimRequest, LaneCapacity
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.notifications import OutcomeKind, Status
from homing.library import Homing
from homing.settings import Settings

_LANE = "standard.webhook"

_BATCH = 500

_DAY_MS = 86_400_000

_MOST_GROWTH = 1.2

_COSTS = ("statements", "pages", "wal")

_UNIT = {"statements": "", "pages": "", "wal": "bytes"}

_LABELS = {
    "statements": "statements per notification",
    "pages": "pages touched per notification",
    "wal": "write-ahead log per notification, without full pages",
}


class NotificationCost(Struct, frozen=True, kw_only=True):
    """Average cost of one notification. `wal` is in bytes."""

    statements: float
    pages: float
    wal: float


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return len(plan.costs) * (1 + plan.rounds) if postgres else 0


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures the costs in stores of different sizes, each with half of its notifications settled."""
    sizes = stage.plan.costs if stage.postgres else ()
    async with AsyncExitStack() as stack:
        rounds_by_size: dict[str, Callable[[], Awaitable[NotificationCost]]] = {}
        for size in sizes:
            stage.step(f"costs: filling the store with {size:,}")
            place = await stack.enter_async_context(_filled(stage, size))
            rounds_by_size[f"{size:,} in the store"] = _one_round(stage, place, size)
        found = await stage.run_alternating("costs", rounds_by_size)
        for figure in _figures(stage, found):
            yield figure


def _figures(stage: BenchContext, found: dict[str, tuple[NotificationCost, ...]]) -> list[Figure]:
    """Returns one figure per kind of cost and store size, compared with the smallest store."""
    smallest = next(iter(found), "")
    return [
        Figure(
            part="costs",
            name=f"{_LABELS[cost]}, {where}",
            store=stage.store,
            unit=_UNIT[cost],
            rounds=tuple(getattr(one, cost) for one in rounds),
            beside="" if where == smallest else f"{_LABELS[cost]}, {smallest}",
            at_most=None if where == smallest else _MOST_GROWTH,
        )
        for cost in _COSTS
        for where, rounds in found.items()
    ]


# Filling a store --------------------------------------------------------------------------------


@asynccontextmanager
async def _filled(stage: BenchContext, size: int) -> AsyncIterator[ScratchStore]:
    async with open_scratch_store(stage.server) as place:
        with WorkerProcesses(_fill, (place.settings(), size, stage.sink.url), 1) as workers:
            workers.begin()
            await workers.finish(size, SETTLED_WITHIN_S + size / 1000)
        await place.rested()
        async with connect_postgres(place.store) as connection:
            for (table,) in await connection.fetch(_TABLES):
                # A vacuum during the measurement would be counted as part of it.
                await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        yield place


_TABLES = """
SELECT c.oid::regclass::text FROM pg_class AS c
WHERE c.relnamespace = 'homing'::regnamespace AND c.relkind = 'r'
"""


def _fill(post: ProcessSlot, what: tuple[Settings, int, str]) -> None:
    settings, size, url = what

    async def work() -> None:
        await post.begin()
        half = size // 2
        far = datetime.now(UTC) + timedelta(days=30)
        later = (build_request(number, url, send_at=far) for number in range(half, size))
        async with Homing(loaded_settings=settings) as homing:
            await accept_all(homing, chain(build_requests(half, url), later))
        await _settle(settings, half)
        post.note(size, 0)
        await post.end()

    run_async(work())


async def _settle(settings: Settings, count: int) -> None:
    """Claims and settles rows without sending, because only the stored rows matter."""
    store = compose.build_store(settings.store)
    await store.open()
    try:
        capacity = LaneCapacity(slots=_BATCH)
        wanted = ClaimRequest(worker="fill", lease_ms=60_000, lanes={_LANE: capacity}, outlet_slots=_BATCH)
        settled = 0
        while claims := (await store.claim(wanted)).claims:
            settled += len((await store.settle([_delivered(claim) for claim in claims])).applied)
        if settled != count:
            raise InvalidMeasurement(f"{count:,} notifications were due, but {settled:,} were settled")
    finally:
        await store.close()


def _delivered(claim: Claim) -> Settlement:
    record = AttemptRecord(
        number=claim.attempt,
        provider=claim.provider,
        outcome=OutcomeKind.ACCEPTED,
        started_at=claim.started_at,
        latency_ms=20,
        worker=claim.worker,
    )
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=Status.DELIVERED,
        attempt=record,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=_DAY_MS,
    )


# Measuring ----------------------------------------------------------------------------------------


def _one_round(
    stage: BenchContext, place: ScratchStore, size: int
) -> Callable[[], Awaitable[NotificationCost]]:
    count = min(stage.plan.deliveries, 5_000)
    done = 0

    async def one() -> NotificationCost:
        nonlocal done
        await _deliver_counted(stage, place, count)  # warm-up: writes the full pages that follow a checkpoint
        before = await _read_counters(place)
        statements = await _deliver_counted(stage, place, count)
        after = await _read_counters(place)
        done += 2 * count
        async with Homing(loaded_settings=place.settings()) as homing:
            await check_store(homing, place, delivered=size // 2 + done, pending=size - size // 2)
        return NotificationCost(
            statements=statements / count,
            pages=(after.pages - before.pages) / count,
            wal=await _wal_bytes(place, before.lsn, after.lsn) / count,
        )

    return one


async def _deliver_counted(stage: BenchContext, place: ScratchStore, count: int) -> int:
    """Accepts and delivers `count` notifications in one process and returns the number of statements."""
    stage.sink.reset()
    with WorkerProcesses(_counted_worker, (place.settings(), count, stage.sink.url), 1) as workers:
        workers.begin()
        await workers.finish(count, SETTLED_WITHIN_S)
        statements = workers.attempts
    check_sink(stage.sink, count)
    return statements


def _counted_worker(post: ProcessSlot, what: tuple[Settings, int, str]) -> None:
    """Accepts and delivers notifications. Reports the number of SQL statements in place of attempts."""
    import asyncpg

    settings, count, url = what
    seen = 0
    as_made = asyncpg.Connection.__init__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        def note(record: Any) -> None:
            nonlocal seen
            seen += 1

        as_made(self, *args, **kwargs)
        self.add_query_logger(note)

    asyncpg.Connection.__init__ = counting  # type: ignore[method-assign]

    class Counted(ProcessSlot, frozen=True):
        def note(self, ended: int, attempts: int) -> None:
            nonlocal seen
            super().note(ended, seen)
            seen = 0

    async def first() -> None:
        async with Homing(loaded_settings=settings) as homing:
            await accept_all(homing, build_requests(count, url))

    run_async(first())
    run_homing_worker(Counted(*msgspec.structs.astuple(post)), settings)


class _Counts(Struct, frozen=True):
    pages: int
    lsn: int


async def _read_counters(place: ScratchStore) -> _Counts:
    """Returns the counts of pages and of log bytes, after waiting until the page count stops changing."""
    async with connect_postgres(place.store) as connection:
        pages = -1
        while True:
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            now = int(await connection.fetchval(_PAGES))
            if now - pages < _SETTLED_PAGES:
                return _Counts(now, int(await connection.fetchval("SELECT pg_current_wal_insert_lsn()")))
            pages = now
            await asyncio.sleep(0.5)


_PAGES = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"

_SETTLED_PAGES = 500
"""A smaller increase of the page count is caused by reading the counters."""

_WAL_WITHOUT_PAGES = "SELECT sum(record_size)::bigint FROM pg_get_wal_stats($1::pg_lsn, $2::pg_lsn)"


async def _wal_bytes(place: ScratchStore, start: int, end: int) -> float:
    """Returns the bytes of write-ahead log between two positions.

    Full-page images are included only if pg_walinspect is not available.
    """
    import asyncpg

    async with connect_postgres(place.store) as connection:
        try:
            await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            return float(await connection.fetchval(_WAL_WITHOUT_PAGES, start, end))
        except asyncpg.PostgresError:
            return float(end - start)
