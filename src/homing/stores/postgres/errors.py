"""What PostgreSQL says, in Homing's words."""

from __future__ import annotations

import asyncpg
from asyncpg import exceptions as said

from homing.core.errors import (
    SchemaError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)


class Repeated(StoreError):
    """An id is there already: a call is repeated whose answer was lost, or ids are not new."""


RACES = (said.DeadlockDetectedError, said.SerializationError)
"""Lost against another transaction: the same again is likely to succeed."""
_NO_CONNECTION = (
    OSError,
    TimeoutError,
    said.PostgresConnectionError,
    said.InterfaceError,
    said.OperatorInterventionError,
    said.TooManyConnectionsError,
    said.InternalClientError,
)
_TOO_LONG = (said.LockNotAvailableError, said.QueryCanceledError)
_NO_SCHEMA = (
    said.UndefinedTableError,
    said.UndefinedColumnError,
    said.UndefinedFunctionError,
    said.InvalidSchemaNameError,
)
_NOT_ALLOWED = (said.ReadOnlySQLTransactionError, said.InsufficientPrivilegeError)
_NOT_LET_IN = (said.InvalidAuthorizationSpecificationError, said.InvalidCatalogNameError)


def lost_connection(error: BaseException) -> bool:
    """Whether the connection, not the statement, is at fault."""
    return isinstance(error, _NO_CONNECTION) and not isinstance(error, said.QueryCanceledError)


def translated(error: Exception, where: str) -> Exception:
    """A store error for what the driver raised; anything else as it is."""
    match error:
        case said.QueryCanceledError() | said.LockNotAvailableError():
            return StoreBusy(f"{where} took too long. Nothing was changed; try again.")
        case _ if isinstance(error, RACES):
            return StoreBusy(f"{where} is contended. Nothing was changed; try again.")
        case _ if isinstance(error, _NOT_LET_IN):
            return StoreError(f"{where} does not let Homing in: check the user, password and database.")
        case _ if lost_connection(error):
            return StoreUnavailable(
                f"{where} cannot be reached right now ({type(error).__name__}). Try again."
            )
        case said.DiskFullError():
            return StoreFull(f"No space left at {where}. Nothing was changed; free some space and try again.")
        case said.InsufficientResourcesError():
            return StoreUnavailable(f"{where} is out of resources ({type(error).__name__}). Try again.")
        case _ if isinstance(error, _NOT_ALLOWED):
            return StoreReadOnly(
                f"{where} does not allow this ({error}). Check the user's grants, or whether it is a standby."
            )
        case _ if isinstance(error, _NO_SCHEMA):
            return SchemaError(f"{where} has no Homing schema yet, or another one. Run `homing db migrate`.")
        case said.UniqueViolationError(constraint_name="messages_id_key"):
            return Repeated(f"{where} has a notification with one of these ids already; ids must be new.")
        case asyncpg.PostgresError():
            return StoreError(f"{where}: {type(error).__name__} ({error.sqlstate})")
        case _:
            return error
