"""A database in memory: one connection, whose calls are performed at once in the caller's own thread.

Nothing here awaits, so a call needs neither an event loop nor a thread. Every database starts as a copy of
one template, because the migrations take longer than copying their result.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from homing.stores.sqlite import migrations
from homing.stores.sqlite.connection import connect_in_memory, translate_error
from homing.stores.sqlite.writer_thread import RetryTransaction

MEMORY = ":memory:"
"""The path that stands for a database in memory, in SQLite and here."""

_PATH = Path(MEMORY)

R = TypeVar("R")


class MemoryDatabase:
    """A migrated database that exists as long as this object. Several stores may share it.

    The lock keeps the transactions of several threads apart. It is never held across an `await`.
    """

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        """`connection` is an empty database in memory, in autocommit mode; None opens one."""
        self.connection = connect_in_memory() if connection is None else connection
        _template().backup(self.connection)
        self._cursor = self.connection.cursor()
        self._lock = threading.Lock()
        self.history = ""
        """Changes when the contents have gone back to an earlier state."""

    def write(self, action: Callable[[sqlite3.Cursor], R]) -> R:
        """Performs the action in its own transaction. If it fails, nothing is changed."""
        with self._lock:
            while True:
                try:
                    self._cursor.execute("BEGIN IMMEDIATE")
                    result = action(self._cursor)
                    self._cursor.execute("COMMIT")
                except RetryTransaction:
                    self._roll_back()
                except BaseException as error:
                    self._roll_back()
                    if isinstance(error, Exception) and (own := translate_error(error, _PATH)) is not error:
                        raise own from error
                    raise
                else:
                    return result

    def read(self, action: Callable[[sqlite3.Cursor], R]) -> R:
        """Performs the action. It needs no transaction, because no other call can write meanwhile."""
        with self._lock:
            try:
                return action(self._cursor)
            except Exception as error:
                if (own := translate_error(error, _PATH)) is not error:
                    raise own from error
                raise

    def _roll_back(self) -> None:
        # SQLite may have rolled back already, for example because no memory is left.
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self._cursor.execute("ROLLBACK")


@cache
def _template() -> sqlite3.Connection:
    """Returns the database that every other one is copied from."""
    connection = connect_in_memory()
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    migrations.migrate(cursor, MEMORY, now=0)
    cursor.execute("COMMIT")
    return connection
