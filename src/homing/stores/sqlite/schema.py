"""Which migrations a file has seen, and applying those it has not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from homing.stores.migrate import check, migrations, pending

MIGRATIONS = migrations("sqlite")

_VERSIONS = """
CREATE TABLE IF NOT EXISTS homing_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
)
"""


def version_of(cursor: sqlite3.Cursor) -> int:
    """The version of the schema in the file; 0: there is none yet."""
    cursor.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'homing_schema'")
    if cursor.fetchone() is None:
        return 0
    version: int = cursor.execute("SELECT coalesce(max(version), 0) FROM homing_schema").fetchone()[0]
    return version


def check_version(cursor: sqlite3.Cursor, where: str) -> None:
    """Raises `SchemaError` for a schema that is newer than this program."""
    check(MIGRATIONS, version_of(cursor), where)


def migrate(cursor: sqlite3.Cursor, where: str, now: int) -> tuple[str, ...]:
    """Applies what is missing, in the transaction it is called in; the names of what it applied."""
    cursor.execute(_VERSIONS)
    missing = pending(MIGRATIONS, version_of(cursor), where)
    for migration in missing:
        for statement in _statements(migration.sql):
            cursor.execute(statement)
        cursor.execute(
            "INSERT INTO homing_schema (version, name, applied_at) VALUES (?, ?, ?)",
            (migration.version, migration.name, now),
        )
    return tuple(migration.name for migration in missing)


def _statements(script: str) -> Iterator[str]:
    """One statement at a time: `executescript` would commit what is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "a migration ends with a complete statement"
