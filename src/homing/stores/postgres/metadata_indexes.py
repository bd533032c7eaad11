"""Indexes of the metadata keys that the settings declare.

Each key has an index on an expression over the message, so nothing else has to be written for it. The index
contains only messages in which the key occurs. It is built while other processes write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from homing.core.notifications import Filter
from homing.core.search import check_metadata_keys
from homing.stores.common.searches import METADATA_LENGTH, MOST_INDEXED, may_be_indexed, metadata_index
from homing.stores.postgres.connection import Database
from homing.stores.postgres.migrations import NO_TOTAL_LIMIT, TRY_LOCK, run_outside_transaction
from homing.stores.postgres.statements import PostgresTransaction

_PREFIX = "messages_"

_LOCK = "homing metadata {schema}"

_INDEXES = """
SELECT c.relname, i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'homing.messages'::regclass AND starts_with(c.relname, 'messages_metadata_')
"""

_DROP = "DROP INDEX CONCURRENTLY IF EXISTS homing.{name}"

_CREATE = "CREATE INDEX CONCURRENTLY {name} ON homing.messages (tenant, {value}, id) WHERE {contains}"


async def index_metadata(database: Database, keys: Collection[str]) -> None:
    """Creates the missing indexes of these keys, and drops those of all other keys.

    Does nothing if another process is doing it.
    """
    check_metadata_keys(keys)
    wanted = {_PREFIX + metadata_index(key): key for key in keys}
    if not await database.do(lambda tx: _changes(tx, wanted), read_only=True, timed=False):
        return

    async def change(tx: PostgresTransaction) -> None:
        if await tx.one(TRY_LOCK, _LOCK.format(schema=tx.schema)):
            statements = await _changes(tx, wanted)
            await tx.run(NO_TOTAL_LIMIT)
            await run_outside_transaction(database, tx, statements)

    await database.do(change, timed=False, may_take_long=True)


async def find_metadata_index(tx: PostgresTransaction, tenant: str, filter: Filter) -> str | None:
    """Returns the key of the filter's metadata whose index helps, or None if no index does.

    An index returns its notifications in the order of their ids. If the filter has other conditions as well,
    it does not help if many notifications have the value.
    """
    indexes: dict[str, bool] = {}
    for key, value in filter.metadata.items():
        if not may_be_indexed(key):
            continue
        indexes = indexes or await _read_indexes(tx)
        if not indexes.get(_PREFIX + metadata_index(key)):
            continue
        if filter == Filter(metadata={key: value}):
            return key
        matches = f"m.tenant = $1 AND {metadata_condition(key, '$2')}"
        some = f"SELECT 1 FROM homing.messages AS m WHERE {matches}"  # noqa: S608
        number = await tx.one(
            f"SELECT count(*) FROM ({some} LIMIT {MOST_INDEXED + 1}) AS m",  # noqa: S608
            tenant,
            value,
        )
        if number <= MOST_INDEXED:
            return key
    return None


def metadata_condition(key: str, place: str) -> str:
    """Returns the condition that uses the index of a key for the value at this place."""
    value, contains = _expressions(key)
    return f"{contains} AND {value} = left({place}::text, {METADATA_LENGTH})"


async def _read_indexes(tx: PostgresTransaction) -> dict[str, bool]:
    """Returns the existing indexes by name, and whether each is complete."""
    found = await tx.rows(_INDEXES)
    return {str(name): bool(is_valid) for name, is_valid in found}


async def _changes(tx: PostgresTransaction, wanted: Mapping[str, str]) -> list[str]:
    """Returns the statements that create and drop indexes. One that was interrupted is invalid."""
    indexes, statements = await _read_indexes(tx), list[str]()
    for name, is_valid in sorted(indexes.items()):
        if name not in wanted or not is_valid:
            statements.append(_DROP.format(name=name))
    for name, key in sorted(wanted.items()):
        if not indexes.get(name):
            value, contains = (text.replace("m.message", "message") for text in _expressions(key))
            statements.append(_CREATE.format(name=name, value=value, contains=contains))
    return statements


def _expressions(key: str) -> tuple[str, str]:
    """Returns the indexed expression of a key over messages `m`, and the condition of its index."""
    value = f"left(m.message::json -> 'metadata' ->> '{key}', {METADATA_LENGTH})"
    return value, f"""strpos(m.message, '"{key}":') > 0"""
