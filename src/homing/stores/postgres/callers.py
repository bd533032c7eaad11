"""Joining a caller's own transaction, whichever library its connection is from.

asyncpg, psycopg (both kinds), SQLAlchemy (connections and sessions, both kinds) and Django: all that is
needed of them is SQL text and parameters. What fails inside is undone alone, to a savepoint: the caller's
transaction goes on as it was, and who owns it commits or rolls back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

from homing.core.errors import HomingError, SchemaError, StoreError, StoreUnavailable
from homing.core.joining import CallersConnection
from homing.stores.postgres.statements import Record, Speaks

R = TypeVar("R")

_PLACE = re.compile(r"\$(\d+)")
_NO_TRANSACTION = "This connection has no transaction to join: {hint}."
_KNOWN = "asyncpg, psycopg, SQLAlchemy or Django"


class Caller(Speaks, Protocol):
    """A caller's connection, spoken to in one way."""

    blocking: ClassVar[bool]
    """It is used on the thread that it belongs to; its answers need no event loop."""

    def __init__(self, connection: Any) -> None: ...

    async def check(self) -> None:
        """Raises where there is no transaction to join."""


async def join(given: object, action: Callable[[Speaks], Coroutine[Any, Any, R]], where: str) -> R:
    """Runs the action inside the caller's transaction."""
    if not isinstance(given, CallersConnection):
        return await _inside(_kind(given)(given), action, where)
    kind, connection = _kind(given.connection), given.connection
    if not kind.blocking:
        raise StoreError("An async connection belongs to an event loop; use it with Homing, not SyncHoming.")
    result: R = await given.run(lambda: _driven(_inside(kind(connection), action, where)))
    return result


async def _inside(caller: Caller, action: Callable[[Speaks], Awaitable[R]], where: str) -> R:
    await caller.check()
    try:
        await caller.fetch("SAVEPOINT homing")
        try:
            result = await action(caller)
        except BaseException:
            await caller.fetch("ROLLBACK TO SAVEPOINT homing")
            await caller.fetch("RELEASE SAVEPOINT homing")
            raise
        await caller.fetch("RELEASE SAVEPOINT homing")
    except HomingError:
        raise
    except Exception as error:
        raise _translated(error, where) from error
    return result


def _driven(work: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine that waits for nothing, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    work.close()
    raise AssertionError("a blocking connection made somebody wait")


def _kind(connection: object) -> type[Caller]:
    """The way to speak to this connection. Its library is loaded, or it could not be here."""
    for module, names, kind in _KINDS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(connection, tuple(getattr(loaded, name) for name in names)):
            return kind
    raise StoreError(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__}; "
        f"give one of {_KNOWN} to the store's own database."
    )


class _Asyncpg:
    blocking: ClassVar[bool] = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        if not self._connection.is_in_transaction():
            raise StoreError(
                _NO_TRANSACTION.format(hint="open one with `async with connection.transaction()`")
            )

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        found: Sequence[Record] = await self._connection.fetch(sql, *parameters)
        return found


