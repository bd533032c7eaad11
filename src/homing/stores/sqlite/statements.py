"""Statements for whole batches, and the transaction they run in.

`sqlite3` releases the interpreter lock at every step of a statement, and a thread that competes with a busy
event loop waits up to 5 ms to get it back. A batch must therefore take few steps, not one per row. Rows are
written by one statement with many VALUES and read as one JSON array, which msgspec decodes faster than rows
are fetched one by one. With a busy event loop this is 100 times faster than `executemany`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from homing.core.lifecycle.outcomes import FailureReport
from homing.core.lifecycle.rows import Row
from homing.stores.common.codec import Column, encode
from homing.stores.common.row_columns import JSON_FIELDS, ROW_FIELDS
from homing.stores.common.sinks import SinkBook, read_sink_book

_ROWS_PER_STATEMENT = (128, 64, 32, 16, 8, 4, 2, 1)
"""Possible numbers of rows per statement. They are few, so that the prepared statements stay in the cache."""

_MIN_INSERT_GROUP_ROWS = 32
"""If groups have at least this many rows on average, one INSERT per group is faster than ungrouped ones."""

_MIN_UPDATE_GROUP_ROWS = 8
"""If groups have at least this many rows on average, one UPDATE per group is faster than ungrouped ones."""

SINKS = "SELECT group_concat(events || ' ' || name, char(10)) FROM homing_sinks"
"""The registered sinks, as `read_sink_book` expects them."""

_NUL = "\\u0000"


class SqliteTransaction:
    """An open transaction."""

    __slots__ = ("_sinks", "cursor", "failures", "now", "settling")

    def __init__(self, cursor: sqlite3.Cursor, now: int, settling: bool = False) -> None:
        """`now` is the transaction's time in epoch milliseconds. See `StoreTime` for `settling`."""
        self.cursor = cursor
        self.now = now
        self.settling = settling
        self.failures: list[FailureReport] = []
        """Failures reported by providers that this transaction has applied."""
        self._sinks: SinkBook | None = None

    @property
    def sinks(self) -> SinkBook:
        """The registered sinks. They are read once, within this transaction."""
        if self._sinks is None:
            self._sinks = read_sink_book(self.one(SINKS))
        return self._sinks

    def set_sinks(self, text: str | None) -> None:
        """Sets the registered sinks to the result of `SINKS`, which another statement has read."""
        self._sinks = read_sink_book(text)

    @property
    def subscribed(self) -> Collection[str]:
        """Names of the events that at least one sink gets."""
        return self.sinks.subscribed

    def one(self, sql: str, *parameters: Column) -> Any:
        """Returns the first value of the statement's first row, or None if there is no row."""
        row = self.cursor.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def run(self, sql: str, *parameters: Column) -> int:
        """Runs a statement and returns the number of rows it changed."""
        return self.cursor.execute(sql, parameters).rowcount


class MultiRowStatement:
    """A statement with a VALUES list for any number of rows."""

    def __init__(self, head: str, width: int, tail: str = "") -> None:
        values = "(" + ",".join("?" * width) + ")"
        self._width = width
        self._texts = [(size, head + ",".join([values] * size) + tail) for size in _ROWS_PER_STATEMENT]

    @property
    def text(self) -> str:
        """The statement for one row."""
        return self._texts[-1][1]

    def run(
        self, tx: SqliteTransaction, rows: Sequence[Iterable[Column]], first: tuple[Column, ...] = ()
    ) -> int:
        """Runs the statement for all rows, in as few executions as possible.

        `first` holds parameters that precede those of the rows. Returns the number of rows changed.
        """
        start, left, changed = 0, len(rows), 0
        if left == 1:  # hot path: a transaction with one notification runs five statements with one row
            return tx.cursor.execute(self._texts[-1][1], (*first, *rows[0])).rowcount
        for size, text in self._texts:
            while left >= size:
                parameters = (*first, *chain.from_iterable(rows[start : start + size]))
                changed += tx.cursor.execute(text, parameters).rowcount
                start += size
                left -= size
        return changed

    def run_flat(
        self, tx: SqliteTransaction, values: Sequence[Column], first: tuple[Column, ...] = ()
    ) -> None:
        """Works like `run`, but `values` holds the values of all rows, one after the other.

        Suits large batches: a tuple per row would make the garbage collector run more often.
        """
        start, left = 0, len(values) // self._width
        if left == 1:
            tx.cursor.execute(self._texts[-1][1], (*first, *values))
            return
        for size, text in self._texts:
            while left >= size:
                end = start + size * self._width
                tx.cursor.execute(text, (*first, *values[start:end]))
                start = end
                left -= size


