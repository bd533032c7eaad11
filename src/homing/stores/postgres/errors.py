"""Translates the driver's and PostgreSQL's errors into Homing's."""

from __future__ import annotations

import asyncpg
from asyncpg import exceptions

from homing.core.errors import SchemaError, StoreBusy, StoreError, StoreFull, StoreReadOnly, StoreUnavailable


class DuplicateIds(StoreError):
    """Raised if an id is stored already.

    Either a call is repeated after its result was lost, or the caller has used the id for another request.
    """


RETRYABLE_ERRORS = (exceptions.DeadlockDetectedError, exceptions.SerializationError)
"""Conflicts with another transaction. The same transaction is likely to succeed when it is run again."""
_CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    exceptions.PostgresConnectionError,
    exceptions.InterfaceError,
    exceptions.OperatorInterventionError,
    exceptions.TooManyConnectionsError,
    exceptions.InternalClientError,
)

_SCHEMA_ERRORS = (
    exceptions.UndefinedTableError,
    exceptions.UndefinedColumnError,
    exceptions.UndefinedFunctionError,
    exceptions.InvalidSchemaNameError,
)
_PERMISSION_ERRORS = (exceptions.ReadOnlySQLTransactionError, exceptions.InsufficientPrivilegeError)
_LOGIN_ERRORS = (exceptions.InvalidAuthorizationSpecificationError, exceptions.InvalidCatalogNameError)


def is_connection_lost(error: BaseException) -> bool:
    """Returns True if the connection failed, not the statement."""
    return isinstance(error, _CONNECTION_ERRORS) and not isinstance(error, exceptions.QueryCanceledError)


def translate_error(error: Exception, where: str) -> Exception:
    """Returns the store error for an error of the driver. Any other exception is returned unchanged."""
    match error:
        case exceptions.QueryCanceledError() | exceptions.LockNotAvailableError():
            return StoreBusy(f"{where} took too long. Nothing was changed; try again.")
        case _ if isinstance(error, RETRYABLE_ERRORS):
            return StoreBusy(f"{where} has conflicting transactions. Nothing was changed; try again.")
        case _ if isinstance(error, _LOGIN_ERRORS):
            return StoreError(f"{where} rejected the login; check the user, password and database.")
        case _ if is_connection_lost(error):
            return StoreUnavailable(
                f"{where} cannot be reached right now ({type(error).__name__}). Try again."
            )
        case exceptions.DiskFullError():
            return StoreFull(f"No space left at {where}. Nothing was changed; free some space and try again.")
        case exceptions.InsufficientResourcesError():
            return StoreUnavailable(f"{where} is out of resources ({type(error).__name__}). Try again.")
        case _ if isinstance(error, _PERMISSION_ERRORS):
            return StoreReadOnly(
                f"{where} does not allow this ({error}). Check the user's grants, or whether it is a standby."
            )
        case _ if isinstance(error, _SCHEMA_ERRORS):
            return SchemaError(f"{where} has no Homing schema, or an outdated one. Run `homing db migrate`.")
        case exceptions.UniqueViolationError(constraint_name="messages_id_key"):
            return DuplicateIds(f"{where} already has a notification with one of these ids; ids must be new.")
        case asyncpg.PostgresError():
            return StoreError(f"{where}: {type(error).__name__} ({error.sqlstate})")
        case _:
            return error
