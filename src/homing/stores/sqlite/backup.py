"""Copies a SQLite file while it is in use, and verifies the copy.

The copy is one consistent snapshot: everything that was committed before it began, and nothing that was
committed later. Copying only the file would miss what is still in the write-ahead log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from homing.core.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from homing.stores.sqlite.connection import connect, translate_error
from homing.stores.sqlite.migrations import check_version
from homing.stores.sqlite.open_file import write_new_mark

_STEP_PAGES = 256
"""Number of pages to copy before progress is reported: one megabyte."""

_BUSY_TIMEOUT_MS = 5_000


class BackupResult(Struct, frozen=True, kw_only=True):
    """A finished and verified backup."""

    bytes: int
    notifications: int
    """Number of notifications in the backup."""


def back_up(source: Path, target: Path, on_step: Callable[[int, int], None]) -> BackupResult:
    """Copies the store in `source` to the new file `target`, and verifies it.

    Other connections can read and write the source meanwhile: the copy reads a snapshot, which blocks none of
    them. `on_step` is called with the numbers of copied and of all pages. If anything fails, or `on_step`
    raises, the target is removed.

    Raises `ConfigError` if the target exists or cannot be created, `StoreUnavailable` if there is no source.
    """
    if not source.is_file():  # connecting would create it
        raise StoreUnavailable(f"{source} does not exist. Check the path of the store.")
    try:
        # Only the owner may read the file, because it contains the recipients.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ConfigError("file", f"{target} exists; a backup never overwrites a file") from None
    except OSError as error:
        raise ConfigError("file", f"{target} cannot be created: {error.strerror}") from None
    try:
        try:
            _copy(source, target, on_step)
        except sqlite3.Error as error:
            raise translate_error(error, source) from error
        try:
            result = _verify(target)
        except sqlite3.Error as error:
            raise translate_error(error, target) from error
        _sync(target)
    except BaseException:
        for ending in ("", "-journal", "-wal", "-shm"):
            target.with_name(target.name + ending).unlink(missing_ok=True)
        raise
    return result


def _copy(source: Path, target: Path, on_step: Callable[[int, int], None]) -> None:
    with closing(connect(source, _BUSY_TIMEOUT_MS)) as reading, closing(sqlite3.connect(target)) as writing:
        check_version(reading.cursor(), str(source))
        reading.execute("BEGIN")
        # The first read starts the snapshot. Without it, every commit of another process would start the
        # backup over.
        (tables,) = reading.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'homing_notifications'"
        ).fetchone()
        if not tables:
            raise SchemaError(f"{source} has no tables of Homing; run homing db migrate first.")
        reading.backup(
            writing,
            pages=_STEP_PAGES,
            progress=lambda status, remaining, total: on_step(total - remaining, total),
        )


def _verify(target: Path) -> BackupResult:
    """Checks the structure of the copy. Leaves it as one file, without a write-ahead log."""
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        problems = [text for (text,) in copy.execute("PRAGMA integrity_check(10)") if text != "ok"]
        if problems:
            raise StoreError(f"The backup is damaged, and so may be the store: {'; '.join(problems)}")
        (number,) = copy.execute("SELECT coalesce(sum(count), 0) FROM homing_tallies").fetchone()
        write_new_mark(copy.cursor())  # a process that uses the store notices that the backup is another file
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return BackupResult(bytes=target.stat().st_size, notifications=number)


def _sync(target: Path) -> None:
    """Makes sure that the file and its name survive a power cut."""
    for place in (target, target.parent):
        opened = os.open(place, os.O_RDONLY)
        try:
            with suppress(OSError):  # some file systems cannot sync a folder
                os.fsync(opened)
        finally:
            os.close(opened)
