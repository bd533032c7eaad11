"""Which errors of a transaction lead to a second try."""

from __future__ import annotations

import pytest
from asyncpg import exceptions

from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.connection import Database, _Use
from homing.stores.postgres.hosts import Origin

URL = "postgresql://ada@127.0.0.1:1/homing"
LOST_STATEMENT = exceptions.InvalidSQLStatementNameError("prepared statement does not exist")
LOST_CONNECTION = exceptions.ConnectionDoesNotExistError("connection was closed")


def a_database(url: str = URL, *, now_ms: int = 0) -> Database:
    return Database(parse_database_url(url), timeout_s=1, steady_clock=lambda: now_ms)


async def test_after_a_lost_statement_later_connections_do_without_them() -> None:
    database = a_database()
    assert await database._may_succeed_again(LOST_STATEMENT, has_cache=True)
    assert database.is_pooled


@pytest.mark.parametrize(("url", "has_cache"), [(URL, False), (f"{URL}?cached_statements=50", True)])
async def test_a_lost_statement_is_an_error_without_a_cache_or_if_the_url_demands_one(
    url: str, has_cache: bool
) -> None:
    database = a_database(url)
    assert not await database._may_succeed_again(LOST_STATEMENT, has_cache=has_cache)
    assert not database.is_pooled


@pytest.mark.parametrize(
    ("error", "silent_ms", "ended"),
    [
        (LOST_CONNECTION, 60_000, True),
        (LOST_CONNECTION, 100, False),
        (exceptions.UniqueViolationError("duplicate key"), 60_000, False),
        (TimeoutError(), 60_000, False),
    ],
)
def test_the_server_has_ended_a_transaction_only_if_the_connection_is_lost_after_a_long_silence(
    error: Exception, silent_ms: int, ended: bool
) -> None:
    assert a_database(now_ms=silent_ms)._has_ended(error, 0) is ended


SILENT = TimeoutError()
FENCED = exceptions.ReadOnlySQLTransactionError("read-only")
LONG_AGO_S, NOW_S = 1_000.0, 5_000.0


@pytest.mark.parametrize(
    ("error", "connected_at", "read_only", "leaves", "again"),
    [
        (SILENT, LONG_AGO_S, False, True, False),
        (FENCED, LONG_AGO_S, False, True, True),
        (FENCED, LONG_AGO_S, True, False, False),
        (
            FENCED,
            NOW_S,
            False,
            False,
            False,
        ),  # a new connection to the only server would find it fenced again
        (LOST_CONNECTION, LONG_AGO_S, False, False, False),
    ],
)
async def test_a_host_that_is_silent_or_fenced_is_tried_last_from_then_on(
    error: Exception, connected_at: float, read_only: bool, leaves: bool, again: bool
) -> None:
    database = a_database("postgresql://ada@127.0.0.1:1,127.0.0.2:2/homing")
    first, second = await database.hosts._candidates()
    use = _Use(NOW_S, Origin(first, connected_at), may_take_long=False)
    assert await database._leave_after(error, use, read_only) is again
    assert await database.hosts._candidates() == ([second, first] if leaves else [first, second])


async def test_without_a_known_host_none_is_tried_last() -> None:
    database = a_database("postgresql://ada@127.0.0.1:1,127.0.0.2:2/homing")
    before = await database.hosts._candidates()
    assert not await database._leave_after(SILENT, None, read_only=False)
    assert not await database._leave_after(FENCED, None, read_only=False)
    assert await database.hosts._candidates() == before
