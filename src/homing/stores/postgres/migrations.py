"""Applies migrations while other processes use the store, and checks the version of the schema.

Each migration is one transaction, unless it is marked `-- outside a transaction`. Only one process migrates
at a time. A statement that waits for the lock of a table blocks all later statements on that table. So a
migration waits only briefly for a lock, rolls back and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from enum import Enum

from homing.core.errors import SchemaError, StoreBusy
from homing.stores.common.migrations import (
    Migration,
    SchemaState,
    check_schema_state,
    find_pending_migrations,
    load_migrations,
    require_schema,
)
from homing.stores.postgres.address import in_schema
from homing.stores.postgres.connection import Database
from homing.stores.postgres.statements import PostgresTransaction

MIGRATIONS = load_migrations("postgres")

LOCK_TIMEOUT_MS = 1_000
"""Maximum time that a migration waits for a lock, and so blocks other transactions, in each try."""

PATIENCE_S = 120.0
"""Time for which a migration is retried before it fails because other transactions hold a lock."""

_BETWEEN_TRIES_S = 0.5

_STATEMENT_TIMEOUT_S = 4 * 3600.0


_LOCK = "homing migrate {schema}"

TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))"

# A migration may take hours. Servers before PostgreSQL 17 do not have this setting.
NO_TOTAL_LIMIT = """
SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'
"""

_NO_STATEMENT_TIMEOUT = "SET statement_timeout = 0"

CREATE_UTF8_DATABASE = "CREATE DATABASE homing ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
"""Advice for a database with another encoding, which cannot store every text."""

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS homing.schema_versions (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    applied_at bigint  NOT NULL,
    runs_with  integer NOT NULL
)
"""

_RECORD_APPLIED = """
INSERT INTO homing.schema_versions (version, name, applied_at, runs_with)
VALUES ($1, $2, floor(extract(epoch FROM now()) * 1000)::bigint, $3)
"""


class _Waits(Enum):
    """The result of a step to try again later: another process is migrating or holds a required lock."""

    LATER = True


_Step = Migration | _Waits

TRY_LATER = _Waits.LATER


async def migrate(database: Database, where: str, *, create: bool = True) -> tuple[str, ...]:
    """Applies the pending migrations one after the other and returns their names.

    Waits while another process is migrating. If that process dies, its lock is released. Raises `StoreBusy`
    if other transactions hold a required lock for `PATIENCE_S`, and `SchemaError` if there is no schema and
    `create` is False.
    """
    applied: list[str] = []
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + PATIENCE_S
    while True:
        step: _Step | None
        try:
            step = await database.do(
                lambda tx: _apply_next(tx, where, create=create),
                timed=False,
                may_take_long=True,
            )
        except StoreBusy:
            if clock() >= give_up_at:
                raise StoreBusy(
                    f"{where}: other transactions have held the tables that a migration must lock for "
                    f"{PATIENCE_S:.0f} s. The migration changed nothing; end those transactions "
                    "(pg_stat_activity shows them) and run `homing db migrate` again."
                ) from None
            step = TRY_LATER
        if step is None:
            return tuple(applied)
        if isinstance(step, Migration) and step.outside_transaction:
            step = await _apply_outside_transaction(database, step)
        if isinstance(step, Migration):
            applied.append(step.name)
            give_up_at = clock() + PATIENCE_S
        else:
            await asyncio.sleep(_BETWEEN_TRIES_S)


