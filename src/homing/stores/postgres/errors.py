"""Translates the driver's and PostgreSQL's errors into Homing's."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
from asyncpg import exceptions

from homing.core.errors import (
    SchemaError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    StoreUnavailable,
)
from homing.stores.postgres.hosts import NoUsableHost, describe_host_error


class DuplicateIds(StoreRejected):
    """Raised if an id is stored already.

    Either a call is repeated after its result was lost, or the caller has used the id for another request.
    """


class QueueGone(StoreBusy):
    """Raised in a caller's transaction if it does not find a queue under the number that the cache has."""


RETRYABLE_ERRORS = (exceptions.DeadlockDetectedError, exceptions.SerializationError)
"""Conflicts with another transaction. The same transaction is likely to succeed when it is run again."""
LOST_STATEMENT_ERRORS = (
    exceptions.InvalidSQLStatementNameError,
    exceptions.DuplicatePreparedStatementError,
)
"""A prepared statement is missing or exists already, because a pooler has switched the server session."""
_CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    exceptions.PostgresConnectionError,
    exceptions.InterfaceError,
    exceptions.OperatorInterventionError,
    exceptions.IdleInTransactionSessionTimeoutError,
    exceptions.TooManyConnectionsError,
    exceptions.InternalClientError,
)

_SCHEMA_ERRORS = (
    exceptions.UndefinedTableError,
    exceptions.UndefinedColumnError,
    exceptions.UndefinedFunctionError,
    exceptions.InvalidSchemaNameError,
)
PERMISSION_ERRORS = (exceptions.ReadOnlySQLTransactionError, exceptions.InsufficientPrivilegeError)
"""The role may not do this, or the server is a standby."""
_REJECTED_CLASSES = frozenset({"21", "22", "23", "44", "54", "P0"})
"""First two characters of the SQLSTATEs that concern the data of a call, not the state of the server.

They are: cardinality, data exception, integrity constraint, check option, program limit (such as a value that
is too long for an index), and an exception that a trigger has raised.
"""
_UNBINDABLE = (UnicodeEncodeError, OverflowError)
"""Raised by a driver before a value is sent, because PostgreSQL has no form of this value."""
_LOGIN_ERRORS = (exceptions.InvalidAuthorizationSpecificationError, exceptions.InvalidCatalogNameError)


def is_statement_lost(error: Exception) -> bool:
    """Returns True if a prepared statement was lost, also if that made one of several hosts fail."""
    errors = error.errors if isinstance(error, NoUsableHost) else (error,)
    return any(isinstance(one, LOST_STATEMENT_ERRORS) for one in errors)


def is_connection_lost(error: BaseException) -> bool:
    """Returns True if the connection failed, not the statement."""
    return (
        isinstance(error, _CONNECTION_ERRORS)
        and not isinstance(error, exceptions.QueryCanceledError)
        and not is_unbindable(error)
    )


def is_queue_gone(error: BaseException) -> bool:
    """Returns True if a queue number from this process's cache names no queue, or another one, by now.

    The statement has then written NULL instead (see `checked_queue`). The error may come from any driver.
    """
    return any(
        getattr(one, "sqlstate", None) == "23502"
        and "queue"
        in (getattr(one, "column_name", None), getattr(getattr(one, "diag", None), "column_name", None))
        for one in driver_errors(error)
    )