def build_insert(table: str, fields: Sequence[str], tail: str = "") -> MultiRowStatement:
    """Builds an INSERT of these columns. `tail` is appended, for example an ON CONFLICT clause."""
    return MultiRowStatement(f"INSERT INTO {table} ({', '.join(fields)}) VALUES ", len(fields), tail)  # noqa: S608


class GroupedInsert:
    """An INSERT of rows that differ in their own columns and often share the values of all others.

    Rows with the same shared values are written together, and the shared values are bound once.
    """

    def __init__(self, table: str, own: Sequence[str], shared: Sequence[str]) -> None:
        head = f"INSERT INTO {table} ({', '.join((*own, *shared))}) "
        self._width = len(own)
        self._each = MultiRowStatement(head + "VALUES ", len(own) + len(shared))
        # The shared parameters have the numbers from 1, so those of the VALUES list follow in order.
        mine = ", ".join(f"new.column{number}" for number in range(1, len(own) + 1))
        theirs = ", ".join(f"?{number}" for number in range(1, len(shared) + 1))
        self._alike = MultiRowStatement(head + f"SELECT {mine}, {theirs} FROM (VALUES ", len(own), ") AS new")  # noqa: S608

    def run(self, tx: SqliteTransaction, groups: Mapping[tuple[Column, ...], Sequence[Column]]) -> None:
        """Inserts the rows of all groups.

        `groups` maps shared columns to the own columns of each row that has them, one row after the other.
        """
        width = self._width
        if len(groups) > 1 + sum(map(len, groups.values())) // (width * _MIN_INSERT_GROUP_ROWS):
            rows = [
                (*owns[start : start + width], *shared)
                for shared, owns in groups.items()
                for start in range(0, len(owns), width)
            ]
            self._each.run(tx, rows)
            return
        for shared, owns in groups.items():
            self._alike.run_flat(tx, owns, shared)


class JsonInsert:
    """Like `GroupedInsert`, but runs one statement per group of any size. Suits rows with few own columns.

    The own columns are bound as one JSON text, which SQLite decodes without holding the interpreter lock.
    """

    def __init__(self, table: str, own: Sequence[str], shared: Sequence[str]) -> None:
        into = f"INSERT INTO {table} ({', '.join((*own, *shared))}) "
        mine = ", ".join(f"json_extract(new.value, '$[{place}]')" for place in range(len(own)))
        theirs = ", ".join(f"?{number}" for number in range(2, len(shared) + 2))
        self.text = into + f"SELECT {mine}, {theirs} FROM json_each(?1) AS new"  # noqa: S608
        self._each = MultiRowStatement(into + "VALUES ", len(own) + len(shared))

    def run(
        self, tx: SqliteTransaction, groups: Mapping[tuple[Column, ...], Sequence[tuple[Column, ...]]]
    ) -> None:
        """Inserts rows. `groups` maps shared columns to the own columns of each row that has them."""
        if len(groups) > 1 + sum(map(len, groups.values())) // _MIN_INSERT_GROUP_ROWS:
            self._each.run(tx, [(*own, *shared) for shared, owns in groups.items() for own in owns])
            return
        for shared, owns in groups.items():
            own_columns = encode(owns)
            if _NUL in own_columns:  # SQLite's JSON functions cut a text at a NUL
                self._each.run(tx, [(*own, *shared) for own in owns])
            else:
                tx.cursor.execute(self.text, (own_columns, *shared))


RowVersion = tuple[int, str, int, int, int]
"""One state of one notification: (seq, id, changes, token, started_at). See `row_version`."""

_VERSION_FIELDS = ("seq", "id", "changes", "token", "started_at")

_OF_SAME_VERSION = """
SELECT n.seq FROM json_each({rows}) AS j CROSS JOIN homing_notifications AS n
  ON n.seq = json_extract(j.value, '$[0]') AND n.id = json_extract(j.value, '$[1]')
  AND n.changes = json_extract(j.value, '$[2]') AND n.token = json_extract(j.value, '$[3]')
  AND n.started_at = json_extract(j.value, '$[4]')
"""

