"""Translates the errors of PyMongo and MongoDB into Homing's."""

from __future__ import annotations

from bson.errors import InvalidBSON, InvalidDocument, InvalidStringData
from pymongo import errors

from homing.core.errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    StoreUnavailable,
)

_UNSTORABLE = (
    InvalidDocument,
    InvalidStringData,
    InvalidBSON,
    errors.DocumentTooLarge,
    OverflowError,
    UnicodeEncodeError,
)
"""Raised by the driver before a value is sent, because BSON has no form of it."""

_TOO_LARGE = frozenset({10334, 17280, 17419, 17420})
"""Codes of the server for a document or index key that is too large."""

_NO_SPACE = frozenset({14031})
_NOT_AUTHORIZED = frozenset({13, 18, 8000})
_INTERRUPTED = frozenset({50, 112, 251, 262, 11600, 11602, 24, 46, 1222})
"""Codes for a time limit, a conflict with another transaction, or a lock that another one holds."""


def translate(error: Exception, where: str) -> StoreError:
    """Returns Homing's error for an error of the driver. `where` names the store, without credentials."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, _UNSTORABLE):
        return StoreRejected(f"The store cannot hold a value of this call ({type(error).__name__}).")
    if isinstance(error, errors.ConfigurationError):
        return StoreError(f"{where} cannot be used: {error}")
    if isinstance(error, errors.PyMongoError):
        code = getattr(error, "code", None)
        if code in _TOO_LARGE:
            return StoreRejected("The store cannot hold a value of this call (too large).")
        if code in _NO_SPACE:
            return StoreFull(f"The disk of {where} is full.")
        if code in _NOT_AUTHORIZED:
            return StoreReadOnly(f"{where} does not permit this: {_text(error)}. Check user and password.")
        if code in _INTERRUPTED:
            return StoreBusy(f"{where} was busy for too long ({_text(error)}).")
        return StoreUnavailable(f"{where} is unavailable ({_text(error)}).")
    if isinstance(error, (OSError, TimeoutError)):
        return StoreUnavailable(f"{where} is unavailable ({type(error).__name__}).")
    raise error


def is_transient(error: Exception) -> bool:
    """Returns True if the transaction can be run again as a whole."""
    if isinstance(error, errors.PyMongoError) and error.has_error_label("TransientTransactionError"):
        return True
    return isinstance(error, errors.DuplicateKeyError) or has_duplicate_key(error)


def has_duplicate_key(error: Exception) -> bool:
    """Returns True if a document with the same key exists. A repetition of the transaction finds it."""
    if not isinstance(error, errors.BulkWriteError):
        return False
    found = (error.details or {}).get("writeErrors", ())
    return any(one.get("code") in (11000, 11001) for one in found)


def _text(error: errors.PyMongoError) -> str:
    if isinstance(error, errors.ServerSelectionTimeoutError):
        return "no primary can be reached"
    code = getattr(error, "code", None)
    return f"{type(error).__name__}" if code is None else f"{type(error).__name__}, code {code}"
