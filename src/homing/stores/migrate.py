"""Numbered migrations, forward only: `sql/<dialect>/0001_name.sql`, `0002_…`, in the package itself.

A migration that a release has carried is never edited: the next one amends it, and does so in a way that
the code of the release before can live with. It says so in a line of its own, `-- runs with: 3`: code that
knows the migrations up to 3 works on the result. Without that line only code that knows this one does.
`-- outside a transaction` is for what PostgreSQL does in no other way, above all an index on a big table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from msgspec import Struct

from homing.core.errors import SchemaError

_RUNS_WITH = re.compile(r"^-- runs with: (\d+)$", re.MULTILINE)
_OUTSIDE = re.compile(r"^-- outside a transaction$", re.MULTILINE)


class Migration(Struct, frozen=True):
    """One step of the schema; `version` is its number."""

    version: int
    name: str
    sql: str

    @property
    def runs_with(self) -> int:
        """The version that code must know at least to work on the result."""
        said = _RUNS_WITH.search(self.sql)
        return int(said[1]) if said else self.version

    @property
    def outside_transaction(self) -> bool:
        return _OUTSIDE.search(self.sql) is not None


class Standing(Struct, frozen=True):
    """Where a store's schema stands; all 0: there is none yet."""

    version: int = 0
    runs_with: int = 0
    """The highest `runs_with` of all that was applied."""


def migrations(dialect: str) -> tuple[Migration, ...]:
    """All migrations of a dialect, in order."""
    folder = resources.files("homing.stores") / "sql" / dialect
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    found = []
    for position, file in enumerate(files, 1):
        name = file.name.removesuffix(".sql")
        assert name.startswith(f"{position:04}_"), f"migration {position} is missing: {name}"
        migration = Migration(position, name, file.read_text(encoding="utf-8"))
        assert 1 <= migration.runs_with <= position, f"{name} runs with code that does not exist"
        found.append(migration)
    return tuple(found)


def pending(known: Sequence[Migration], standing: Standing, where: str) -> tuple[Migration, ...]:
    """What is still to be applied to a store; nothing, where newer code has applied more than this knows."""
    check(known, standing, where)
    return tuple(migration for migration in known if migration.version > standing.version)


def check(known: Sequence[Migration], standing: Standing, where: str) -> None:
    """Raises `SchemaError` for a schema that this program is too old for."""
    newest = known[-1].version
    if standing.runs_with > newest:
        raise SchemaError(
            f"{where} has schema version {standing.version}, which needs a Homing that knows version "
            f"{standing.runs_with}; this one knows only up to {newest}. Upgrade Homing here, or restore a "
            "copy of the store from before the migration."
        )
