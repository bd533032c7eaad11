"""Reads which migrations were applied to a file and applies the missing ones.

The first release reads the highest version in `homing_schema` and rejects a file if it does not know that
version. So `homing_schema` holds only the migrations that every program must know to use the file, and
`homing_migrations` holds all that were applied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from homing.stores.common.migrations import (
    SchemaState,
    check_schema_state,
    find_pending_migrations,
    load_migrations,
    require_schema,
)

MIGRATIONS = load_migrations("sqlite")


_CREATE_TABLES = (
    """
CREATE TABLE IF NOT EXISTS homing_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
)
""",
    """
CREATE TABLE IF NOT EXISTS homing_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
)
""",
)

_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"

_NEWEST = "SELECT coalesce(max(version), 0) FROM {table}"

_RECORD_APPLIED = "INSERT INTO homing_migrations (version, name, applied_at) VALUES (?, ?, ?)"

_COPY_FROM_SCHEMA = """
INSERT OR IGNORE INTO homing_migrations (version, name, applied_at)
SELECT version, name, applied_at FROM homing_schema
"""

_ADD_REQUIRED = """
INSERT OR IGNORE INTO homing_schema (version, name, applied_at)
SELECT version, name, applied_at FROM homing_migrations WHERE version <= ?
"""

_REMOVE_NOT_REQUIRED = "DELETE FROM homing_schema WHERE version > ?"


def read_schema_state(cursor: sqlite3.Cursor) -> SchemaState:
    """Returns the state of the file's schema."""
    needed, applied = (_newest(cursor, table) for table in ("homing_schema", "homing_migrations"))
    return SchemaState(max(applied, needed), needed)


def read_schema_version(cursor: sqlite3.Cursor) -> int:
    """Returns the version of the file's schema, or 0 if it has none yet."""
    return read_schema_state(cursor).version


def check_version(cursor: sqlite3.Cursor, where: str) -> None:
    """Raises `SchemaError` if this program is too old for the file's schema."""
    check_schema_state(MIGRATIONS, read_schema_state(cursor), where)


def migrate(cursor: sqlite3.Cursor, where: str, now: int, *, create: bool = True) -> tuple[str, ...]:
    """Applies the pending migrations in the caller's transaction and returns their names."""
    state = read_schema_state(cursor)
    missing = find_pending_migrations(MIGRATIONS, state, where)
    if not missing:
        return ()
    if not create:
        require_schema(state, where)
    for table in _CREATE_TABLES:
        cursor.execute(table)
    cursor.execute(_COPY_FROM_SCHEMA)
    for migration in missing:
        for statement in _statements(migration.sql):
            cursor.execute(statement)
        cursor.execute(_RECORD_APPLIED, (migration.version, migration.name, now))
    needed = max(migration.runs_with for migration in MIGRATIONS)
    cursor.execute(_ADD_REQUIRED, (needed,))
    cursor.execute(_REMOVE_NOT_REQUIRED, (needed,))
    return tuple(migration.name for migration in missing)


def _newest(cursor: sqlite3.Cursor, table: str) -> int:
    if cursor.execute(_EXISTS, (table,)).fetchone() is None:
        return 0
    version: int = cursor.execute(_NEWEST.format(table=table)).fetchone()[0]
    return version


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script. `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "the last statement of a migration is incomplete"
