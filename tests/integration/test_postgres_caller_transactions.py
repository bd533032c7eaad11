"""A send that joins the caller's transaction: rolled back, it is never sent; committed, it is never lost.

With the real libraries, each on the store's own database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from homing import Homing, IdempotencyConflict, NotFound, SendResult, Status, SyncHoming
from homing.core.errors import SchemaError, StoreError

MAIL: dict[str, Any] = {"channel": "email", "body": "Thank you"}
MANY = [{"recipient": f"u{n}@example.org", "channel": "email", "content": {"body": "x"}} for n in range(3)]


class AsyncWay:
    """How one library opens and ends a transaction."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    @asynccontextmanager
    async def begun(self, *, commit: bool) -> AsyncIterator[Any]:
        async with getattr(self, f"_{self.name}")(commit) as connection:
            yield connection

    @asynccontextmanager
    async def _asyncpg(self, commit: bool) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        await (transaction.commit() if commit else transaction.rollback())
        await connection.close()

    @asynccontextmanager
    async def _asyncpg_pool(self, commit: bool) -> AsyncIterator[Any]:
        async with (
            asyncpg.create_pool(self.url, min_size=1, max_size=1) as pool,
            pool.acquire() as connection,
        ):
            transaction = connection.transaction()
            await transaction.start()
            yield connection
            await (transaction.commit() if commit else transaction.rollback())

    @asynccontextmanager
    async def _psycopg(self, commit: bool) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url, row_factory=dict_row) as connection:
            yield connection
            await (connection.commit() if commit else connection.rollback())

    @asynccontextmanager
    async def _sqlalchemy(self, commit: bool) -> AsyncIterator[Any]:
        engine = create_async_engine(self.url.replace("postgresql:", "postgresql+asyncpg:"))
        async with engine.connect() as connection:
            yield connection
            await (connection.commit() if commit else connection.rollback())
        await engine.dispose()

    @asynccontextmanager
    async def _sqlalchemy_session(self, commit: bool) -> AsyncIterator[Any]:
        engine = create_async_engine(self.url.replace("postgresql:", "postgresql+asyncpg:"))
        async with AsyncSession(engine) as session:
            yield session
            await (session.commit() if commit else session.rollback())
        await engine.dispose()

    @asynccontextmanager
    async def _sqlalchemy_psycopg(self, commit: bool) -> AsyncIterator[Any]:
        engine = create_async_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))
        async with engine.connect() as connection:
            yield connection
            await (connection.commit() if commit else connection.rollback())
        await engine.dispose()