async def _apply_next(tx: PostgresTransaction, where: str, *, create: bool) -> _Step | None:
    """Applies the next migration, unless it must run outside a transaction.

    Returns the migration, `TRY_LATER` if another process is migrating, or None if no migration is pending.
    """
    state = await read_schema_state(tx)
    if not find_pending_migrations(MIGRATIONS, state, where):
        return None
    if not create:
        require_schema(state, where)
    if state.version == 0:
        await _check_encoding(tx, where)
    await tx.run(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
    await tx.run(NO_TOTAL_LIMIT)
    if not await tx.one(TRY_LOCK, _LOCK.format(schema=tx.schema)):
        return TRY_LATER
    if not await tx.one("SELECT to_regnamespace($1::text) IS NOT NULL", tx.schema):
        await tx.run(f"CREATE SCHEMA {tx.schema}")
    await tx.run(_CREATE_TABLE)
    missing = find_pending_migrations(MIGRATIONS, await read_schema_state(tx), where)
    if not missing:
        return None
    migration = missing[0]
    if not migration.outside_transaction:
        await tx.script(migration.sql, timeout_s=_STATEMENT_TIMEOUT_S)
        await _record_applied(tx, migration)
    return migration


async def _check_encoding(tx: PostgresTransaction, where: str) -> None:
    if (encoding := await tx.one("SELECT current_setting('server_encoding')")) != "UTF8":
        raise SchemaError(
            f"{where} has the encoding {encoding}, which cannot store every text. Create another database: "
            f"{CREATE_UTF8_DATABASE}"
        )


async def _apply_outside_transaction(database: Database, migration: Migration) -> _Step:
    """Applies a migration that commits each statement, on a separate connection.

    Meanwhile, an idle transaction holds the lock. A lock of a session would stay behind in a pooler. If that
    transaction is lost, or a statement fails, the statements before have been applied and run again the next
    time. So each of them must be repeatable.
    """
    address = database.address

    async def apply(tx: PostgresTransaction) -> _Step:
        if not await tx.one(TRY_LOCK, _LOCK.format(schema=tx.schema)):
            return TRY_LATER
        if migration not in find_pending_migrations(MIGRATIONS, await read_schema_state(tx), address.where):
            return TRY_LATER  # another process has applied it in the meantime
        await tx.run(NO_TOTAL_LIMIT)
        await run_outside_transaction(database, tx, _statements(migration.sql))
        await _record_applied(tx, migration)
        return migration

    return await database.do(apply, timed=False, may_take_long=True)


async def run_outside_transaction(
    database: Database, tx: PostgresTransaction, statements: Iterable[str]
) -> None:
    """Runs statements that each commit, on a separate connection. Meanwhile, `tx` keeps its locks."""
    # Without parameters, this also ends the last read. An index that is built concurrently would wait for its
    # snapshot.
    await tx.script("SET LOCAL idle_in_transaction_session_timeout = 0")
    connection = await database.hosts.connect(statement_cache_size=0)
    try:
        if not database.is_pooled:  # there, other clients would find the setting in their session
            await connection.execute(_NO_STATEMENT_TIMEOUT)
        for statement in statements:
            await connection.execute(in_schema(statement, tx.schema), timeout=_STATEMENT_TIMEOUT_S)
    except BaseException:
        connection.terminate()  # closing it properly would have to wait for a server that may hang
        raise
    await connection.close()


async def _record_applied(tx: PostgresTransaction, migration: Migration) -> None:
    await tx.run(_RECORD_APPLIED, migration.version, migration.name, migration.runs_with)


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script that contains no function bodies."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    yield from (statement for statement in "\n".join(lines).split(";") if statement.strip())


OLDEST_SERVER_VERSION = 140000
"""The oldest supported `server_version_num`."""

_EXISTS = "SELECT to_regclass($1::text) IS NOT NULL"

_READ_STATE = """
SELECT coalesce(max(version), 0), coalesce(max(runs_with), 0) FROM homing.schema_versions
"""

_COPY_IS_INCOMPLETE = "SELECT EXISTS (SELECT 1 FROM homing.copies WHERE ended_at IS NULL)"


async def read_schema_state(tx: PostgresTransaction) -> SchemaState:
    """Returns the state of the schema."""
    if not await tx.one(_EXISTS, in_schema("homing.schema_versions", tx.schema)):
        return SchemaState()
    [(version, runs_with)] = await tx.rows(_READ_STATE)
    return SchemaState(version, runs_with)


async def read_schema_version(tx: PostgresTransaction) -> int:
    """Returns the version of the schema, or 0 if there is none yet."""
    return (await read_schema_state(tx)).version


async def check_version(tx: PostgresTransaction, where: str) -> None:
    """Raises `SchemaError` if the server is too old, or this program is too old for the schema."""
    server: int = await tx.one("SELECT current_setting('server_version_num')::integer")
    if server < OLDEST_SERVER_VERSION:
        raise SchemaError(f"{where} is PostgreSQL {server // 10000}; Homing needs 14 or newer.")
    check_schema_state(MIGRATIONS, await read_schema_state(tx), where)


async def check_copy_complete(tx: PostgresTransaction, where: str) -> None:
    """Raises `SchemaError` if a copy into the schema is incomplete."""
    if await tx.one(_EXISTS, in_schema("homing.copies", tx.schema)) and await tx.one(_COPY_IS_INCOMPLETE):
        raise SchemaError(f"{where} holds an incomplete copy. Run the same `homing db copy` again.")
