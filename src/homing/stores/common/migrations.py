"""Loads the numbered, forward-only migrations of a store, and checks the version of its schema.

The files are `stores/<dialect>/sql/0001_name.sql`, `0002_…`. The SQL of a released migration is never edited.
A later migration amends it, in a way that the previous release can work with. A line `-- runs with: 3` in a
migration declares that code which knows the migrations up to 3 works with the resulting schema. Without that
line, only code that knows this migration does. A line `-- outside a transaction` is for statements that
PostgreSQL cannot run in a transaction, above all the concurrent creation of an index on a large table. Each
of these statements must be repeatable, because they all run again after an interruption.
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
    """One migration: a numbered step in the history of the schema."""

    version: int
    """Number of the migration, starting with 1."""
    name: str
    sql: str

    @property
    def runs_with(self) -> int:
        """The lowest version that code must know to work with the resulting schema."""
        declared = _RUNS_WITH.search(self.sql)
        return int(declared[1]) if declared else self.version

    @property
    def outside_transaction(self) -> bool:
        """True if each statement of the migration must be committed separately."""
        return _OUTSIDE.search(self.sql) is not None


class SchemaState(Struct, frozen=True):
    """The state of a store's schema. Both numbers are 0 if the store has no schema yet."""

    version: int = 0
    """Number of the newest applied migration."""
    runs_with: int = 0
    """The highest `runs_with` of all applied migrations."""


def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """Loads all migrations of a dialect, in order."""
    folder = resources.files(f"homing.stores.{dialect}") / "sql"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    found = []
    for position, file in enumerate(files, 1):
        name = file.name.removesuffix(".sql")
        assert name.startswith(f"{position:04}_"), f"migration {position} is missing: {name}"
        migration = Migration(position, name, file.read_text(encoding="utf-8"))
        assert 1 <= migration.runs_with <= position, (
            f"{name} declares that it runs with a version that does not exist"
        )
        found.append(migration)
    return tuple(found)


def find_pending_migrations(
    known: Sequence[Migration], state: SchemaState, where: str
) -> tuple[Migration, ...]:
    """Returns the migrations that are still to be applied to a store.

    Returns an empty tuple if newer code has applied migrations that this program does not know. Raises
    `SchemaError` if this program is too old for the schema.
    """
    check_schema_state(known, state, where)
    return tuple(migration for migration in known if migration.version > state.version)


def require_schema(state: SchemaState, where: str) -> None:
    """Raises `SchemaError` if the store has no schema yet."""
    if state.version == 0:
        raise SchemaError(f"{where} has no schema of Homing. `homing db migrate` creates it.")


def check_schema_state(known: Sequence[Migration], state: SchemaState, where: str) -> None:
    """Raises `SchemaError` if this program is too old for the schema."""
    newest = known[-1].version
    if state.runs_with > newest:
        raise SchemaError(
            f"{where} has schema version {state.version}, which needs a release of Homing with schema "
            f"version {state.runs_with} or newer; this release has {newest}. Upgrade Homing here, or "
            "restore a backup of the store from before the migration."
        )
