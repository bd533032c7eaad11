"""Numbered migrations, forward only: `sql/<dialect>/0001_name.sql`, `0002_…`, in the package itself.

A migration that a release has carried is never edited: the next one amends it, and does so in a way that
the code of the release before can live with.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from msgspec import Struct

from homing.core.errors import SchemaError


class Migration(Struct, frozen=True):
    """One step of the schema; `version` is its number."""

    version: int
    name: str
    sql: str


def migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of a dialect, in order."""
    folder = resources.files("homing.stores") / "sql" / dialect
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    found = []
    for position, file in enumerate(files, 1):
        name = file.name.removesuffix(".sql")
        assert name.startswith(f"{position:04}_"), f"migration {position} is missing: {name}"
        found.append(Migration(position, name, file.read_text(encoding="utf-8")))
    return tuple(found)


def pending(known: Sequence[Migration], version: int, where: str) -> tuple[Migration, ...]:
    """What is still to be applied to a store at `version`."""
    check(known, version, where)
    return tuple(migration for migration in known if migration.version > version)


def check(known: Sequence[Migration], version: int, where: str) -> None:
    """Raises `SchemaError` for a schema that is newer than this program."""
    newest = known[-1].version
    if version > newest:
        raise SchemaError(
            f"{where} has schema version {version}, but this version of Homing knows only up to {newest}: "
            "run the newer Homing that migrated it, or restore an older copy."
        )
