"""Settings of connections, and connections through a pooler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from homing.core.errors import StoreRejected, StoreUnavailable
from homing.stores.postgres import PostgresStore, connection
from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.connection import Database
from homing.stores.postgres.hosts import Hosts
from homing.stores.postgres.statements import PostgresTransaction
from homing.testing.builders import a_claim_request, a_notification, a_submission, sent


@pytest.fixture
async def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections through a pooler, which reports its own process id instead of the server's."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 0)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(parse_database_url(postgres_url), timeout_s=60)
    await database.open()
    yield database
    await database.close()


async def _scans(tx: PostgresTransaction) -> str:
    setting: str = await tx.one("SELECT current_setting('enable_seqscan')")
    return setting


async def _committed_setting(database: Database) -> str:
    """Returns the settings that the next user of the connection finds."""

    async def after(tx: PostgresTransaction) -> str:
        await tx.script("COMMIT")
        setting = await _scans(tx)
        await tx.script("BEGIN")
        return setting

    return await database.do(after, timed=False)


async def test_a_connection_of_our_own_gets_its_planner_settings_once(database: Database) -> None:
    assert await database.do(_scans, timed=False) == "off"
    assert await database.look(_scans) == "off"
    assert await _committed_setting(database) == "off"


@pytest.mark.usefixtures("lent")
async def test_a_connection_lent_by_a_pooler_is_returned_unchanged(database: Database) -> None:
    assert await database.do(_scans, timed=False) == "off"
    assert await database.look(_scans) == "off"
    assert await _committed_setting(database) == "on"


async def _who(tx: PostgresTransaction) -> int:
    number: int = await tx.one("SELECT pg_backend_pid() FROM pg_sleep(0.005)")
    return number


async def test_more_calls_than_connections_take_turns_and_all_are_served(postgres_url: str) -> None:
    several = "&" if "?" in postgres_url else "?"
    database = Database(parse_database_url(f"{postgres_url}{several}pool_size=3"), timeout_s=60)
    await database.open()
    try:
        async with asyncio.timeout(60):
            found = await asyncio.gather(
                *(database.do(_who, timed=False) for _ in range(40)),
                *(database.look(_who) for _ in range(40)),
            )
            assert len(set(found)) == 3
            assert await database.look(_who) in found
    finally:
        await database.close()


async def test_a_connection_that_was_idle_for_long_is_not_reused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await database.do(_who, timed=False)
    assert await database.look(_who) == first
    monkeypatch.setattr(connection, "_IDLE_S", 0)
    assert await database.do(_who, timed=False) != first


async def test_a_dead_idle_connection_is_replaced(database: Database, postgres_url: str) -> None:
    first = await asyncio.gather(*(database.do(_who, timed=False) for _ in range(4)))
    other = await asyncpg.connect(postgres_url)
    try:
        for pid in first:
            await other.execute("SELECT pg_terminate_backend($1)", pid)
    finally:
        await other.close()
    after = await asyncio.gather(*(database.do(_who, timed=False) for _ in range(4)))
    assert not set(first) & set(after)


@pytest.mark.usefixtures("lent")
async def test_a_notification_is_delivered_through_a_pooler(postgres_url: str) -> None:
    store = PostgresStore(f"{postgres_url}?cached_statements=0&listen=false")
    await store.open()
    try:
        await store.migrate()
        await store.accept([a_submission(a_notification())])
        claims = (await store.claim(a_claim_request())).claims
        assert len((await store.settle([sent(claim) for claim in claims])).applied) == 1
        assert await store.now_ms() > 0
    finally:
        await store.close()


async def test_a_call_that_is_cancelled_leaves_no_transaction_open(store: PostgresStore) -> None:
    """Whenever it is cancelled: also while its transaction begins."""
    problems: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(str(context.get("message"))))
    for steps in range(40):
        for call in (store.accept([a_submission()]), store.claim(a_claim_request()), store.tallies(None)):
            task = asyncio.ensure_future(call)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert await store.now_ms()
    loop.set_exception_handler(None)
    assert [problem for problem in problems if "active transaction" in problem] == []


@pytest.mark.parametrize("error", [TypeError("a bug"), RecursionError("a bug"), ValueError("a bug")])
async def test_an_error_in_the_code_is_no_rejection(database: Database, error: Exception) -> None:
    async def fail(tx: PostgresTransaction) -> None:
        raise error

    with pytest.raises(type(error), match="a bug"):
        await database.do(fail, timed=False)
    with pytest.raises(type(error), match="a bug"):
        await database.look(fail)


async def test_a_value_that_cannot_be_bound_is_a_rejection(database: Database) -> None:
    with pytest.raises(StoreRejected):
        await database.do(lambda tx: tx.one("SELECT $1::bigint", 2**70), timed=False)


@pytest.mark.parametrize(
    "error", [asyncpg.ClientConfigurationError("no root.crt"), asyncpg.InvalidParameterValueError("odd")]
)
async def test_an_error_of_connecting_is_never_a_rejection(
    database: Database, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that cannot be read any more says nothing about the message to be stored."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    await database._expire()
    monkeypatch.setattr(asyncpg.Pool, "_get_new_connection", fail)
    for run in (database.do(_scans, timed=False), database.look(_scans)):
        with pytest.raises(StoreUnavailable):
            await run


async def test_a_read_that_loses_its_connection_is_repeated(database: Database, postgres_url: str) -> None:
    other = await asyncpg.connect(postgres_url)
    tried: list[int] = []

    async def read(tx: PostgresTransaction) -> int:
        tried.append(await tx.one("SELECT pg_backend_pid()"))
        if len(tried) == 1:
            await other.execute("SELECT pg_terminate_backend($1)", tried[0])
        number: int = await tx.one("SELECT 7")
        return number

    assert await database.look(read) == 7
    assert len(tried) == 2
    await other.close()


# Connections are given back --------------------------------------------------------------------------------


async def _fail(tx: PostgresTransaction) -> None:
    raise ValueError("odd")


async def _read_history(database: Database) -> None:
    await database.read_history()


async def _run_failing(database: Database) -> None:
    await database.do(_fail, timed=False)


@pytest.mark.parametrize("call", [_run_failing, _read_history])
async def test_a_caller_that_is_cancelled_during_the_rollback_keeps_no_connection(
    database: Database, call: Callable[[Database], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, is_ending, may_end = asyncpg.Connection.execute, asyncio.Event(), asyncio.Event()

    async def wait(self: Any, query: str, *args: Any, **options: Any) -> str:
        if query == "ROLLBACK":
            is_ending.set()
            await may_end.wait()
        status: str = await execute(self, query, *args, **options)
        return status

    monkeypatch.setattr(connection._Connection, "execute", wait, raising=False)
    task = asyncio.ensure_future(call(database))
    await is_ending.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    may_end.set()
    await asyncio.gather(*database._finishing)
    assert not database._in_use


async def test_a_failed_transaction_has_ended_when_its_connection_is_given_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool would end an open transaction too, but log an error about it."""
    release, in_transaction = asyncpg.pool.PoolConnectionHolder.release, list[bool]()

    async def note(self: Any, timeout: float | None) -> None:
        in_transaction.append(self._con.is_in_transaction())
        await release(self, timeout)

    monkeypatch.setattr(asyncpg.pool.PoolConnectionHolder, "release", note)
    with pytest.raises(ValueError, match="odd"):
        await _run_failing(database)
    assert in_transaction == [False]


