"""Checks that a file in use is still the one at its path, so that nothing is acknowledged that is lost.

SQLite keeps working on a file that was deleted, replaced or overwritten. What it commits is then lost when
the process ends, or damages the file that took its place. No property of a connection shows this, so the
check looks at the file system after every group of calls. It costs two system calls.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from enum import Enum
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

_FIRST_MARK = 0x686F0000
"""The number of all marks in their first two bytes. An application may have its own tables in the same file,
and its own number in this place."""

_LAST_MARK = 0x686FFFFF


class FileProblem(Enum):
    """Why nothing can be stored in a file that was opened. The value is the text of the error."""

    DELETED = "{path} was deleted while it was in use. Nothing can be stored; put the file back."
    REPLACED = (
        "{path} was replaced while it was in use, and {path}-wal still belongs to the file that was there"
        " before. Nothing can be stored. Stop all processes that use the store, move {path}-wal and"
        " {path}-shm away, and start the processes again."
    )
    LOG_DELETED = (
        "{path}-wal was deleted while it was in use. Nothing can be stored; restart the process, which writes"
        " the contents of the log to {path}."
    )
    OVERWRITTEN = (
        "{path} was overwritten while it was in use, and is damaged. Nothing can be stored. Stop all"
        " processes that use the store, move {path}, {path}-wal and {path}-shm away, and restore the backup"
        " again."
    )


class _Inode(NamedTuple):
    """What distinguishes a file from all others that exist."""

    device: int
    number: int


class _MainFile(NamedTuple):
    """Properties of the main file that change only if it is written by a checkpoint, or from outside."""

    inode: _Inode
    size: int
    modified_ns: int


class _Header(NamedTuple):
    """Fields of the first page of the main file, without what is still in the write-ahead log."""

    mark: int
    """A number that every copy made by `homing db backup` has for itself. 0 in a file without one."""
    schema_version: int


class OpenFile:
    """The files that a connection has open. Must be created right after the connection was opened."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._location = os.path.abspath(path)  # noqa: PTH100  # a symbolic link is not resolved
        self._main = _find_main(self._location)
        self._log = _find_inode(self._location + "-wal")
        self._header = self._read_header()

    @property
    def identity(self) -> str:
        """Text that distinguishes the file from every other one that was at this path."""
        return "" if self._main is None else f"{self._main.inode.device}:{self._main.inode.number}"

    def find_problem(self) -> FileProblem | None:
        """Returns why commits to the open files are not where other processes look for them, or None."""
        try:
            found = _find_main(self._location)
            log = _find_inode(self._location + "-wal")
        except OSError:  # the folder cannot be read just now, which says nothing about the files
            return None
        if found is None:
            return FileProblem.DELETED
        if self._main is None or found.inode != self._main.inode:
            return FileProblem.REPLACED
        if log != self._log:
            if self._log is not None:
                return FileProblem.LOG_DELETED
            self._log = log
        return None if found == self._main else self._check_contents(found, self._main)

    def may_open_again(self) -> bool:
        """Returns True if there is another file at the path, and no log of the file that was there before.

        SQLite would apply the old log to the new file, and damage it.
        """
        try:
            log = _find_inode(self._location + "-wal")
            return _find_main(self._location) is not None and (log is None or log != self._log)
        except OSError:
            return False

    def describe(self, problem: FileProblem) -> str:
        """Returns the text of the error."""
        return problem.value.format(path=self._path)

    def _check_contents(self, found: _MainFile, before: _MainFile) -> FileProblem | None:
        """Checks a file that was written to. Usually that was a checkpoint, by this process or another.

        A checkpoint writes the mark that this connection reads. The schema version never falls, and is never
        higher than the one that this connection reads. The file becomes smaller only after a VACUUM, which
        raises the schema version, or with `auto_vacuum`. So a copy is noticed unless it was made without
        SQLite, by copying the file, and is as large as the file that it overwrites, or has `auto_vacuum`.
        """
        header = self._read_header()
        if header is None:
            return None  # checked again after the next group of calls
        seen = self._header or _Header(0, 0)
        try:
            mark, newest, auto_vacuum = (
                self._connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "schema_version", "auto_vacuum")
            )
        except sqlite3.Error:
            return None  # checked again after the next group of calls
        wrong_mark = header.mark not in (mark, seen.mark) or (header.mark == 0 and seen.mark != 0)
        wrong_version = not seen.schema_version <= header.schema_version <= newest
        shrank = found.size < before.size and header.schema_version == seen.schema_version
        if wrong_mark or wrong_version or (shrank and not auto_vacuum):
            return FileProblem.OVERWRITTEN
        self._main, self._header = found, header
        return None

    def _read_header(self) -> _Header | None:
        """Reads the main file as it is, without locks. Returns None if it cannot be read.

        SQLite reads it, because closing a file in Python would release the locks of all connections to it.
        The first page may be newer than the others while another process writes them.
        """
        address = f"{Path(self._location).as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                connection.execute("PRAGMA writable_schema = ON")  # tolerates missing pages
                mark = connection.execute("PRAGMA application_id").fetchone()[0]
                return _Header(mark, connection.execute("PRAGMA schema_version").fetchone()[0])
        except sqlite3.Error as error:
            no_database = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_NOTADB
            return _Header(-1, -1) if no_database else None


def write_new_mark(cursor: sqlite3.Cursor) -> None:
    """Gives the file a mark that distinguishes it from its copies and from the file that it was copied from.

    A number that an application has put there stays.
    """
    mark = cursor.execute("PRAGMA application_id").fetchone()[0]
    if mark == 0 or _FIRST_MARK <= mark <= _LAST_MARK:
        cursor.execute(f"PRAGMA application_id = {SystemRandom().randint(_FIRST_MARK, _LAST_MARK)}")


def write_missing_mark(cursor: sqlite3.Cursor) -> None:
    """Gives the file a mark unless it has one."""
    if not cursor.execute("PRAGMA application_id").fetchone()[0]:
        write_new_mark(cursor)


def _find_main(location: str) -> _MainFile | None:
    """Returns the properties of the main file, or None if there is no such file."""
    try:
        found = os.stat(location)  # noqa: PTH116  # twice as fast as Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _MainFile(_Inode(found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns)


def _find_inode(location: str) -> _Inode | None:
    found = _find_main(location)
    return None if found is None else found.inode
