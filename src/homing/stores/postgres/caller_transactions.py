"""Joins a caller's own transaction, on a connection of any supported library.

The supported libraries are asyncpg, psycopg, SQLAlchemy (connections and sessions) and Django. If Homing's
part fails, it is rolled back to a savepoint and the caller's transaction stays usable. The caller commits or
rolls back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

from homing.core.errors import HomingError, SchemaError, StoreError, StoreRejected, StoreUnavailable
from homing.core.ports.stores import CallerConnection
from homing.stores.common.blocking_calls import run_without_loop
from homing.stores.postgres.errors import QueueGone, driver_errors, is_queue_gone, is_rejected, is_unbindable
from homing.stores.postgres.statements import Record, SqlConnection

R = TypeVar("R")


_PLACEHOLDER = re.compile(r"\$(\d+)")

_NO_TRANSACTION = "This connection has no transaction to join; {hint}."

_SUPPORTED = "asyncpg, psycopg, SQLAlchemy or Django"


class DriverAdapter(SqlConnection, Protocol):
    """Adapts a caller's connection to `SqlConnection`."""

    blocking: ClassVar[bool]
    """True if the library is synchronous. Its methods then never wait for an event loop."""

    def __init__(self, connection: Any) -> None: ...

    async def check(self) -> None:
        """Raises `StoreError` if there is no transaction to join."""


async def run_in_callers_transaction(
    given: object, action: Callable[[SqlConnection], Coroutine[Any, Any, R]], where: str
) -> R:
    """Runs the action inside the caller's transaction."""
    if not isinstance(given, CallerConnection):
        return await _run_in_savepoint(_adapter_for(given)(given), action, where)
    kind, connection = _adapter_for(given.connection), given.connection
    if not kind.blocking:
        raise StoreError(
            "An async connection cannot be used with SyncHoming; use Homing, or a sync connection."
        )
    result: R = await given.run(lambda: run_without_loop(_run_in_savepoint(kind(connection), action, where)))
    return result


async def _run_in_savepoint(
    caller: DriverAdapter, action: Callable[[SqlConnection], Awaitable[R]], where: str
) -> R:
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
        raise _translate_error(error, where) from error
    return result


