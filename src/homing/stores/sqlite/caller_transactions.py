"""Joins a caller's transaction, so that the caller's data and notifications are committed together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homing.core.errors import StoreError
from homing.stores.sqlite.connection import translate_error


@contextmanager
def join_transaction(connection: object, path: Path) -> Iterator[sqlite3.Cursor]:
    """Yields a cursor in the caller's transaction. The caller commits or rolls back.

    If the block fails, its changes are rolled back to a savepoint and the caller's transaction stays usable.
    """
    if not isinstance(connection, sqlite3.Connection):
        raise StoreError(f"tx must be a sqlite3.Connection, not {type(connection).__name__}.")
    try:
        cursor = connection.cursor()
    except sqlite3.ProgrammingError as error:
        raise StoreError(f"{error} Send from the thread that opened the connection.") from None
    cursor.row_factory = None
    try:
        if not connection.in_transaction:
            if connection.isolation_level is None:
                raise StoreError("This connection has no transaction to join. Begin one first.")
            cursor.execute(
                "BEGIN IMMEDIATE"
            )  # sqlite3 itself would begin a transaction only at the first write
        cursor.execute("SAVEPOINT homing")
        try:
            yield cursor
        except BaseException:
            if connection.in_transaction:
                cursor.execute("ROLLBACK TO homing")
                cursor.execute("RELEASE homing")
            raise
        cursor.execute("RELEASE homing")
    except sqlite3.Error as error:
        raise translate_error(error, path) from error
    finally:
        cursor.close()