class _Psycopg:
    """psycopg begins a transaction by itself at the first statement, unless it is in autocommit."""

    blocking: ClassVar[bool] = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        _check_psycopg(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        with self._connection.cursor(row_factory=_tuples()) as cursor:
            cursor.execute(*_formatted(sql, parameters))
            found: Sequence[Record] = cursor.fetchall() if cursor.description else ()
            return found


class _PsycopgAsync:
    blocking: ClassVar[bool] = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        _check_psycopg(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        async with self._connection.cursor(row_factory=_tuples()) as cursor:
            await cursor.execute(*_formatted(sql, parameters))
            found: Sequence[Record] = await cursor.fetchall() if cursor.description else ()
            return found


class _Alchemy:
    """A Connection, or a Session (of which the connection is taken); SQLAlchemy begins by itself."""

    blocking: ClassVar[bool] = True

    def __init__(self, given: Any) -> None:
        self._connection = given.connection() if _is_session(given) else given

    async def check(self) -> None:
        _check_alchemy(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        result = self._connection.exec_driver_sql(*_styled(sql, parameters, self._connection.dialect))
        found: Sequence[Record] = result.fetchall() if result.returns_rows else ()
        return found


class _AlchemyAsync:
    blocking: ClassVar[bool] = False

    def __init__(self, given: Any) -> None:
        self._given = given
        self._connection = given

    async def check(self) -> None:
        if _is_session(self._given):
            self._connection = await self._given.connection()
        _check_alchemy(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        result = await self._connection.exec_driver_sql(*_styled(sql, parameters, self._connection.dialect))
        found: Sequence[Record] = result.fetchall() if result.returns_rows else ()
        return found


class _Django:
    blocking: ClassVar[bool] = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        if self._connection.vendor != "postgresql":
            raise StoreError(f"connection is to {self._connection.vendor}, the store is in PostgreSQL.")
        if not self._connection.in_atomic_block:
            raise StoreError(_NO_TRANSACTION.format(hint="open one with `transaction.atomic()`"))

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        with self._connection.cursor() as cursor:
            cursor.execute(*_formatted(sql, parameters))
            found: Sequence[Record] = cursor.fetchall() if cursor.description else ()
            return found


_KINDS: tuple[tuple[str, tuple[str, ...], type[Caller]], ...] = (
    ("asyncpg", ("Connection",), _Asyncpg),
    ("asyncpg.pool", ("PoolConnectionProxy",), _Asyncpg),
    ("psycopg", ("Connection",), _Psycopg),
    ("psycopg", ("AsyncConnection",), _PsycopgAsync),
    ("sqlalchemy.engine", ("Connection",), _Alchemy),
    ("sqlalchemy.orm", ("Session", "scoped_session"), _Alchemy),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection", "AsyncSession", "async_scoped_session"), _AlchemyAsync),
    ("django.db.backends.base.base", ("BaseDatabaseWrapper",), _Django),
    ("django.utils.connection", ("ConnectionProxy",), _Django),
)


def _check_psycopg(connection: Any) -> None:
    idle = connection.info.transaction_status == 0
    if connection.autocommit and idle:
        raise StoreError(_NO_TRANSACTION.format(hint="open one with `connection.transaction()`"))


def _check_alchemy(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise StoreError(f"connection is to {connection.dialect.name}, the store is in PostgreSQL.")
    options = connection.get_execution_options() if hasattr(connection, "get_execution_options") else {}
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise StoreError(_NO_TRANSACTION.format(hint="it is in AUTOCOMMIT"))


def _is_session(given: Any) -> bool:
    return not hasattr(type(given), "exec_driver_sql")


def _tuples() -> Any:
    from psycopg.rows import tuple_row  # whatever the caller's own rows look like

    return tuple_row


def _styled(sql: str, parameters: tuple[Any, ...], dialect: Any) -> tuple[Any, ...]:
    """For the driver below SQLAlchemy."""
    if dialect.paramstyle == "numeric_dollar":
        return sql, parameters
    return _formatted(sql, parameters)


def _formatted(sql: str, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """`$1` as `%s`. Without parameters the text is taken as it is, per cents included."""
    if not parameters:
        return (sql,)
    text, order = _translation(sql)
    return text, tuple(parameters[place] for place in order)


@lru_cache(maxsize=256)
def _translation(sql: str) -> tuple[str, tuple[int, ...]]:
    order = tuple(int(place) - 1 for place in _PLACE.findall(sql))
    return _PLACE.sub("%s", sql.replace("%", "%%")), order


def _translated(error: Exception, where: str) -> HomingError:
    """A store error for what the caller's driver raised, by its SQLSTATE."""
    candidates = (error, getattr(error, "orig", None), error.__cause__)
    said = next((state for one in candidates if (state := _sqlstate(one))), "")
    if said[:2] in ("08", "57"):
        return StoreUnavailable(f"{where} cannot be reached through this connection ({said}).")
    if said in ("42P01", "3F000", "42703", "42883"):
        return SchemaError(f"The database of this connection has no Homing schema: is it {where}?")
    return StoreError(f"{where}: {type(error).__name__} {said}".rstrip())


def _sqlstate(error: object) -> str:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""
