"""The transaction that a call works in, and statements that carry a whole batch as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from homing.stores.postgres.names import in_schema
from homing.stores.postgres.queues import Queue, Queues

_VARIANTS = 16
"""Texts of one statement, so that they all stay prepared."""

Record = Sequence[Any]
"""A row as every driver gives it: values by position."""


class Speaks(Protocol):
    """What accept needs of a connection, whoever it belongs to: SQL with `$1` and plain parameters."""

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]: ...


class Tx:
    """What one call works with: a connection in an open transaction, and its time."""

    __slots__ = ("connection", "made", "now", "queues", "schema", "subscribed")

    def __init__(
        self, connection: Speaks, now: int, schema: str, queues: Queues, subscribed: Collection[str] = ()
    ) -> None:
        self.connection = connection
        self.now = now
        self.schema = schema
        self.queues = queues
        self.made: dict[Queue, int] = {}
        """Queues that are new in this transaction."""
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

    async def script(self, sql: str, *, timeout_s: float | None = None) -> None:
        """Several statements without parameters. On Homing's own connections only."""
        await cast(Any, self.connection).execute(in_schema(sql, self.schema), timeout=timeout_s)


class Batch:
    """A statement that carries rows as columns: an array for each, or one value where all rows share it.

    Rows of one batch are mostly alike, and an array costs driver and server something for each element.
    `{rows}` in the text stands for a relation `u` of all columns; the first is always an array. Parameters
    that follow the columns keep their numbers.
    """

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self.columns = columns
        self._text = text
        self._texts: dict[tuple[bool, ...], str] = {}

    @property
    def text(self) -> str:
        """With an array for every column."""
        return self._for((False,) * len(self.columns))

    async def run(self, tx: Tx, rows: Sequence[Sequence[Any]], *more: Any) -> Sequence[Record]:
        """What the statement returns for these rows, of which there is one at least."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        shared = (False, *(column.count(column[0]) == len(column) for column in columns[1:]))
        if shared not in self._texts and len(self._texts) >= _VARIANTS:
            shared = (False,) * len(columns)
        values = [column[0] if same else column for column, same in zip(columns, shared, strict=True)]
        return await tx.rows(self._for(shared), *values, *more)

    def _for(self, shared: tuple[bool, ...]) -> str:
        if shared not in self._texts:
            self._texts[shared] = self._text.replace("{rows}", _relation(self.columns, shared))
        return self._texts[shared]


def _relation(columns: Mapping[str, str], shared: Sequence[bool]) -> str:
    arrays, names, chosen = [], [], []
    for number, ((name, kind), same) in enumerate(zip(columns.items(), shared, strict=True), 1):
        # Ids go as texts, because drivers differ in what they take for a uuid.
        if same:
            chosen.append(
                f"${number}::text::uuid AS {name}" if kind == "uuid" else f"${number}::{kind} AS {name}"
            )
        else:
            arrays.append(f"${number}::text[]::uuid[]" if kind == "uuid" else f"${number}::{kind}[]")
            names.append(name)
            chosen.append(f"a.{name}")
    source = f"unnest({', '.join(arrays)}) AS a({', '.join(names)})"
    return f"(SELECT {', '.join(chosen)} FROM {source}) AS u"  # noqa: S608


def insertion(table: str, columns: Mapping[str, str], tail: str = "") -> Batch:
    """INSERT of rows; `tail` is what to do on a conflict."""
    text = f"INSERT INTO homing.{table} ({', '.join(columns)}) SELECT u.* FROM {{rows}} {tail}"  # noqa: S608
    return Batch(text, columns)


def columns_of(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as columns."""
    turned = [list(column) for column in zip(*rows, strict=True)]
    return turned or [[] for _ in range(width)]
