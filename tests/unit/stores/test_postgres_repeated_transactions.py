"""Which errors of a transaction lead to a second try."""

from __future__ import annotations

import pytest
from asyncpg import exceptions

from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.connection import Database

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