def driver_errors(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and those that it wraps: a library may wrap the error of its driver more than once."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and not any(one is other for other in seen):
            seen.append(one)
            waiting += (getattr(one, "orig", None), one.__cause__)
            yield one


def _busy(error: Exception, where: str) -> StoreBusy | None:
    """Returns the store error if a lock, a conflict or a slow server is at fault, otherwise None."""
    match error:
        case exceptions.LockNotAvailableError():
            return StoreBusy(
                f"Another transaction at {where} holds a lock that this call needs. Nothing was changed; try "
                "again. If that does not help, end that transaction (pg_stat_activity shows it)."
            )
        case exceptions.QueryCanceledError() | exceptions.TransactionTimeoutError():
            return StoreBusy(f"{where} took too long. Nothing was changed; try again.")
        case _ if isinstance(error, RETRYABLE_ERRORS):
            return StoreBusy(f"{where} has conflicting transactions. Nothing was changed; try again.")
        case _:
            return None


def _rejection(error: Exception, where: str) -> StoreRejected | None:
    """Returns the store error if the data of the call is at fault, otherwise None."""
    if isinstance(error, asyncpg.PostgresError) and is_rejected(error.sqlstate or ""):
        return StoreRejected(f"{where} rejected the data: {type(error).__name__} ({error.sqlstate})")
    if is_unbindable(error):
        return StoreRejected(f"{where} cannot store a value of this call ({type(error).__name__}).")
    return None


def is_rejected(sqlstate: str) -> bool:
    """Returns True if the SQLSTATE means that the same data would be rejected again."""
    return sqlstate[:2] in _REJECTED_CLASSES


def is_unbindable(error: BaseException) -> bool:
    """Returns True if the driver could not bind a value.

    asyncpg itself raises an `InterfaceError` that is also a `ValueError`, as it does for wrong settings of a
    connection.
    """
    is_data_error = isinstance(error, exceptions.InterfaceError) and isinstance(error, ValueError)
    is_setting = isinstance(error, exceptions.ClientConfigurationError)
    return isinstance(error, _UNBINDABLE) or (is_data_error and not is_setting)


def translate_connect_error(error: Exception, where: str) -> Exception:
    """Like `translate_error`, for an error while connecting, which says nothing about the data of a call.

    Whatever the reason, the store is unavailable until the server allows the connection.
    """
    translated = translate_error(error, where)
    if isinstance(translated, StoreUnavailable) or not isinstance(translated, StoreError):
        return translated
    return StoreUnavailable(f"{where} cannot be reached right now: {describe_host_error(error)}. Try again.")


def translate_error(error: Exception, where: str) -> Exception:
    """Returns the store error for an error of the driver. Any other exception is returned unchanged."""
    match error:
        case _ if (busy := _busy(error, where)) is not None:
            return busy
        case _ if isinstance(error, _LOGIN_ERRORS):
            return StoreUnavailable(f"{where} rejected the login; check the user, password and database.")
        case _ if is_connection_lost(error):
            why = error if isinstance(error, NoUsableHost) else describe_host_error(error)
            return StoreUnavailable(f"{where} cannot be reached right now ({why}). Try again.")
        case exceptions.DiskFullError():
            return StoreFull(f"No space left at {where}. Nothing was changed; free some space and try again.")
        case exceptions.InsufficientResourcesError():
            return StoreUnavailable(f"{where} is out of resources ({type(error).__name__}). Try again.")
        case _ if isinstance(error, PERMISSION_ERRORS):
            return StoreReadOnly(
                f"{where} does not allow this ({error}). Check the user's grants, or whether it is a standby."
            )
        case _ if isinstance(error, _SCHEMA_ERRORS):
            return SchemaError(f"{where} has no Homing schema, or an outdated one. Run `homing db migrate`.")
        case exceptions.UniqueViolationError(constraint_name="messages_id_key"):
            return DuplicateIds(f"{where} already has a notification with one of these ids; ids must be new.")
        case _ if (rejected := _rejection(error, where)) is not None:
            return rejected
        case asyncpg.PostgresError():
            return StoreError(f"{where}: {_describe(error)}")
        case _:
            return error


def _describe(error: asyncpg.PostgresError) -> str:
    if isinstance(error, LOST_STATEMENT_ERRORS):
        return (
            f"a connection pooler does not support prepared statements ({error.sqlstate}). Remove "
            "cached_statements from the store's URL, or set it to 0."
        )
    return f"{type(error).__name__} ({error.sqlstate})"
