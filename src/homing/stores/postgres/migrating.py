"""Applying migrations while others work.

Each is a transaction of its own, and one process applies at a time. A statement that waits for a table's lock
makes all wait that come after it; so it waits for a moment only, steps aside, and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum
from typing import cast

import asyncpg

from homing.core.errors import StoreBusy
from homing.stores.migrate import Migration, pending
from homing.stores.postgres import schema
from homing.stores.postgres.connection import Database
from homing.stores.postgres.errors import translated
from homing.stores.postgres.names import in_schema
from homing.stores.postgres.queues import Queues
from homing.stores.postgres.statements import Speaks, Tx

LOCK_TIMEOUT_MS = 1_000
"""How long the work of others may be held up by a migration that waits for its turn."""
PATIENCE_S = 120.0
"""How long it is tried again before somebody has to look who holds the lock."""
_BETWEEN_TRIES_S = 0.5
_LONGEST_S = 4 * 3600.0
"""For the statements of one migration."""

_LOCK = "homing migrate {schema}"
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))"
_TRY_SESSION_LOCK = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))"
_PREPARED = """
CREATE TABLE IF NOT EXISTS homing.schema_versions (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    applied_at bigint  NOT NULL,
    runs_with  integer NOT NULL
)
"""
_APPLIED = """
INSERT INTO homing.schema_versions (version, name, applied_at, runs_with)
VALUES ($1, $2, floor(extract(epoch FROM now()) * 1000)::bigint, $3)
"""


class _Waits(Enum):
    """Somebody else migrates, or holds what has to be locked: try again."""

    LATER = True


_Step = Migration | _Waits
LATER = _Waits.LATER


async def migrate(database: Database, where: str) -> tuple[str, ...]:
    """Applies what is missing, one after the other; the names of what it applied.

    While another process migrates, it waits for that one: should it die, its lock goes with it.
    """
    applied: list[str] = []
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + PATIENCE_S
    while True:
        step: _Step | None
        try:
            step = await database.do(lambda tx: _next(tx, where), timed=False)
        except StoreBusy:
            if clock() >= give_up_at:
                raise StoreBusy(
                    f"{where}: other transactions hold the tables that a migration has to lock, for "
                    f"{PATIENCE_S:.0f} s by now. Nothing of it was changed; end them (pg_stat_activity shows "
                    "them) and run `homing db migrate` again."
                ) from None
            step = LATER
        if step is None:
            return tuple(applied)
        if isinstance(step, Migration) and step.outside_transaction:
            step = await _outside(database, step)
        if isinstance(step, Migration):
            applied.append(step.name)
            give_up_at = clock() + PATIENCE_S
        else:
            await asyncio.sleep(_BETWEEN_TRIES_S)


async def _next(tx: Tx, where: str) -> _Step | None:
    """The next migration, applied if that can be done in this transaction; None: there is none."""
    if not pending(schema.MIGRATIONS, await schema.standing_of(tx), where):
        return None
    await tx.run(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
    if not await tx.one(_TRY_LOCK, _LOCK.format(schema=tx.schema)):
        return LATER
    if not await tx.one("SELECT to_regnamespace($1::text) IS NOT NULL", tx.schema):
        await tx.run(f"CREATE SCHEMA {tx.schema}")
    await tx.run(_PREPARED)
    missing = pending(schema.MIGRATIONS, await schema.standing_of(tx), where)
    if not missing:
        return None
    migration = missing[0]
    if not migration.outside_transaction:
        await tx.script(migration.sql, timeout_s=_LONGEST_S)
        await _note(tx, migration)
    return migration


async def _outside(database: Database, migration: Migration) -> _Step:
    """Applies one that commits each of its statements, on a connection of its own that holds the lock."""
    address = database.address
    try:
        connection = await asyncpg.connect(address.url, timeout=30, statement_cache_size=0)
    except (OSError, asyncpg.PostgresError) as error:
        raise translated(error, address.where) from error
    try:
        if not await connection.fetchval(_TRY_SESSION_LOCK, _LOCK.format(schema=address.schema)):
            return LATER
        tx = Tx(cast(Speaks, connection), 0, address.schema, Queues())
        if migration not in pending(schema.MIGRATIONS, await schema.standing_of(tx), address.where):
            return LATER  # another has applied it meanwhile
        for statement in _statements(migration.sql):
            await connection.execute(in_schema(statement, address.schema), timeout=_LONGEST_S)
        await _note(tx, migration)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise translated(error, address.where) from error
    finally:
        await connection.close()
    return migration


async def _note(tx: Tx, migration: Migration) -> None:
    await tx.run(_APPLIED, migration.version, migration.name, migration.runs_with)


def _statements(script: str) -> Iterator[str]:
    """One at a time; such a migration holds no bodies of functions."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    yield from (statement for statement in "\n".join(lines).split(";") if statement.strip())
