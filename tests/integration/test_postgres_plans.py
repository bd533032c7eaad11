"""Query plans of the hot statements: they use an index, and read only the rows they need."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest

from homing.stores.postgres import PostgresStore, claim, leases
from homing.stores.postgres.query_plans import hot_statements
from homing.stores.postgres.session_settings import build_session_settings
from homing.stores.postgres.transaction_limits import DEFAULT_LIMITS
from homing.testing.builders import a_claim_request, a_notification, a_submission, sent

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
SETTINGS = build_session_settings(DEFAULT_LIMITS, 0).for_transaction


@pytest.fixture
async def connection(store: PostgresStore, postgres_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def old_snapshot(
    store: PostgresStore, postgres_url: str
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Claims one row, and holds it until the end of the test."""
    reader = await asyncpg.connect(postgres_url)

    async def take() -> None:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await reader.fetchval("SELECT count(*) FROM homing.live")

    yield take
    await reader.close()


async def test_no_hot_statement_scans_a_table(store: PostgresStore, connection: Connection) -> None:
    await _accept(store, 1_000)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute(f"BEGIN; {SETTINGS}")
    for name, sql in hot_statements().items():
        plan = await _generic_plan(connection, sql)
        scanned = [node for node in _nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert not scanned, f"{name} scans {[node['Relation Name'] for node in scanned]}"
    await connection.execute("ROLLBACK")


async def test_a_claim_reads_as_much_with_a_long_backlog_as_with_a_short_one(
    store: PostgresStore, connection: Connection
) -> None:
    touched = []
    for further in (1_000, 19_000):
        await _accept(store, further)
        await connection.execute("VACUUM ANALYZE")
        touched.append(await _touched_by_a_claim(store, connection, 200))
    assert touched[1] <= 1.5 * touched[0]


async def test_rows_kept_by_an_old_snapshot_are_not_read_by_every_claim(
    store: PostgresStore, connection: Connection, old_snapshot: Callable[[], Awaitable[None]]
) -> None:
    await _accept(store, 6_000)
    await old_snapshot()
    for _ in range(11):
        claims = (await store.claim(a_claim_request(slots=500))).claims
        assert len((await store.settle([sent(claim) for claim in claims])).applied) == 500
    now, queue = await store.now_ms(), await connection.fetchval("SELECT id FROM homing.queues")
    first = await connection.fetchval("SELECT min(due_at) FROM homing.live")
    from_start = await _touched(connection, claim.SWEEP)
    from_mark = await _touched(connection, claim.FIRST_DUE, [queue], [first], now)
    assert from_start > 100  # the dead rows are still there
    assert from_mark < from_start / 5


async def _accept(store: PostgresStore, rows: int) -> None:
    for _ in range(rows // 1_000):
        await store.accept([a_submission(*(a_notification() for _ in range(1_000)))])


async def _touched_by_a_claim(store: PostgresStore, connection: Connection, batch: int) -> int:
    now, queue = await store.now_ms(), await connection.fetchval("SELECT id FROM homing.queues")
    seqs = await connection.fetch("SELECT seq FROM homing.live ORDER BY due_at, seq LIMIT $1", batch)
    values = {"bigint": now, "integer": 1, "boolean": False, "text": ""}
    _, *others = leases.LEASE.columns.values()
    shape, leased = leases.LEASE.fitted([(seq, *(values[kind] for kind in others)) for (seq,) in seqs])
    return (
        await _touched(connection, claim.SWEEP)
        + await _touched(connection, claim.DUE_ROWS, [queue], [0], [-1], now, batch)
        + await _touched(connection, leases.LEASE.in_shape(shape), *leased)
    )


async def _touched(connection: Connection, sql: str, *parameters: Any) -> int:
    """Returns the buffers read, in a transaction that is rolled back."""
    await connection.execute(f"BEGIN; {SETTINGS}")
    explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *parameters)
    await connection.execute("ROLLBACK")
    plan: dict[str, int] = json.loads(explained)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def _generic_plan(connection: Connection, sql: str) -> dict[str, Any]:
    await connection.execute(f"PREPARE hot AS {sql}")
    parameters = await connection.fetchval(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'hot'"
    )
    nulls = ", ".join(["NULL"] * parameters)
    explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot{f'({nulls})' if nulls else ''}")
    await connection.execute("DEALLOCATE hot")
    plan: dict[str, Any] = json.loads(explained)[0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
