"""Measures the PostgreSQL store: rates, bytes per notification, and the cost of a backlog or an old snapshot.

    python bench/postgres_store.py postgresql://postgres@127.0.0.1/postgres
    python bench/postgres_store.py URL --rows 5000000 --only buffers

It creates temporary databases (`homing_bench_…`) and drops them. Only ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from homing.core.ids import uuid7
from homing.core.lifecycle.claims import Claim, ClaimRequest, LaneCapacity, NewNotification, Submission
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.notifications import (
    Channel,
    Content,
    Message,
    Mode,
    OutcomeKind,
    Priority,
    Recipient,
    Status,
)
from homing.stores.postgres import PostgresStore, claim, leases
from homing.stores.postgres.session_settings import build_session_settings
from homing.stores.postgres.transaction_limits import DEFAULT_LIMITS

DAY_MS = 86_400_000
LANE = "standard.email"
MESSAGE = Message(
    recipient=Recipient(id="u-1", email="ada@example.com"),
    content=Content(subject="Your order is on its way", text="x" * 300),
)
SETTINGS = build_session_settings(DEFAULT_LIMITS, 0).for_transaction
_SIZES = """
SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class AS c
WHERE c.relnamespace = 'homing'::regnamespace AND c.relkind = 'r' ORDER BY 2 DESC
"""


def a_submission(size: int, number: int, send_at: int | None = None) -> Submission:
    now = time.time_ns() // 1_000_000
    return Submission(
        tenant="default",
        batch_id=uuid7(now, int.from_bytes(os.urandom(9), "big")),
        notifications=tuple(
            NewNotification(
                id=uuid7(now, int.from_bytes(os.urandom(9), "big")),
                channel=Channel.EMAIL,
                mode=Mode.STANDARD,
                lane=LANE,
                type="order",
                category="transactional",
                priority=Priority.MEDIUM,
                origin="api",
                provider="sendgrid",
                outlet="sendgrid",
                address=f"user-{number}-{position}@example.com",
                message=MESSAGE,
                send_at=send_at,
                max_age_ms=DAY_MS,
            )
            for position in range(size)
        ),
    )


def a_request(slots: int) -> ClaimRequest:
    capacity = LaneCapacity(slots=slots)
    return ClaimRequest(worker="host:4711", lease_ms=30_000, lanes={LANE: capacity}, outlet_slots=slots)


def sent(claim: Claim) -> Settlement:
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=Status.SENT,
        attempt=AttemptRecord(
            number=claim.attempt,
            provider=claim.provider,
            outcome=OutcomeKind.ACCEPTED,
            started_at=claim.started_at,
            latency_ms=120,
            worker=claim.worker,
            provider_message_id=f"sg-{claim.id}",
        ),
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=DAY_MS,
    )


@asynccontextmanager
async def fresh(server: str, name: str) -> AsyncIterator[tuple[PostgresStore, Any]]:
    """Creates a database, yields a store and a connection to it, and drops the database afterwards."""
    database = f"homing_bench_{os.getpid()}_{name}"
    admin = await asyncpg.connect(server)
    await admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
    await admin.execute(f"CREATE DATABASE {database}")
    url = f"{server.rpartition('/')[0]}/{database}"
    store = PostgresStore(url)
    await store.open()
    await store.migrate()
    connection = await asyncpg.connect(url)
    try:
        yield store, connection
    finally:
        await connection.close()
        await store.close()
        await admin.execute(f"DROP DATABASE {database} WITH (FORCE)")
        await admin.close()


async def accept(store: PostgresStore, rows: int, size: int, send_at: int | None = None) -> float:
    """Returns rows accepted per second, without the time to build the submissions."""
    took = 0.0
    for number in range(rows // size):
        submission = a_submission(size, number, send_at)
        begun = time.perf_counter()
        await store.accept([submission])
        took += time.perf_counter() - begun
    return rows / took


async def deliver(store: PostgresStore, rows: int, size: int) -> tuple[float, float]:
    """Claims and settles `rows` rows. Returns the seconds spent on claims and on settlements."""
    claiming = settling = 0.0
    done = 0
    while done < rows:
        begun = time.perf_counter()
        claims = (await store.claim(a_request(size))).claims
        claimed = time.perf_counter()
        result = await store.settle([sent(claim) for claim in claims])
        settling += time.perf_counter() - claimed
        claiming += claimed - begun
        done += len(result.applied)
        if not claims:
            break
    return claiming, settling


async def rates(server: str, rows: int, size: int) -> None:
    async with fresh(server, "rates") as (store, connection):
        accepted = await accept(store, rows, size)
        claiming, settling = await deliver(store, rows, size)
        print(f"store operations in batches of {size}, {rows:,} rows, one process")
        print(f"  accept {accepted:>10,.0f} rows/s")
        print(f"  claim  {rows / claiming:>10,.0f} rows/s")
        print(f"  settle {rows / settling:>10,.0f} rows/s")
        print(f"  both   {rows / (claiming + settling):>10,.0f} rows/s")
        waiting = [a_submission(1, number) for number in range(4_000)]

        async def caller() -> None:
            while waiting:
                await store.accept([waiting.pop()])

        begun = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(64)))
        print(f"  accept single rows, 64 callers {4_000 / (time.perf_counter() - begun):>10,.0f} rows/s")
        await deliver(store, 4_000, size)
        await sizes(store, connection, rows + 4_000)


async def sizes(store: PostgresStore, connection: Any, rows: int) -> None:
    await store.reclaim("bench", 1, 1_000)
    await connection.execute("VACUUM ANALYZE")
    found = await connection.fetch(_SIZES)
    total = sum(size for _, size in found)
    print(f"bytes per settled notification, all tables and indexes, after VACUUM: {total / rows:,.0f}")
    for name, size in found:
        if size / rows >= 1:
            print(f"  {name:<16} {size / rows:>8,.0f}")


async def buffers(server: str, backlogs: Sequence[int], batch: int) -> None:
    print(f"buffers touched per claimed row, by a claim of {batch}")
    first = 0.0
    for backlog in backlogs:
        async with fresh(server, f"backlog_{backlog}") as (store, connection):
            await accept(store, backlog, min(backlog, 5_000))
            await connection.execute("VACUUM ANALYZE")
            touched, plans = await explained(connection, batch)
            first = first or touched
            print(f"  {backlog:>10,} waiting: {touched:>7.2f} per row, {touched / first:.2f} times the first")
            if backlog == backlogs[-1]:
                for name, plan in plans.items():
                    print(f"  {name}")
                    print("\n".join(f"    {line}" for line in lines_of(plan)))


async def explained(connection: Any, batch: int) -> tuple[float, dict[str, Any]]:
    """Explains the statements of a claim and rolls them back. Returns the buffers per row and the plans."""
    now = time.time_ns() // 1_000_000 + 60_000
    plans: dict[str, Any] = {}
    await connection.execute(f"BEGIN; {SETTINGS}")
    queue = await connection.fetchval("SELECT id FROM homing.queues")
    seqs = await connection.fetch("SELECT seq FROM homing.live ORDER BY due_at, seq LIMIT $1", batch)
    shape, leased = leases.LEASE.fitted([(seq, now, now, 1, 1, 1, now, False, "") for (seq,) in seqs])
    for name, sql, parameters in (
        ("sweep", claim.SWEEP, ()),
        ("due rows", claim.DUE_ROWS, ([queue], [0], [-1], now, batch)),
        ("lease", leases.LEASE.in_shape(shape), leased),
    ):
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"
        plans[name] = json.loads(await connection.fetchval(explain, *parameters))[0]["Plan"]
    await connection.execute("ROLLBACK")
    touched = sum(p["Shared Hit Blocks"] + p["Shared Read Blocks"] for p in plans.values())
    return touched / batch, plans


def lines_of(plan: dict[str, Any], depth: int = 0) -> list[str]:
    what = " ".join(str(plan[key]) for key in ("Node Type", "Index Name", "Index Cond") if key in plan)
    found = [f"{'  ' * depth}{what} (rows {plan['Actual Rows']} × {plan['Actual Loops']})"]
    for part in plan.get("Plans", ()):
        found += lines_of(part, depth + 1)
    return found


async def snapshot(server: str, rows: int, size: int) -> None:
    """Measures throughput while an old snapshot is open, compared with a database without one.

    Prints each quarter of the run. The two databases alternate, so that other load affects both.
    """
    async with fresh(server, "held") as (held, connection), fresh(server, "free") as (free, _):
        for store in (held, free):
            await window(store, size)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT count(*) FROM homing.live")
        windows = [(await window(held, size), await window(free, size)) for _ in range(rows // (10 * size))]
        await connection.execute("COMMIT")
        await connection.execute("VACUUM homing.live")
        after = [(await window(held, size), await window(free, size)) for _ in range(10)]
    quarter = len(windows) // 4
    print(f"an old snapshot is open while {rows:,} notifications are delivered: rows/s, median of windows")
    print(f"  {'':<12} {'held open':>10} {'without':>10} {'ratio':>6}")
    for number in range(4):
        print_ratio(f"quarter {number + 1}", windows[number * quarter : (number + 1) * quarter])
    print_ratio("closed", after)


def print_ratio(name: str, windows: Sequence[tuple[float, float]]) -> None:
    held, free = (statistics.median(column) for column in zip(*windows, strict=True))
    ratio = statistics.median(one / other for one, other in windows)
    print(f"  {name:<12} {held:>10,.0f} {free:>10,.0f} {ratio:>6.2f}")


async def window(store: PostgresStore, size: int) -> float:
    """Accepts and delivers ten batches one after the other and returns rows per second."""
    begun = time.perf_counter()
    for _ in range(10):
        await accept(store, size, size)
        await deliver(store, size, size)
    return 10 * size / (time.perf_counter() - begun)


async def run(options: argparse.Namespace) -> None:
    connection = await asyncpg.connect(options.url)
    print(f"PostgreSQL {await connection.fetchval('SHOW server_version')}")
    await connection.close()
    if options.only in (None, "rates"):
        await rates(options.url, options.settled, options.batch)
    if options.only in (None, "buffers"):
        await buffers(options.url, [10_000, options.rows], options.batch)
    if options.only in (None, "snapshot"):
        await snapshot(options.url, options.passing, options.batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "url",
        nargs="?",
        default="postgresql://postgres@127.0.0.1:5432/postgres",
        help="URL of a server that allows creating databases",
    )
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--settled", type=int, default=100_000, help="rows for rates and sizes")
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the large backlog")
    parser.add_argument(
        "--passing", type=int, default=200_000, help="rows delivered while an old snapshot is open"
    )
    parser.add_argument("--only", choices=["rates", "buffers", "snapshot"])
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
