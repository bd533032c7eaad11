"""The transaction that a call runs in, and statements that process a whole batch of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, cast

from homing.core.lifecycle.outcomes import FailureReport
from homing.stores.common.sinks import NO_SINKS, SinkBook
from homing.stores.postgres.address import in_schema
from homing.stores.postgres.clock import TransactionClock
from homing.stores.postgres.queues import QueueKey, QueueNumbers

MIN_SHARING_ROWS = 8
"""Fewest rows for which a shared value is sent once, unless there is only a single row.

For fewer rows, all columns are arrays. Little would be saved, and each combination of shared columns is
another statement to prepare.
"""


_Shape = tuple[bool, ...]
"""One flag per column: True if all rows share its value."""


_SEQS = "SELECT nextval('homing.seqs') FROM generate_series(1, $1::integer)"


_QUEUES_EXIST = """
NOT EXISTS (SELECT 1 FROM unnest(${}::text::integer[], ${}::text[], ${}::text[], ${}::text[])
  AS w(id, lane, tenant, outlet) WHERE NOT EXISTS (
    SELECT 1 FROM homing.queues AS q
    WHERE q.id = w.id AND q.lane = w.lane AND q.tenant = w.tenant AND q.outlet = w.outlet))
""".strip()

_QUEUE_PARAMETERS = 4


Record = Sequence[Any]
"""A row as every driver returns it, with values by position."""


class SqlConnection(Protocol):
    """A connection that can run SQL. It is either Homing's own or a caller's."""

    async def fetch(self, sql: str, *parameters: Any) -> Sequence[Record]:
        """Runs a statement with the placeholders `$1`, `$2` … and returns its rows."""


class PostgresTransaction:
    """An open transaction."""

    __slots__ = (
        "_clock",
        "_seqs",
        "checks_queues",
        "connection",
        "failures",
        "made",
        "now",
        "queues",
        "schema",
        "settling",
        "sinks",
        "used_queues",
    )

    def __init__(
        self,
        connection: SqlConnection,
        now: int,
        schema: str,
        queues: QueueNumbers,
        sinks: SinkBook = NO_SINKS,
        seqs: Sequence[int] = (),
        clock: TransactionClock | None = None,
    ) -> None:
        self.connection = connection
        self.now = now
        """Time of the transaction in epoch milliseconds. 0 if it was not read."""
        self.settling = False
        """See `StoreTime`."""
        self._clock = clock
        self.schema = schema
        self.queues = queues
        self.made: dict[QueueKey, int] = {}
        """Queues that this transaction has created, with their numbers."""
        self.used_queues: dict[int, QueueKey] = {}
        """Queues whose numbers this transaction writes or relies on, by number.

        The numbers may come from the cache of the process, so every statement that writes them checks them.
        """
        self.checks_queues = True
        """False if the numbers of queues were read so recently that they need no check."""
        self.failures: list[FailureReport] = []
        """Failures reported by providers that this transaction has applied."""
        self.sinks = sinks
        """The registered sinks. Empty if the transaction was started without reading them."""
        self._seqs = seqs
        """Seqs that were reserved at the start of the transaction."""

    @property
    def correction_ms(self) -> int:
        """The duration that has to be added to `homing.now_ms()` in SQL. 0 unless a step is suspected."""
        return 0 if self._clock is None else self._clock.correction_ms

    def set_time(self, clock_now: int) -> None:
        """Sets the time of the transaction, for the result of `homing.now_ms()`."""
        if self._clock is None:
            self.now = clock_now
        else:
            time = self._clock.time_of(clock_now)
            self.now, self.settling = time.now, time.settling

    @property
    def subscribed(self) -> Collection[str]:
        """Names of the events that at least one sink gets."""
        return self.sinks.subscribed

    async def seqs(self, number: int) -> Sequence[int]:
        """Returns this many new seqs, in ascending order."""
        seqs, self._seqs = self._seqs, ()
        return seqs[:number] if len(seqs) >= number else [seq for (seq,) in await self.rows(_SEQS, number)]

    async def rows(self, sql: str, *parameters: Any) -> Sequence[Record]:
        """Runs a statement and returns its rows."""
        return await self.connection.fetch(in_schema(sql, self.schema), *parameters)

    async def one(self, sql: str, *parameters: Any) -> Any:
        """Returns the first value of the statement's first row, or None if there is no row."""
        found = await self.rows(sql, *parameters)
        return found[0][0] if found else None

    async def run(self, sql: str, *parameters: Any) -> int:
        """Runs a statement and returns the number of rows it changed. Works only on Homing's connections."""
        status: str = await cast(Any, self.connection).execute(in_schema(sql, self.schema), *parameters)
        number = status.rpartition(" ")[2]
        return int(number) if number.isdigit() else 0

    async def script(self, sql: str, *, timeout_s: float | None = None) -> None:
        """Runs several statements without parameters. Works only on Homing's connections."""
        await cast(Any, self.connection).execute(in_schema(sql, self.schema), timeout=timeout_s)