def _adapter_for(connection: object) -> type[DriverAdapter]:
    """Returns the adapter class for a connection. Only libraries that are already imported are considered."""
    for module, names, kind in _ADAPTERS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(connection, tuple(getattr(loaded, name) for name in names)):
            return kind
    raise StoreError(
        f"connection is a {type(connection).__module__}.{type(connection).__qualname__}; "
        f"pass a connection of {_SUPPORTED} to the store's own database."
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
    """A psycopg connection. Unless it is in autocommit mode, its first statement begins a transaction."""

    blocking: ClassVar[bool] = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        _check_psycopg(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        with self._connection.cursor(row_factory=_tuples()) as cursor:
            cursor.execute(*_to_percent_style(sql, parameters))
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
            await cursor.execute(*_to_percent_style(sql, parameters))
            found: Sequence[Record] = await cursor.fetchall() if cursor.description else ()
            return found


class _SqlAlchemy:
    """A SQLAlchemy Connection, or the connection of a Session. SQLAlchemy itself begins the transaction."""

    blocking: ClassVar[bool] = True

    def __init__(self, given: Any) -> None:
        self._connection = given.connection() if _is_session(given) else given

    async def check(self) -> None:
        _check_sqlalchemy(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        result = self._connection.exec_driver_sql(
            *_adapt_placeholders(sql, parameters, self._connection.dialect)
        )
        found: Sequence[Record] = result.fetchall() if result.returns_rows else ()
        return found


class _SqlAlchemyAsync:
    blocking: ClassVar[bool] = False

    def __init__(self, given: Any) -> None:
        self._given = given
        self._connection = given

    async def check(self) -> None:
        if _is_session(self._given):
            self._connection = await self._given.connection()
        _check_sqlalchemy(self._connection)

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        result = await self._connection.exec_driver_sql(
            *_adapt_placeholders(sql, parameters, self._connection.dialect)
        )
        found: Sequence[Record] = result.fetchall() if result.returns_rows else ()
        return found


class _Django:
    blocking: ClassVar[bool] = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        if self._connection.vendor != "postgresql":
            raise StoreError(f"connection is to {self._connection.vendor}, but the store is in PostgreSQL.")
        if not self._connection.in_atomic_block:
            raise StoreError(_NO_TRANSACTION.format(hint="open one with `transaction.atomic()`"))

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        with self._connection.cursor() as cursor:
            cursor.execute(*_to_percent_style(sql, parameters))
            found: Sequence[Record] = cursor.fetchall() if cursor.description else ()
            return found


_ADAPTERS: tuple[tuple[str, tuple[str, ...], type[DriverAdapter]], ...] = (
    ("asyncpg", ("Connection",), _Asyncpg),
    ("asyncpg.pool", ("PoolConnectionProxy",), _Asyncpg),
    ("psycopg", ("Connection",), _Psycopg),
    ("psycopg", ("AsyncConnection",), _PsycopgAsync),
    ("sqlalchemy.engine", ("Connection",), _SqlAlchemy),
    ("sqlalchemy.orm", ("Session", "scoped_session"), _SqlAlchemy),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection", "AsyncSession", "async_scoped_session"), _SqlAlchemyAsync),
    ("django.db.backends.base.base", ("BaseDatabaseWrapper",), _Django),
    ("django.utils.connection", ("ConnectionProxy",), _Django),
)


def _check_psycopg(connection: Any) -> None:
    idle = connection.info.transaction_status == 0
    if connection.autocommit and idle:
        raise StoreError(_NO_TRANSACTION.format(hint="open one with `connection.transaction()`"))


def _check_sqlalchemy(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise StoreError(f"connection is to {connection.dialect.name}, but the store is in PostgreSQL.")
    options = connection.get_execution_options() if hasattr(connection, "get_execution_options") else {}
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise StoreError(_NO_TRANSACTION.format(hint="use an isolation level other than AUTOCOMMIT"))


def _is_session(given: Any) -> bool:
    return not hasattr(type(given), "exec_driver_sql")


def _tuples() -> Any:
    from psycopg.rows import tuple_row  # the caller's connection may have another row factory

    return tuple_row


def _adapt_placeholders(sql: str, parameters: tuple[Any, ...], dialect: Any) -> tuple[Any, ...]:
    """Converts the placeholders to the style of SQLAlchemy's driver."""
    if dialect.paramstyle == "numeric_dollar":
        return sql, parameters
    return _to_percent_style(sql, parameters)


def _to_percent_style(sql: str, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """Converts `$1` to `%s`. Without parameters, drivers use the text as it is, including percent signs."""
    if not parameters:
        return (sql,)
    text, order = _translate_placeholders(sql)
    return text, tuple(parameters[place] for place in order)


@lru_cache(maxsize=256)
def _translate_placeholders(sql: str) -> tuple[str, tuple[int, ...]]:
    order = tuple(int(place) - 1 for place in _PLACEHOLDER.findall(sql))
    return _PLACEHOLDER.sub("%s", sql.replace("%", "%%")), order


def _translate_error(error: Exception, where: str) -> HomingError:
    """Returns the store error for an error of the caller's driver, by its SQLSTATE."""
    if is_queue_gone(error):
        return QueueGone(f"{where} does not have a queue that it had before. Nothing was changed; try again.")
    sqlstate = next((state for one in driver_errors(error) if (state := _sqlstate(one))), "")
    if sqlstate[:2] in ("08", "57"):
        return StoreUnavailable(f"{where} cannot be reached through this connection ({sqlstate}).")
    if sqlstate in ("42P01", "3F000", "42703", "42883"):
        return SchemaError(f"The database of this connection has no Homing schema; connect to {where}.")
    if is_rejected(sqlstate) or is_unbindable(error) or type(error).__name__ == "DataError":
        return StoreRejected(f"{where} rejected the data: {type(error).__name__} {sqlstate}".rstrip())
    return StoreError(f"{where}: {type(error).__name__} {sqlstate}".rstrip())


def _sqlstate(error: object) -> str:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""