class SyncWay:
    """The same for synchronous libraries."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    @contextmanager
    def begun(self, *, commit: bool) -> Iterator[Any]:
        with getattr(self, f"_{self.name}")(commit) as connection:
            yield connection

    @contextmanager
    def _psycopg(self, commit: bool) -> Iterator[Any]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            yield connection
            (connection.commit if commit else connection.rollback)()

    @contextmanager
    def _psycopg_autocommit(self, commit: bool) -> Iterator[Any]:
        with (
            psycopg.connect(self.url, autocommit=True) as connection,
            connection.transaction(force_rollback=not commit),
        ):
            yield connection

    @contextmanager
    def _sqlalchemy(self, commit: bool) -> Iterator[Any]:
        engine = sqlalchemy.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            yield connection
            (connection.commit if commit else connection.rollback)()
        engine.dispose()

    @contextmanager
    def _sqlalchemy_session(self, commit: bool) -> Iterator[Any]:
        engine = sqlalchemy.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))
        with Session(engine) as session:
            yield session
            (session.commit if commit else session.rollback)()
        engine.dispose()

    @contextmanager
    def _sqlalchemy_scoped(self, commit: bool) -> Iterator[Any]:
        engine = sqlalchemy.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))
        sessions = scoped_session(sessionmaker(engine))
        try:
            yield sessions
            (sessions.commit if commit else sessions.rollback)()
        finally:
            sessions.remove()
            engine.dispose()

    @contextmanager
    def _django(self, commit: bool) -> Iterator[Any]:
        from django.db import transaction  # type: ignore[import-untyped]

        connection = _django_connection(self.url)
        with transaction.atomic():
            yield connection
            if not commit:
                transaction.set_rollback(True)
        connection.close()


def _django_connection(url: str) -> Any:
    import django  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db import connections

    given = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given.get("dbname", ""),
        "HOST": given.get("host", ""),
        "PORT": given.get("port", ""),
        "USER": given.get("user", ""),
        "PASSWORD": given.get("password", ""),
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database})
        django.setup()
    connections["default"].settings_dict.update(database)
    from django.db import connection

    return connection


ASYNC = ("asyncpg", "asyncpg_pool", "psycopg", "sqlalchemy", "sqlalchemy_session", "sqlalchemy_psycopg")
SYNC = (
    "psycopg",
    "psycopg_autocommit",
    "sqlalchemy",
    "sqlalchemy_session",
    "sqlalchemy_scoped",
    "django",
)


def quiet(delivery: object) -> None:
    """A provider that accepts everything."""


@pytest.mark.parametrize("name", ASYNC)
async def test_it_is_accepted_together_with_the_caller_s_data(name: str, postgres_url: str) -> None:
    way = AsyncWay(name, postgres_url)
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        async with way.begun(commit=False) as connection:
            gone = await homing.send("a@example.org", connection=connection, **MAIL)
            with pytest.raises(NotFound):
                await homing.get(gone.id)
        async with way.begun(commit=True) as connection:
            kept = await homing.send("a@example.org", connection=connection, **MAIL)
            many = [one async for one in homing.send_many(MANY, connection=connection)]
        with pytest.raises(NotFound):
            await homing.get(gone.id)
        ids = [kept.id, *(one.id for one in many if isinstance(one, SendResult))]
        assert [(await homing.get(id_)).status for id_ in ids] == [Status.PENDING] * 4
        assert (await homing.process()).succeeded == 4


@pytest.mark.parametrize("name", SYNC)
def test_with_synchronous_libraries_it_is_accepted_together_too(name: str, postgres_url: str) -> None:
    way = SyncWay(name, postgres_url)
    with SyncHoming(postgres_url, providers={"mail": quiet}) as homing:
        with way.begun(commit=False) as connection:
            gone = homing.send("a@example.org", connection=connection, **MAIL)
            with pytest.raises(NotFound):
                homing.get(gone.id)
        with way.begun(commit=True) as connection:
            kept = homing.send("a@example.org", connection=connection, **MAIL)
            many = list(homing.send_many(MANY, connection=connection))
        with pytest.raises(NotFound):
            homing.get(gone.id)
        ids = [kept.id, *(one.id for one in many if isinstance(one, SendResult))]
        assert [homing.get(id_).status for id_ in ids] == [Status.PENDING] * 4
        assert homing.process().succeeded == 4


@pytest.mark.parametrize("name", ASYNC)
async def test_a_repeat_that_is_no_longer_valid_is_found_in_the_transaction(
    name: str, postgres_url: str
) -> None:
    fields = {**MAIL, "provider": "mail", "idempotency_key": "order-1"}
    async with (
        Homing(postgres_url, providers={"mail": quiet}) as before,
        Homing(postgres_url, providers={"post": quiet}) as after,
        AsyncWay(name, postgres_url).begun(commit=True) as connection,
    ):
        first = await before.send("a@example.org", connection=connection, **fields)
        again = await after.send("a@example.org", connection=connection, **fields)
    assert (again.id, again.duplicate) == (first.id, True)


@pytest.mark.parametrize("name", SYNC)
def test_with_synchronous_libraries_such_a_repeat_is_found_too(name: str, postgres_url: str) -> None:
    fields = {**MAIL, "provider": "mail", "idempotency_key": "order-1"}
    with (
        SyncHoming(postgres_url, providers={"mail": quiet}) as before,
        SyncHoming(postgres_url, providers={"post": quiet}) as after,
        SyncWay(name, postgres_url).begun(commit=True) as connection,
    ):
        first = before.send("a@example.org", connection=connection, **fields)
        again = after.send("a@example.org", connection=connection, **fields)
    assert (again.id, again.duplicate) == (first.id, True)


@pytest.mark.parametrize("name", ASYNC)
async def test_a_failed_send_leaves_the_caller_s_transaction_usable(name: str, postgres_url: str) -> None:
    way = AsyncWay(name, postgres_url)
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        await homing.send("a@example.org", idempotency_key="order-1", **MAIL)
        async with way.begun(commit=True) as connection:
            with pytest.raises(IdempotencyConflict):
                await homing.send("b@example.org", idempotency_key="order-1", connection=connection, **MAIL)
            kept = await homing.send("c@example.org", connection=connection, **MAIL)
        assert (await homing.get(kept.id)).status is Status.PENDING


async def test_a_repeated_request_is_recognized_inside_and_outside_of_the_transaction(
    postgres_url: str,
) -> None:
    way = AsyncWay("asyncpg", postgres_url)
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        async with way.begun(commit=True) as connection:
            first = await homing.send("a@example.org", idempotency_key="k", connection=connection, **MAIL)
            again = await homing.send("a@example.org", idempotency_key="k", connection=connection, **MAIL)
        later = await homing.send("a@example.org", idempotency_key="k", **MAIL)
        assert (again.id, later.id) == (first.id, first.id)
        assert (again.duplicate, later.duplicate) == (True, True)


async def test_no_other_send_waits_for_the_caller_s_transaction(postgres_url: str) -> None:
    """Not even for the first notification of its kind, which creates the queue of both."""
    async with (
        Homing(postgres_url, providers={"mail": quiet}) as homing,
        AsyncWay("asyncpg", postgres_url).begun(commit=True) as connection,
    ):
        await homing.send("a@example.org", connection=connection, **MAIL)
        async with asyncio.timeout(60):
            await homing.send("b@example.org", **MAIL)
            assert (await homing.process()).succeeded == 1


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("name", ASYNC)
async def test_a_transaction_that_started_before_the_first_notification_of_its_kind_can_join(
    name: str, isolation: str, postgres_url: str
) -> None:
    """It does not see the queue of that notification, which another transaction has created meanwhile."""
    way = AsyncWay(name, _with_isolation(postgres_url, isolation))
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        async with way.begun(commit=True) as connection:
            await _take_snapshot(connection)
            kept = await homing.send("a@example.org", connection=connection, **MAIL)
        assert (await homing.get(kept.id)).status is Status.PENDING


@pytest.mark.parametrize("name", SYNC)
def test_with_synchronous_libraries_such_a_transaction_can_join_too(name: str, postgres_url: str) -> None:
    way = SyncWay(name, _with_isolation(postgres_url, "REPEATABLE READ"))
    with SyncHoming(postgres_url, providers={"mail": quiet}) as homing:
        with way.begun(commit=True) as connection:
            if name == "django":
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    cursor.execute(_SNAPSHOT)
            else:
                connection.execute(sqlalchemy.text(_SNAPSHOT) if "sqlalchemy" in name else _SNAPSHOT)
            kept = homing.send("a@example.org", connection=connection, **MAIL)
        assert homing.get(kept.id).status is Status.PENDING


_SNAPSHOT = "SELECT count(*) FROM homing.queues"
"""The first statement of a transaction decides what the transaction sees."""


def _with_isolation(url: str, isolation: str) -> str:
    """Makes the isolation level the default of the URL's database."""
    with psycopg.connect(url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        level = psycopg.sql.Literal(isolation)
        statement = "ALTER DATABASE {} SET default_transaction_isolation = {}"
        connection.execute(psycopg.sql.SQL(statement).format(name, level))
    return url


async def _take_snapshot(connection: Any) -> None:
    is_sqlalchemy = type(connection).__module__.startswith("sqlalchemy")
    await connection.execute(sqlalchemy.text(_SNAPSHOT) if is_sqlalchemy else _SNAPSHOT)


async def test_a_rollback_does_not_corrupt_the_store_s_cache(postgres_url: str) -> None:
    """The first notification of a new lane creates a queue, which a rollback removes."""
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        async with AsyncWay("asyncpg", postgres_url).begun(commit=False) as connection:
            await homing.send("a@example.org", connection=connection, **MAIL)
        kept = await homing.send("a@example.org", **MAIL)
        assert (await homing.process()).succeeded == 1
        assert (await homing.get(kept.id)).status is Status.SENT


async def test_a_connection_without_a_transaction_is_refused(postgres_url: str) -> None:
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        connection = await asyncpg.connect(postgres_url)
        try:
            with pytest.raises(StoreError, match="no transaction"):
                await homing.send("a@example.org", connection=connection, **MAIL)
        finally:
            await connection.close()
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as idle:
            with pytest.raises(StoreError, match="no transaction"):
                await homing.send("a@example.org", connection=idle, **MAIL)
        assert sum((await homing.queue_counts()).values()) == 0


def test_django_outside_of_atomic_is_refused(postgres_url: str) -> None:
    connection = _django_connection(postgres_url)
    with SyncHoming(postgres_url, providers={"mail": quiet}) as homing:
        with pytest.raises(StoreError, match="atomic"):
            homing.send("a@example.org", connection=connection, **MAIL)
        connection.close()


async def test_an_unknown_object_is_refused_with_what_is_accepted(postgres_url: str) -> None:
    async with Homing(postgres_url, providers={"mail": quiet}) as homing:
        with pytest.raises(StoreError, match="asyncpg, psycopg, SQLAlchemy or Django"):
            await homing.send("a@example.org", connection=object(), **MAIL)


async def test_an_async_connection_of_another_loop_is_refused(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        with (
            SyncHoming(postgres_url, providers={"mail": quiet}) as homing,
            pytest.raises(StoreError, match="cannot be used with SyncHoming"),
        ):
            homing.send("a@example.org", connection=connection, **MAIL)
    finally:
        await connection.close()


async def test_a_connection_to_another_database_is_refused(
    postgres_url: str, other_postgres_url: str
) -> None:
    async with (
        Homing(postgres_url, providers={"mail": quiet}) as homing,
        AsyncWay("psycopg", other_postgres_url).begun(commit=True) as connection,
    ):
        with pytest.raises(SchemaError, match="no Homing schema"):
            await homing.send("a@example.org", connection=connection, **MAIL)
