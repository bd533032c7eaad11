"""Indexes of the metadata keys that the settings declare.

Each key has an index on an expression over the message, so nothing else has to be written for it. The index
contains only messages in which the key occurs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from homing.core.search import check_metadata_keys
from homing.stores.common.codec import Column
from homing.stores.common.searches import METADATA_LENGTH, MOST_INDEXED, may_be_indexed, metadata_index
from homing.stores.sqlite.statements import SqliteTransaction

_PREFIX = "homing_"

_EXISTING = "SELECT name FROM sqlite_schema WHERE type = 'index' AND name GLOB 'homing_metadata_*'"

_EXISTS = "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = ?"


class SqliteMetadataIndex(Struct, frozen=True):
    """The use of an index for one value: the source of a query over `m` and `n`, and its condition."""

    source: str
    condition: str
    parameters: tuple[Column, ...]


def index_metadata(tx: SqliteTransaction, keys: Collection[str]) -> None:
    """Creates the missing indexes of these keys, and drops those of all other keys."""
    check_metadata_keys(keys)
    wanted = {_PREFIX + metadata_index(key): key for key in keys}
    existing = {name for (name,) in tx.cursor.execute(_EXISTING)}
    for name in sorted(existing - wanted.keys()):
        tx.cursor.execute(f"DROP INDEX {name}")
    for name in sorted(wanted.keys() - existing):
        value, contains = (text.replace("m.message", "message") for text in _expressions(wanted[name]))
        tx.cursor.execute(f"CREATE INDEX {name} ON homing_messages ({value}) WHERE {contains}")


def find_metadata_index(tx: SqliteTransaction, metadata: Mapping[str, str]) -> SqliteMetadataIndex | None:
    """Returns the use of an index for one of these pairs, or None if no index helps.

    The index does not know the order of the ids. So it does not help if many notifications have the value.
    """
    for key, value in metadata.items():
        name = _PREFIX + metadata_index(key)
        if not may_be_indexed(key) or not tx.one(_EXISTS, name):
            continue
        indexed, contains = _expressions(key)
        condition = f"{contains} AND {indexed} IN (?, ?)"
        parameters = (value[:METADATA_LENGTH], f"[{value},{value}]"[:METADATA_LENGTH])
        source = f"homing_messages AS m INDEXED BY {name}"
        some = f"SELECT 1 FROM {source} WHERE {condition} LIMIT {MOST_INDEXED + 1}"  # noqa: S608
        if tx.one(f"SELECT count(*) FROM ({some})", *parameters) <= MOST_INDEXED:  # noqa: S608
            joined = f"{source} CROSS JOIN homing_notifications AS n ON n.seq = m.seq"
            return SqliteMetadataIndex(joined, condition, parameters)
    return None


def _expressions(key: str) -> tuple[str, str]:
    """Returns the indexed expression of a key over messages `m`, and the condition of its index.

    A text is indexed as it is. With two paths, `json_extract` returns an array of JSON texts, so a number has
    all of its digits. Objects and arrays are not indexed.
    """
    message, path = "m.message", f"""'$.metadata."{key}"'"""
    value = f"""substr(CASE WHEN json_valid({message}) THEN CASE json_type({message}, {path})
      WHEN 'text' THEN json_extract({message}, {path})
      WHEN 'integer' THEN json_extract({message}, {path}, {path})
      WHEN 'real' THEN json_extract({message}, {path}, {path})
      WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' END END, 1, {METADATA_LENGTH})"""
    return value, f"""instr({message}, '"{key}":') > 0"""
