"""Which migrations a file has seen, and applying those it has not.

Code of the first release looks for the highest version in `homing_schema`, and works on no file where that is
higher than what it knows. So this table holds no more than what every program must know that opens the file;
all that was applied is in `homing_migrations`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from homing.stores.migrate import Migration, Standing, check, migrations, pending

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
    applied_at INTEGER NOT NULL,
    runs_with  INTEGER NOT NULL
)
""",
)
_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_STANDING = "SELECT coalesce(max(version), 0), coalesce(max(runs_with), 0) FROM homing_migrations"
_FIRST_STANDING = "SELECT coalesce(max(version), 0), coalesce(max(version), 0) FROM homing_schema"
_KEPT_BY_THE_FIRST = "SELECT version, name, applied_at FROM homing_schema ORDER BY version"
_APPLIED = "INSERT INTO homing_migrations (version, name, applied_at, runs_with) VALUES (?, ?, ?, ?)"
_MUST_KNOW = """
INSERT INTO homing_schema (version, name, applied_at)
SELECT version, name, applied_at FROM homing_migrations
WHERE version <= ? AND version NOT IN (SELECT version FROM homing_schema)
"""
_NEED_NOT_KNOW = "DELETE FROM homing_schema WHERE version > ?"


def standing_of(cursor: sqlite3.Cursor) -> Standing:
    """Where the schema in the file stands."""
    for table, statement in (("homing_migrations", _STANDING), ("homing_schema", _FIRST_STANDING)):
        if cursor.execute(_EXISTS, (table,)).fetchone() is not None:
            version, runs_with = cursor.execute(statement).fetchone()
            if version:
                return Standing(version, runs_with)
    return Standing()


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
    _take_over(cursor)
    for migration in missing:
        for statement in _statements(migration.sql):
            cursor.execute(statement)
        _note(cursor, migration, now)
    needed = standing_of(cursor).runs_with
    cursor.execute(_MUST_KNOW, (needed,))
    cursor.execute(_NEED_NOT_KNOW, (needed,))
    return tuple(migration.name for migration in missing)


def _take_over(cursor: sqlite3.Cursor) -> None:
    """What the first release has noted, it has noted in its own table only."""
    if cursor.execute(_STANDING).fetchone()[0]:
        return
    for version, _, applied_at in cursor.execute(_KEPT_BY_THE_FIRST).fetchall():
        _note(cursor, MIGRATIONS[version - 1], applied_at)


def _note(cursor: sqlite3.Cursor, migration: Migration, at: int) -> None:
    cursor.execute(_APPLIED, (migration.version, migration.name, at, migration.runs_with))


def _statements(script: str) -> Iterator[str]:
    """One statement at a time: `executescript` would commit what is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "a migration ends with a complete statement"
