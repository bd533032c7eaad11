"""The transaction that a call works in, and statements that carry a whole batch as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from homing.stores.postgres.names import in_schema
from homing.stores.postgres.queues import Queues

Record = Sequence[Any]
"""A row as every driver gives it: values by position."""


class Speaks(Protocol):
    """What accept needs of a connection, whoever it belongs to: SQL with `$1` and plain parameters."""

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]: ...


class Tx:
    """What one call works with: a connection in an open transaction, and its time."""

    __slots__ = ("connection", "now", "queues", "schema", "subscribed")

    def __init__(
        self, connection: Speaks, now: int, schema: str, queues: Queues, subscribed: Collection[str] = ()
    ) -> None:
        self.connection = connection
        self.now = now
        self.schema = schema
        self.queues = queues
        self.subscribed = subscribed

    async def rows(self, sql: str, *parameters: Any) -> Sequence[Record]:
        """All rows of a statement."""
        return await self.connection.fetch(in_schema(sql, self.schema), *parameters)

    async def one(self, sql: str, *parameters: Any) -> Any:
        """The first value of the only row that the statement has; None without a row."""
        found = await self.rows(sql, *parameters)
        return found[0][0] if found else None

    async def run(self, sql: str, *parameters: Any) -> int:
        """Runs a writing statement; how many rows it changed. On Homing's own connections only."""
        told: str = await cast(Any, self.connection).execute(in_schema(sql, self.schema), *parameters)
        number = told.rpartition(" ")[2]
        return int(number) if number.isdigit() else 0

    async def script(self, sql: str) -> None:
        """Several statements without parameters. On Homing's own connections only."""
        await cast(Any, self.connection).execute(in_schema(sql, self.schema))


def unnested(columns: Mapping[str, str], first: int = 1) -> str:
    """`unnest($1::bigint[], …) AS u(seq, …)`: one array for each column (name → type).

    Ids go as texts, because drivers differ in what they take for a uuid.
    """
    arrays = [_array(number, kind) for number, kind in enumerate(columns.values(), first)]
    return f"unnest({', '.join(arrays)}) AS u({', '.join(columns)})"


def _array(number: int, kind: str) -> str:
    return f"${number}::text[]::uuid[]" if kind == "uuid" else f"${number}::{kind}[]"


def columns_of(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as columns: the parameters of an `unnested`."""
    turned = [list(column) for column in zip(*rows, strict=True)]
    return turned or [[] for _ in range(width)]