class BatchStatement:
    """A statement for many rows, whose columns are sent as an array or, if all rows share it, as one value.

    Most rows of a batch are similar, and an array costs the driver and the server time for each element. For
    a few rows, all columns are arrays: little would be saved, and each combination of shared columns is
    another statement to prepare. `{rows}` in the text stands for a relation `u` of all columns. The first
    column is always an array.

    The column `queue` is a queue number that may come from the cache of the process. It is NULL, which the
    tables do not accept, unless all `used_queues` of the transaction have these numbers in the database too.
    `{queue_of_row}` in the text stands for the number in the stored row `s`, checked in the same way.
    """

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self.columns = columns
        self._text = text
        self._kinds = tuple(columns.values())
        self._checks_queues = "queue" in columns or "{queue_of_row}" in text

    @property
    def text(self) -> str:
        """The statement with an array for every column."""
        return self.in_shape((False,) * len(self.columns))

    def fitted(
        self, rows: Sequence[Sequence[Any]], queues: Mapping[int, QueueKey] = MappingProxyType({})
    ) -> tuple[_Shape, list[Any]]:
        """Returns which columns these rows share, and the statement's parameters. Needs at least one row.

        `queues` are the `used_queues` of the transaction.
        """
        shape: _Shape
        if len(rows) == 1:  # hot path: each single request writes one row to the ledger
            first, *others = rows[0]
            shape = (False, *[True] * len(others))
            values = [_array([first], self._kinds[0]), *others]
        else:
            columns = [list(column) for column in zip(*rows, strict=True)]
            if len(rows) < MIN_SHARING_ROWS:
                shape = (False,) * len(columns)
            else:
                shape = (False, *(column.count(column[0]) == len(column) for column in columns[1:]))
            fits = zip(columns, shape, self._kinds, strict=True)
            values = [column[0] if same else _array(column, kind) for column, same, kind in fits]
        return shape, [*values, *queue_parameters(queues)] if self._checks_queues else values

    def in_shape(self, shape: _Shape, first: int = 1) -> str:
        """Returns the statement for rows that share the columns marked in `shape`.

        Its parameters are numbered from `first`.
        """
        after = first + len(shape)
        text = self._text.replace("{queue_of_row}", checked_queue("s.queue", after))
        return text.replace("{rows}", _relation(self.columns, shape, first))

    @property
    def parameters(self) -> int:
        """Number of the statement's parameters."""
        return len(self.columns) + (_QUEUE_PARAMETERS if self._checks_queues else 0)

    async def run(self, tx: PostgresTransaction, rows: Sequence[Sequence[Any]]) -> Sequence[Record]:
        """Runs the statement for these rows, at least one, and returns its result."""
        return await run_in_one_round_trip(tx, [(self, rows)])


BatchWrite = tuple[BatchStatement, Sequence[Sequence[Any]]]
"""A statement and its rows. It is skipped if there are no rows."""


async def run_in_one_round_trip(
    tx: PostgresTransaction, writes: Sequence[BatchWrite], last: str = ""
) -> Sequence[Record]:
    """Runs several independent statements in one round trip and returns the result of the query `last`."""
    shapes: list[tuple[BatchStatement, _Shape]] = []
    parameters: list[Any] = []
    for batch, rows in writes:
        if not rows:
            continue
        shape, values = batch.fitted(rows, tx.used_queues)
        shapes.append((batch, shape))
        parameters += values
    if not shapes and not last:
        return ()
    return await tx.rows(_together(tuple(shapes), last), *parameters)


@lru_cache(maxsize=1024)
def _together(shapes: tuple[tuple[BatchStatement, _Shape], ...], last: str) -> str:
    texts, first = [], 1
    for batch, shape in shapes:
        texts.append(batch.in_shape(shape, first))
        first += batch.parameters
    if not last and len(texts) == 1:
        return texts[0]
    named = ", ".join(f"w{number} AS ({text})" for number, text in enumerate(texts))
    return f"WITH {named} {last or 'SELECT 1'}" if texts else last


def _relation(columns: Mapping[str, str], shape: _Shape, first: int) -> str:
    arrays, names, chosen = [], [], []
    for number, ((name, kind), same) in enumerate(zip(columns.items(), shape, strict=True), first):
        # Ids are sent as texts, because drivers differ in the Python type they accept for a uuid.
        if same:
            value = f"${number}::text::uuid" if kind == "uuid" else f"${number}::{kind}"
        else:
            arrays.append(f"${number}::{'text[]' if kind == 'text' else 'text'}::{kind}[]")
            names.append(name)
            value = f"a.{name}"
        if name == "queue":
            value = checked_queue(value, first + len(columns))
        chosen.append(value if value == f"a.{name}" else f"{value} AS {name}")
    source = f"unnest({', '.join(arrays)}) AS a({', '.join(names)})"
    return f"(SELECT {', '.join(chosen)} FROM {source}) AS u"  # noqa: S608


def _array(column: Sequence[Any], kind: str) -> Any:
    """Returns a column as a parameter: texts as a list, other values as one text.

    A list costs asyncpg a microsecond per element, a text only a tenth of that.
    """
    if kind == "text":
        return column
    return "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"


def checked_queue(number: str, first: int) -> str:
    """Returns SQL for a queue number, or for NULL if a queue does not have its number any more.

    Its parameters, from `first` on, are those of `queue_parameters`. They are compared once per statement.
    """
    exist = _QUEUES_EXIST.format(*range(first, first + _QUEUE_PARAMETERS))
    return f"CASE WHEN {exist} THEN {number} END"


def queue_parameters(queues: Mapping[int, QueueKey]) -> list[Any]:
    """Returns the parameters that `checked_queue` compares with the database."""
    numbers = "{" + ",".join(map(str, queues)) + "}"
    return [numbers, *map(list, zip(*queues.values(), strict=True))] if queues else [numbers, [], [], []]


def build_insert(table: str, columns: Mapping[str, str], tail: str = "") -> BatchStatement:
    """Builds an INSERT of these columns. `tail` is appended, for example an ON CONFLICT clause."""
    text = f"INSERT INTO homing.{table} ({', '.join(columns)}) SELECT u.* FROM {{rows}} {tail}"  # noqa: S608
    return BatchStatement(text, columns)


def transpose(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Transposes rows to columns. Returns `width` empty columns if there are no rows."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(width)]
