"""Opens the SQLite file and translates SQLite's errors into Homing's."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from homing.core.errors import (
    SchemaError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    StoreUnavailable,
)

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a finished commit survives a power cut
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -65536",
    "PRAGMA wal_autocheckpoint = 4000",  # 16 MB: with fewer checkpoints, each page is written less often
    "PRAGMA journal_size_limit = 67108864",  # 64 MB: a log that grew during a long read shrinks again
)

_CACHED_STATEMENTS = 512

_OLDEST_SQLITE = (3, 35, 0)

_LOCKED_PAUSE_S = 0.005
"""Pause before a pragma is repeated."""

_UNBINDABLE = (UnicodeEncodeError, OverflowError)
"""Raised by the driver before a value is written, because SQLite has no form of this value."""

_PRIMARY_CODE_MASK = 0xFF
"""The low byte of an extended result code is the primary result code."""


def connect(path: Path, busy_timeout_ms: int) -> sqlite3.Connection:
    """Opens a connection for use by one thread. The caller begins and ends transactions explicitly."""
    _check_sqlite_version()
    _create_private(path)
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,  # the thread that opens the connection is not the one that uses it
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            _configure(connection, busy_timeout_ms)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise translate_error(error, path) from error
    return connection


def _configure(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    """Executes the pragmas, and repeats each until the timeout while the file is locked.

    SQLite does not wait itself if several connections switch a new file to a write-ahead log at once.
    """
    until = time.monotonic() + busy_timeout_ms / 1000
    for pragma in _PRAGMAS:
        while True:
            try:
                connection.execute(pragma)
                break
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                    raise
                time.sleep(_LOCKED_PAUSE_S)


def _create_private(path: Path) -> None:
    """Creates the file so that only its owner may read it, because it contains the recipients.

    SQLite gives the log the same mode. An existing file keeps its mode, and is never opened here: closing it
    would release the locks of this process's other connections.
    """
    with suppress(OSError):  # it exists, or SQLite reports why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def connect_in_memory(factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """Opens an empty database in memory. The caller begins and ends transactions explicitly."""
    _check_sqlite_version()
    connection = sqlite3.connect(
        ":memory:",
        isolation_level=None,
        check_same_thread=False,  # `SyncHoming` uses the store in another thread than the one that made it
        cached_statements=_CACHED_STATEMENTS,
        factory=factory,
    )
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _primary_code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary result code. Errors of the driver itself have none, and count as general."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE_MASK


def translate_error(error: Exception, path: Path) -> Exception:
    """Returns the store error for an error of SQLite or its driver. Returns any other exception unchanged."""
    if _is_unbindable(error):
        return StoreRejected(f"{path} cannot store a value of this call ({type(error).__name__}).")
    if not isinstance(error, sqlite3.Error):
        return error
    match _primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreBusy(
                f"{path} was locked by another process for too long. Nothing was changed; try again. If "
                "that does not help, a process is suspended or hangs while it writes "
                f"(`fuser {path}` lists them); resume or end it."
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"No space left for {path}. Nothing was changed; free some space and try again.")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreReadOnly(f"{path} is read-only. Check the permissions of the file and its folder.")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(_cannot_open(path))
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            return StoreUnavailable(f"{path} cannot be read or written right now ({error}). Check its disk.")
        case sqlite3.SQLITE_CONSTRAINT if "homing_notifications.id" in str(error):
            return StoreRejected("An id already belongs to another notification; ids must be new.")
        case (
            sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_RANGE
        ):
            return StoreRejected(f"{path} rejected the data ({error}).")
        case _:
            return _unusable(error, path)


def _unusable(error: sqlite3.Error, path: Path) -> StoreError:
    """Returns the store error for a file that cannot be used as it is."""
    match _primary_code(error):
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{path} is not an SQLite database. Check the path of the store.")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"{path} is damaged ({error}). Restore it from a backup.")
        case _ if "no such table: homing_" in str(error):
            return SchemaError(f"{path} has no Homing schema yet. Run `homing db migrate`.")
        case _:
            return StoreError(f"{path}: {error}")


def _is_unbindable(error: Exception) -> bool:
    """Returns True if a value could not be bound. The driver has no error class of its own for that."""
    unsupported = isinstance(error, sqlite3.ProgrammingError) and "binding parameter" in str(error)
    return unsupported or isinstance(error, _UNBINDABLE)


def _check_sqlite_version() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"Homing needs SQLite 3.35 or newer; this Python has {sqlite3.sqlite_version}.")


def _cannot_open(path: Path) -> str:
    if not path.parent.is_dir():
        return f"{path} cannot be opened: its folder does not exist. Create {path.parent}."
    if path.is_dir():
        return f"{path} cannot be opened: it is a folder. Name a file in it."
    return f"{path} cannot be opened. Check the permissions of the file and its folder."
