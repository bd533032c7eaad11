"""Which migrations a schema has seen, and applying those it has not."""

from __future__ import annotations

from homing.core.errors import SchemaError
from homing.stores.migrate import check, migrations, pending
from homing.stores.postgres.names import in_schema
from homing.stores.postgres.statements import Tx

MIGRATIONS = migrations("postgres")

OLDEST = 140000
_EXISTS = "SELECT to_regclass($1::text) IS NOT NULL"
_VERSION = "SELECT coalesce(max(version), 0) FROM homing.schema_versions"
_HALF_COPIED = "SELECT EXISTS (SELECT 1 FROM homing.copies WHERE ended_at IS NULL)"
_PREPARED = """
CREATE TABLE IF NOT EXISTS homing.schema_versions (
    version    integer PRIMARY KEY,
    name       text   NOT NULL,
    applied_at bigint NOT NULL
)
"""
_APPLIED = """
INSERT INTO homing.schema_versions (version, name, applied_at)
VALUES ($1, $2, floor(extract(epoch FROM now()) * 1000)::bigint)
"""


async def version_of(tx: Tx) -> int:
    """The version of the schema; 0: there is none yet."""
    if not await tx.one(_EXISTS, in_schema("homing.schema_versions", tx.schema)):
        return 0
    version: int = await tx.one(_VERSION)
    return version


async def check_version(tx: Tx, where: str) -> None:
    """Raises `SchemaError` for a server that is too old, or a schema newer than this program."""
    server: int = await tx.one("SELECT current_setting('server_version_num')::integer")
    if server < OLDEST:
        raise SchemaError(f"{where} is PostgreSQL {server // 10000}; Homing needs 14 or newer.")
    check(MIGRATIONS, await version_of(tx), where)


async def check_whole(tx: Tx, where: str) -> None:
    """Raises `SchemaError` while a copy into the schema has not ended: nobody may use half of it."""
    if await tx.one(_EXISTS, in_schema("homing.copies", tx.schema)) and await tx.one(_HALF_COPIED):
        raise SchemaError(f"{where} holds a copy that has not ended. Run the same `homing db copy` again.")


async def migrate(tx: Tx, where: str) -> tuple[str, ...]:
    """Applies what is missing, in the transaction it is called in; one process at a time."""
    await tx.one("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"homing migrate {tx.schema}")
    if not await tx.one("SELECT to_regnamespace($1::text) IS NOT NULL", tx.schema):
        await tx.run(f"CREATE SCHEMA {tx.schema}")
    await tx.run(_PREPARED)
    missing = pending(MIGRATIONS, await version_of(tx), where)
    for migration in missing:
        await tx.script(migration.sql)
        await tx.run(_APPLIED, migration.version, migration.name)
    return tuple(migration.name for migration in missing)
