"""Reads which migrations were applied to a schema and checks that this program can work with it."""

from __future__ import annotations

from homing.core.errors import SchemaError
from homing.stores.migrate import Standing, check, migrations
from homing.stores.postgres.names import in_schema
from homing.stores.postgres.statements import Tx

MIGRATIONS = migrations("postgres")

OLDEST = 140000
"""The oldest supported `server_version_num`."""
_EXISTS = "SELECT to_regclass($1::text) IS NOT NULL"
_READ_STATE = """
SELECT coalesce(max(version), 0), coalesce(max(runs_with), 0) FROM homing.schema_versions
"""
_COPY_IS_INCOMPLETE = "SELECT EXISTS (SELECT 1 FROM homing.copies WHERE ended_at IS NULL)"


async def standing_of(tx: Tx) -> Standing:
    """Returns the state of the schema."""
    if not await tx.one(_EXISTS, in_schema("homing.schema_versions", tx.schema)):
        return Standing()
    [(version, runs_with)] = await tx.rows(_READ_STATE)
    return Standing(version, runs_with)


async def version_of(tx: Tx) -> int:
    """Returns the version of the schema, or 0 if there is none yet."""
    return (await standing_of(tx)).version


async def check_version(tx: Tx, where: str) -> None:
    """Raises `SchemaError` if the server is too old, or this program is too old for the schema."""
    server: int = await tx.one("SELECT current_setting('server_version_num')::integer")
    if server < OLDEST:
        raise SchemaError(f"{where} is PostgreSQL {server // 10000}; Homing needs 14 or newer.")
    check(MIGRATIONS, await standing_of(tx), where)


async def check_whole(tx: Tx, where: str) -> None:
    """Raises `SchemaError` if a copy into the schema is incomplete."""
    if await tx.one(_EXISTS, in_schema("homing.copies", tx.schema)) and await tx.one(_COPY_IS_INCOMPLETE):
        raise SchemaError(f"{where} holds an incomplete copy. Run the same `homing db copy` again.")
