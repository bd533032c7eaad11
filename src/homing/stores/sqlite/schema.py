"""Which migrations a file has seen, and applying those it has not.

Code of the first release looks for the highest version in `homing_schema`, and works on no file where that is
higher than what it knows. So this table holds no more than what every program must know that opens the file;
all that was applied is in `homing_migrations`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from homing.stores.migrate import Standing, check, migrations, pending

MIGRATIONS = migrations("sqlite")

_TABLES = (
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
_APPLIED = "INSERT INTO homing_migrations (version, name, applied_at) VALUES (?, ?, ?)"
_TAKEN_OVER = """
INSERT OR IGNORE INTO homing_migrations (version, name, applied_at)
SELECT version, name, applied_at FROM homing_schema
"""
_MUST_KNOW = """
INSERT OR IGNORE INTO homing_schema (version, name, applied_at)
SELECT version, name, applied_at FROM homing_migrations WHERE version <= ?
"""
_NEED_NOT_KNOW = "DELETE FROM homing_schema WHERE version > ?"


def standing_of(cursor: sqlite3.Cursor) -> Standing:
    """Where the schema in the file stands."""
    needed, applied = (_newest(cursor, table) for table in ("homing_schema", "homing_migrations"))
    return Standing(max(applied, needed), needed)


def version_of(cursor: sqlite3.Cursor) -> int:
    """The version of the schema in the file; 0: there is none yet."""
    return standing_of(cursor).version


def check_version(cursor: sqlite3.Cursor, where: str) -> None:
    """Raises `SchemaError` for a schema that this program is too old for."""
    check(MIGRATIONS, standing_of(cursor), where)


def migrate(cursor: sqlite3.Cursor, where: str, now: int) -> tuple[str, ...]:
    """Applies what is missing, in the transaction it is called in; the names of what it applied."""
    missing = pending(MIGRATIONS, standing_of(cursor), where)
    if not missing:
        return ()
    for table in _TABLES:
        cursor.execute(table)
    cursor.execute(_TAKEN_OVER)
    for migration in missing:
        for statement in _statements(migration.sql):
            cursor.execute(statement)
        cursor.execute(_APPLIED, (migration.version, migration.name, now))
    needed = max(migration.runs_with for migration in MIGRATIONS)
    cursor.execute(_MUST_KNOW, (needed,))
    cursor.execute(_NEED_NOT_KNOW, (needed,))
    return tuple(migration.name for migration in missing)


def _newest(cursor: sqlite3.Cursor, table: str) -> int:
    if cursor.execute(_EXISTS, (table,)).fetchone() is None:
        return 0
    version: int = cursor.execute(_NEWEST.format(table=table)).fetchone()[0]
    return version


def _statements(script: str) -> Iterator[str]:
    """One statement at a time: `executescript` would commit what is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "a migration ends with a complete statement"
