"""Opening the file, and saying what went wrong in Homing's words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from homing.core.errors import (
    SchemaError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a commit that was answered survives a power cut
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -65536",
    "PRAGMA wal_autocheckpoint = 4000",  # 16 MB: fewer, larger checkpoints, each page written once
    "PRAGMA journal_size_limit = 67108864",  # what one long read made the log grow to is given back
)
_CACHED_STATEMENTS = 512
_OLDEST = (3, 35, 0)
_PRIMARY = 0xFF
"""The low byte of an extended result code is the primary one."""


def connect(path: Path, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection that its thread alone uses; transactions are begun and ended by hand."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreError(f"Homing needs SQLite 3.35 or newer; this Python has {sqlite3.sqlite_version}.")
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,  # made and closed by the opener, used by one thread in between
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise translated(error, path) from error
    return connection


def translated(error: Exception, path: Path) -> Exception:
    """A store error for what SQLite said; anything else as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreBusy(
                f"{path} is locked by another process for too long. Nothing was changed; try again."
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"No space left for {path}. Nothing was changed; free some space and try again.")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreReadOnly(f"{path} is read-only. Check the permissions of the file and its folder.")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(_cannot_open(path))
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            return StoreUnavailable(f"{path} cannot be read or written right now ({error}). Check its disk.")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{path} is not an SQLite database. Check the path of the store.")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"{path} is damaged ({error}). Restore it from a backup.")
        case sqlite3.SQLITE_CONSTRAINT if "homing_notifications.id" in str(error):
            return StoreError("An id belongs to another notification already; ids must be new.")
        case _ if "no such table: homing_" in str(error):
            return SchemaError(f"{path} has no Homing schema yet. Run `homing db migrate`.")
        case _:
            return StoreError(f"{path}: {error}")


def _cannot_open(path: Path) -> str:
    if not path.parent.is_dir():
        return f"{path} cannot be opened: its folder does not exist. Create {path.parent}."
    if path.is_dir():
        return f"{path} cannot be opened: it is a folder. Name a file in it."
    return f"{path} cannot be opened. Check the permissions of the file and its folder."
