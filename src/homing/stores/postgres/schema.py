"""Which migrations a schema has seen, and whether this program can work on it (see `migrating`)."""

from __future__ import annotations

from homing.core.errors import SchemaError
from homing.stores.migrate import Standing, check, migrations
from homing.stores.postgres.names import in_schema
from homing.stores.postgres.statements import Tx

MIGRATIONS = migrations("postgres")

OLDEST = 140000
_EXISTS = "SELECT to_regclass($1::text) IS NOT NULL"
_STANDING = """
SELECT coalesce(max(version), 0), coalesce(max(runs_with), 0) FROM homing.schema_versions
"""
_HALF_COPIED = "SELECT EXISTS (SELECT 1 FROM homing.copies WHERE ended_at IS NULL)"


async def standing_of(tx: Tx) -> Standing:
    """Where the schema stands."""
    if not await tx.one(_EXISTS, in_schema("homing.schema_versions", tx.schema)):
        return Standing()
    [(version, runs_with)] = await tx.rows(_STANDING)
    return Standing(version, runs_with)


async def version_of(tx: Tx) -> int:
    """The version of the schema; 0: there is none yet."""
    return (await standing_of(tx)).version


async def check_version(tx: Tx, where: str) -> None:
    """Raises `SchemaError` for a server that is too old, or a schema that this program is too old for."""
    server: int = await tx.one("SELECT current_setting('server_version_num')::integer")
    if server < OLDEST:
        raise SchemaError(f"{where} is PostgreSQL {server // 10000}; Homing needs 14 or newer.")
    check(MIGRATIONS, await standing_of(tx), where)


async def check_whole(tx: Tx, where: str) -> None:
    """Raises `SchemaError` while a copy into the schema has not ended: nobody may use half of it."""
    if await tx.one(_EXISTS, in_schema("homing.copies", tx.schema)) and await tx.one(_HALF_COPIED):
        raise SchemaError(f"{where} holds a copy that has not ended. Run the same `homing db copy` again.")