_SAME_VERSION = " AND ".join(
    f"homing_notifications.{name} = new.column{number}" for number, name in enumerate(_VERSION_FIELDS, 1)
)


def row_version(seq: int, row: Row) -> RowVersion:
    """Returns what distinguishes a leased row, as it is now, from all other rows and from its other states.

    Neither the seq nor the number of changes does: after the file was restored from a backup, both are given
    out again, for other notifications and other changes. The same goes for the token of a lease, but not for
    the time at which the lease began.
    """
    return seq, row.id, row.changes, row.token, row.started_at


class NotificationUpdate:
    """An UPDATE of some columns of notifications.

    Rows of one batch often get the same values, for example if they were claimed or sent together. Such rows
    are updated by one statement, which is faster than a VALUES list.
    """

    def __init__(self, fields: Sequence[str], kept: Collection[str] = (), *, versioned: bool = False) -> None:
        """If the new value of one of the `kept` fields is NULL, the stored value stays.

        If `versioned`, rows are given as `RowVersion` instead of their seq, and a row is only updated if the
        stored row still has this version. Rows that were not read in the same transaction need this.
        """

        def to_set(name: str, value: str) -> str:
            value = f"coalesce({value}, homing_notifications.{name})" if name in kept else value
            return f"{name} = {value}"

        alike = ", ".join(to_set(name, f"?{number}") for number, name in enumerate(fields, 1))
        rows = f"?{len(fields) + 1}"
        chosen = _OF_SAME_VERSION.format(rows=rows) if versioned else f"SELECT value FROM json_each({rows})"  # noqa: S608
        self.alike = f"UPDATE homing_notifications SET {alike} WHERE seq IN ({chosen})"  # noqa: S608
        first = 1 + len(_VERSION_FIELDS) if versioned else 2
        each = ", ".join(to_set(name, f"new.column{number}") for number, name in enumerate(fields, first))
        same = _SAME_VERSION if versioned else "homing_notifications.seq = new.column1"
        self.each = MultiRowStatement(
            f"UPDATE homing_notifications SET {each} FROM (VALUES ",  # noqa: S608
            len(fields) + first - 1,
            f") AS new WHERE {same}",
        )

    def run(self, tx: SqliteTransaction, rows: Mapping[int, tuple[Column, ...]]) -> int:
        """Updates rows and returns their number. `rows` maps seqs to values in the order of the fields."""
        groups: dict[tuple[Column, ...], list[int]] = {}
        for seq, columns in rows.items():
            groups.setdefault(columns, []).append(seq)
        return self.run_grouped(tx, groups)

    def run_grouped(
        self, tx: SqliteTransaction, groups: Mapping[tuple[Column, ...], list[int] | list[RowVersion]]
    ) -> int:
        """Updates rows and returns their number.

        `groups` maps values to the seqs that get them, or to the versions if this update is `versioned`.
        """
        if len(groups) > 1 + sum(map(len, groups.values())) // _MIN_UPDATE_GROUP_ROWS:
            return self.each.run(
                tx,
                [
                    (*row, *columns) if isinstance(row, tuple) else (row, *columns)
                    for columns, rows in groups.items()
                    for row in rows
                ],
            )
        return sum([tx.run(self.alike, *columns, encode(rows)) for columns, rows in groups.items()])


def json_row(alias: str, last: str = ROW_FIELDS[-1]) -> str:
    """Returns SQL for one notification as `[seq, [fields in the order of ROW_FIELDS]]`.

    Fields after `last` are left out, see `json_row_without_seq`.
    """
    return f"json_array({alias}.seq, {json_row_without_seq(alias, last)})"


def json_row_without_seq(alias: str, last: str) -> str:
    """Returns SQL for one notification as `[fields in the order of ROW_FIELDS]`.

    Fields after `last` are left out, so the decoded row has their defaults instead of the stored values. The
    caller must neither read nor write them.
    """
    wanted = ROW_FIELDS[: ROW_FIELDS.index(last) + 1]
    fields = (f"json({alias}.{f})" if f in JSON_FIELDS else f"{alias}.{f}" for f in wanted)
    return f"json_array({', '.join(fields)})"
