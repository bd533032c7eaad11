"""Query plans of the hot statements: each uses an index, and none scans a table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homing.core.notifications import Filter, Status
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.query_plans import hot_statements
from homing.stores.sqlite.reads import build_filter_query
from homing.stores.sqlite.statements import SqliteTransaction
from homing.testing.builders import a_notification, a_submission, sent
from homing.testing.store_suite.harness import accept_one, claim_all

_HARMLESS = re.compile(
    r"SCAN (CONSTANT ROW|\d+ CONSTANT ROWS|\(subquery-\d+\)|(j|q|lanes|json_each) VIRTUAL TABLE|new$|q$)"
)

_READS_ALL_SINKS = {"accept: last seq, repeated ids"}
"""Statements that read all registered sinks, of which there are a few."""


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    connection = sqlite3.connect(tmp_path / "homing.db")
    yield connection
    connection.close()
    await store.close()


def plan_of(connection: sqlite3.Connection, sql: str, parameters: int | None = None) -> list[str]:
    if parameters is None:
        numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
        parameters = max(numbered) if numbered else sql.count("?")
    return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * parameters)]


@pytest.mark.parametrize("name", hot_statements())
async def test_a_hot_statement_scans_nothing(name: str, connection: sqlite3.Connection) -> None:
    plan = plan_of(connection, hot_statements()[name])
    assert plan
    scans = [line for line in plan if line.startswith("SCAN") and not _HARMLESS.match(line)]
    assert scans == (["SCAN homing_sinks"] if name in _READS_ALL_SINKS else [])
    whole_hours = [line for line in plan if line.endswith("USING PRIMARY KEY (hour_at=?)")]
    assert not whole_hours, "an hour has a row for each tenant, channel and provider"


async def test_the_check_would_notice_a_scan(connection: sqlite3.Connection) -> None:
    plan = plan_of(connection, "SELECT * FROM homing_notifications WHERE worker = ?")
    assert [line for line in plan if line.startswith("SCAN") and not _HARMLESS.match(line)] != []


@pytest.mark.parametrize(
    ("filter", "index"),
    [
        (Filter(), "homing_tenant (tenant=?)"),
        (Filter(statuses=(Status.SENT,)), "homing_tenant (tenant=?)"),
        (Filter(statuses=(Status.FAILED,)), "homing_rare (tenant=? AND status=?)"),
        (Filter(statuses=(Status.FAILED, Status.EXPIRED)), "homing_rare (tenant=? AND status=?)"),
        (Filter(batch_id="b"), "homing_batch (batch_id=?)"),
        (Filter(batch_id="b", statuses=(Status.FAILED,)), "homing_batch (batch_id=?)"),
    ],
)
async def test_a_list_uses_the_most_selective_index(
    filter: Filter, index: str, connection: sqlite3.Connection
) -> None:
    found = build_filter_query(SqliteTransaction(connection.cursor(), 0), "default", filter, filter.statuses)
    sql = f"SELECT n.seq {found.text} ORDER BY n.id DESC LIMIT 50"
    plan = plan_of(connection, sql, len(found.parameters))
    assert any(index in line for line in plan), plan


async def test_waiting_rows_are_found_without_reading_all_sent_ones(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "many.db")
    await store.open()
    await store.migrate()
    await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    *well, in_flight = await claim_all(store)
    await store.settle([sent(claim) for claim in well])
    waiting = await accept_one(store)
    await accept_one(store, tenant="another")
    wanted = Filter(statuses=(Status.PENDING, Status.SENDING, Status.FAILED))
    page = await store.list("default", wanted)
    assert [item.id for item in page.items] == [waiting, in_flight.id]
    connection = sqlite3.connect(tmp_path / "many.db")
    found = build_filter_query(SqliteTransaction(connection.cursor(), 0), "default", wanted, wanted.statuses)
    assert "homing_due" in found.text
    connection.close()
    await store.close()
