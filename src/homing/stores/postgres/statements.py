"""The transaction that a call works in, and statements that carry a whole batch as arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from homing.stores.postgres.names import in_schema
from homing.stores.postgres.queues import Queue, Queues

_FEW = 8

_Shape = tuple[bool, ...]
"""For each column: whether all rows share its value."""

_SEQS = "SELECT nextval('homing.seqs') FROM generate_series(1, $1::integer)"

_TEXTS = frozenset({"text", "uuid"})

Record = Sequence[Any]
"""A row as every driver gives it: values by position."""


class Speaks(Protocol):
    """What accept needs of a connection, whoever it belongs to: SQL with `$1` and plain parameters."""

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]: ...


class Tx:
    """What one call works with: a connection in an open transaction, and its time."""

    __slots__ = ("_seqs", "connection", "made", "now", "queues", "schema", "subscribed")

    def __init__(
        self,
        connection: Speaks,
        now: int,
        schema: str,
        queues: Queues,
        subscribed: Collection[str] = (),
        seqs: Sequence[int] = (),
    ) -> None:
        self.connection = connection
        self.now = now
        self.schema = schema
        self.queues = queues
        self.made: dict[Queue, int] = {}
        """Queues that are new in this transaction."""
        self.subscribed = subscribed
        self._seqs = seqs
        """Row numbers that came with the time."""

    async def seqs(self, number: int) -> Sequence[int]:
        """So many new row numbers, in their order."""
        seqs, self._seqs = self._seqs, ()
        return seqs[:number] if len(seqs) >= number else [seq for (seq,) in await self.rows(_SEQS, number)]

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

    Rows of one batch are mostly alike, and an array costs driver and server something for each element. Few
    rows are all arrays: there is little to save, and each shape of the text has to be prepared. `{rows}` in
    the text stands for a relation `u` of all columns; the first is always an array.
    """

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self.columns = columns
        self._text = text
        self._kinds = tuple(columns.values())

    @property
    def text(self) -> str:
        """With an array for every column."""
        return self.in_shape((False,) * len(self.columns))

    def fitted(self, rows: Sequence[Sequence[Any]]) -> tuple[_Shape, list[Any]]:
        """Which columns these rows share (there is one row at least), and the parameters."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        if 1 < len(rows) < _FEW:
            shape: _Shape = (False,) * len(columns)
        else:
            shape = (False, *(column.count(column[0]) == len(column) for column in columns[1:]))
        fits = zip(columns, shape, self._kinds, strict=True)
        return shape, [column[0] if same else _array(column, kind) for column, same, kind in fits]

    def in_shape(self, shape: _Shape, first: int = 1) -> str:
        """The text for rows that share these columns, its parameters numbered from `first` on."""
        return self._text.replace("{rows}", _relation(self.columns, shape, first))

    async def run(self, tx: Tx, rows: Sequence[Sequence[Any]]) -> Sequence[Record]:
        """What the statement returns for these rows, of which there is one at least."""
        return await run_together(tx, [(self, rows)])


Write = tuple[Batch, Sequence[Sequence[Any]]]
"""A statement and its rows; without rows there is nothing to do."""


async def run_together(tx: Tx, writes: Sequence[Write], last: str = "") -> Sequence[Record]:
    """Several statements that do not depend on each other in one round trip; what `last` returns."""
    shapes: list[tuple[Batch, _Shape]] = []
    parameters: list[Any] = []
    for batch, rows in writes:
        if not rows:
            continue
        shape, values = batch.fitted(rows)
        shapes.append((batch, shape))
        parameters += values
    if not shapes and not last:
        return ()
    return await tx.rows(_together(tuple(shapes), last), *parameters)


@lru_cache(maxsize=1024)
def _together(shapes: tuple[tuple[Batch, _Shape], ...], last: str) -> str:
    texts, first = [], 1
    for batch, shape in shapes:
        texts.append(batch.in_shape(shape, first))
        first += len(shape)
    if not last and len(texts) == 1:
        return texts[0]
    named = ", ".join(f"w{number} AS ({text})" for number, text in enumerate(texts))
    return f"WITH {named} {last or 'SELECT 1'}" if texts else last


def _relation(columns: Mapping[str, str], shape: _Shape, first: int) -> str:
    arrays, names, chosen = [], [], []
    for number, ((name, kind), same) in enumerate(zip(columns.items(), shape, strict=True), first):
        # Ids go as texts, because drivers differ in what they take for a uuid.
        if same:
            chosen.append(
                f"${number}::text::uuid AS {name}" if kind == "uuid" else f"${number}::{kind} AS {name}"
            )
        else:
            arrays.append(f"${number}::{'text[]' if kind in _TEXTS else 'text'}::{kind}[]")
            names.append(name)
            chosen.append(f"a.{name}")
    source = f"unnest({', '.join(arrays)}) AS a({', '.join(names)})"
    return f"(SELECT {', '.join(chosen)} FROM {source}) AS u"  # noqa: S608


def _array(column: Sequence[Any], kind: str) -> Any:
    """Numbers go as one text: asyncpg takes a microsecond for each element of an array, this a tenth."""
    if kind in _TEXTS:
        return column
    return "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"


def insertion(table: str, columns: Mapping[str, str], tail: str = "") -> Batch:
    """INSERT of rows; `tail` is what to do on a conflict."""
    text = f"INSERT INTO homing.{table} ({', '.join(columns)}) SELECT u.* FROM {{rows}} {tail}"  # noqa: S608
    return Batch(text, columns)


def columns_of(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as columns."""
    turned = [list(column) for column in zip(*rows, strict=True)]
    return turned or [[] for _ in range(width)]