async def test_a_committed_call_succeeds_even_if_its_connection_is_closed_when_it_is_given_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncpg.pool.PoolConnectionHolder.release

    async def close_first(self: Any, timeout: float | None) -> None:
        database_host = database.address.hosts[0]
        await database._give_up(database_host)
        await release(self, timeout)

    monkeypatch.setattr(connection, "_MAX_READY", 0)
    monkeypatch.setattr(asyncpg.pool.PoolConnectionHolder, "release", close_first)
    assert await database.do(lambda tx: tx.one("SELECT 7"), timed=False) == 7
    assert await database.look(lambda tx: tx.one("SELECT 7")) == 7
    monkeypatch.undo()


async def test_a_connection_that_was_expired_in_use_is_not_used_again(database: Database) -> None:
    async def expire(tx: PostgresTransaction) -> int:
        await database._expire()
        return await _who(tx)

    first = await database.do(expire, timed=False)
    second = await database.do(_who, timed=False)
    assert first != second
    assert await database.do(_who, timed=False) == second


@pytest.mark.parametrize("error", [asyncpg.InvalidParameterValueError("odd"), asyncpg.DataError("odd")])
async def test_an_error_while_a_transaction_begins_is_never_a_rejection(
    database: Database, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler, settings are made there, and one of them may be wrong."""

    async def fail(self: object, query: str, **_: object) -> None:
        if query.startswith("BEGIN"):
            raise error

    monkeypatch.setattr(connection._Connection, "execute", fail, raising=False)
    with pytest.raises(StoreUnavailable):
        await database.do(_scans, timed=False)
    monkeypatch.undo()


async def test_a_database_whose_opening_was_cancelled_can_be_opened(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_connecting = asyncio.Event()

    async def hang(self: object, *_: object, **__: object) -> None:
        is_connecting.set()
        await asyncio.Event().wait()

    database = Database(parse_database_url(postgres_url), timeout_s=60)
    monkeypatch.setattr(Hosts, "connect", hang)
    opening = asyncio.create_task(database.open())
    await is_connecting.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    monkeypatch.undo()
    await database.open()
    assert database._watching is not None
    assert await database.look(_scans) == "off"
    await database.close()


def test_a_database_can_be_used_in_one_event_loop_after_another(postgres_url: str) -> None:
    """An event can be waited for in one event loop only."""
    database = Database(parse_database_url(postgres_url), timeout_s=60)

    async def use() -> None:
        await database.open()
        waiting = asyncio.create_task(database.until_expired())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await database.close()

    for _ in range(2):
        asyncio.run(use())
