"""Statements that carry a whole batch, and the transaction they run in.

`sqlite3` lets go of the interpreter lock at every step of a statement, and a thread that competes with a
busy event loop waits up to 5 ms to get it back. A batch must therefore be few steps, not one per row: rows
are written by one statement with many VALUES, and read as one JSON array (which msgspec turns into rows
faster than fetching them one by one). With a busy loop that is 100 times faster than `executemany`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from homing.stores.codec import JSON_FIELDS, ROW_FIELDS, Column, encode

_SIZES = (128, 64, 32, 16, 8, 4, 2, 1)
"""Rows per statement: few texts, so that SQLite's prepared statements are found again."""
_INSERTED_ALIKE = 32
_UPDATED_ALIKE = 8
"""With so many rows per group on average, statements for each group are the cheaper way."""
_NUL = "\\u0000"


class Tx:
    """What one call works with: a cursor in an open transaction, and its time."""

    __slots__ = ("cursor", "now", "subscribed")

    def __init__(self, cursor: sqlite3.Cursor, now: int, subscribed: Collection[str] = ()) -> None:
        self.cursor = cursor
        self.now = now
        self.subscribed = subscribed

    def one(self, sql: str, *parameters: Column) -> Any:
        """The first value of the only row that the statement has; None without a row."""
        row = self.cursor.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def run(self, sql: str, *parameters: Column) -> int:
        """Runs a writing statement; how many rows it changed."""
        return self.cursor.execute(sql, parameters).rowcount


class Many:
    """A statement with VALUES for as many rows as there are."""

    def __init__(self, head: str, width: int, tail: str = "") -> None:
        values = "(" + ",".join("?" * width) + ")"
        self._texts = [(size, head + ",".join([values] * size) + tail) for size in _SIZES]

    @property
    def text(self) -> str:
        """The statement for one row."""
        return self._texts[-1][1]

    def run(self, tx: Tx, rows: Sequence[Iterable[Column]], first: tuple[Column, ...] = ()) -> int:
        """Writes all rows, in as few statements as the sizes allow; `first` precedes their parameters.

        How many rows it changed.
        """
        start, left, changed = 0, len(rows), 0
        if not left:
            return 0
        for size, text in self._texts:
            while left >= size:
                parameters = (*first, *chain.from_iterable(rows[start : start + size]))
                changed += tx.cursor.execute(text, parameters).rowcount
                start += size
                left -= size
        return changed


def insert(table: str, fields: Sequence[str], tail: str = "") -> Many:
    """INSERT of these columns; `tail` is what to do on a conflict."""
    return Many(f"INSERT INTO {table} ({', '.join(fields)}) VALUES ", len(fields), tail)  # noqa: S608


class Insert:
    """INSERT of rows that have some columns of their own and often share all the others.

    Rows that share them are written together, and what they share is bound once.
    """

    def __init__(self, table: str, own: Sequence[str], shared: Sequence[str]) -> None:
        head = f"INSERT INTO {table} ({', '.join((*own, *shared))}) "
        self._each = Many(head + "VALUES ", len(own) + len(shared))
        # Numbered from 1, so that the parameters of the VALUES follow in their own order.
        mine = ", ".join(f"new.column{number}" for number in range(1, len(own) + 1))
        theirs = ", ".join(f"?{number}" for number in range(1, len(shared) + 1))
        self._alike = Many(head + f"SELECT {mine}, {theirs} FROM (VALUES ", len(own), ") AS new")  # noqa: S608

    def run(self, tx: Tx, rows: Sequence[tuple[tuple[Column, ...], tuple[Column, ...]]]) -> None:
        """Each row as (its own columns, the shared ones)."""
        groups: dict[tuple[Column, ...], list[tuple[Column, ...]]] = {}
        for own, shared in rows:
            groups.setdefault(shared, []).append(own)
        if len(groups) > 1 + len(rows) // _INSERTED_ALIKE:
            self._each.run(tx, [(*own, *shared) for own, shared in rows])
            return
        for shared, owns in groups.items():
            self._alike.run(tx, owns, shared)


class InsertJson:
    """The same in one statement for any number of rows, where their own columns are few.

    They go as JSON, which SQLite takes apart while others run; binding them one by one would hold them up.
    """

    def __init__(self, table: str, own: Sequence[str], shared: Sequence[str]) -> None:
        into = f"INSERT INTO {table} ({', '.join((*own, *shared))}) "
        mine = ", ".join(f"json_extract(new.value, '$[{place}]')" for place in range(len(own)))
        theirs = ", ".join(f"?{number}" for number in range(2, len(shared) + 2))
        self.text = into + f"SELECT {mine}, {theirs} FROM json_each(?1) AS new"  # noqa: S608
        self._each = Many(into + "VALUES ", len(own) + len(shared))

    def run(self, tx: Tx, groups: Mapping[tuple[Column, ...], Sequence[tuple[Column, ...]]]) -> None:
        """Shared columns → the own ones of those that share them."""
        if len(groups) > 1 + sum(map(len, groups.values())) // _INSERTED_ALIKE:
            self._each.run(tx, [(*own, *shared) for shared, owns in groups.items() for own in owns])
            return
        for shared, owns in groups.items():
            own_columns = encode(owns)
            if _NUL in own_columns:  # where SQLite's JSON ends a text
                self._each.run(tx, [(*own, *shared) for own in owns])
            else:
                tx.cursor.execute(self.text, (own_columns, *shared))


class Update:
    """UPDATE of some columns of notifications.

    Rows of one batch often end up alike (claimed together, sent together): those take one statement, which
    is cheaper than VALUES of their own for each.
    """

    def __init__(self, fields: Sequence[str], where: str = "", kept: Collection[str] = ()) -> None:
        """`where` says of the row what else must hold; `{changes}` in it is the number of its new changes.

        A NULL for one of the `kept` fields leaves what is stored.
        """

        def to_set(name: str, value: str) -> str:
            value = f"coalesce({value}, homing_notifications.{name})" if name in kept else value
            return f"{name} = {value}"

        number_of = {name: number for number, name in enumerate(fields, 1)}
        changes = number_of.get("changes", 0)
        alike = ", ".join(to_set(name, f"?{number}") for name, number in number_of.items())
        self.alike = (
            f"UPDATE homing_notifications SET {alike}"  # noqa: S608
            f" WHERE seq IN (SELECT value FROM json_each(?{len(fields) + 1}))"
            + where.format(changes=f"?{changes}")
        )
        each = ", ".join(to_set(name, f"new.column{number + 1}") for name, number in number_of.items())
        self.each = Many(
            f"UPDATE homing_notifications SET {each} FROM (VALUES ",  # noqa: S608
            len(fields) + 1,
            ") AS new WHERE homing_notifications.seq = new.column1"
            + where.format(changes=f"new.column{changes + 1}"),
        )

    def run(self, tx: Tx, rows: Mapping[int, tuple[Column, ...]]) -> int:
        """`seq` → values in the order of the fields; how many were written."""
        groups: dict[tuple[Column, ...], list[int]] = {}
        for seq, columns in rows.items():
            groups.setdefault(columns, []).append(seq)
        return self.run_alike(tx, groups)

    def run_alike(self, tx: Tx, groups: Mapping[tuple[Column, ...], list[int]]) -> int:
        """Values in the order of the fields → each `seq` that gets them; how many were written."""
        if len(groups) > 1 + sum(map(len, groups.values())) // _UPDATED_ALIKE:
            return self.each.run(tx, [(seq, *columns) for columns, seqs in groups.items() for seq in seqs])
        return sum([tx.run(self.alike, *columns, encode(seqs)) for columns, seqs in groups.items()])


def json_row(alias: str, last: str = ROW_FIELDS[-1]) -> str:
    """SQL for one notification as `[seq, [fields in the order of ROW_FIELDS]]`; `last` as below."""
    return f"json_array({alias}.seq, {json_unnumbered(alias, last)})"


def json_unnumbered(alias: str, last: str) -> str:
    """SQL for one notification as `[fields in the order of ROW_FIELDS]`.

    Fields after `last` are left out and have their defaults, whatever is stored: only for who neither
    reads nor writes them.
    """
    wanted = ROW_FIELDS[: ROW_FIELDS.index(last) + 1]
    fields = (f"json({alias}.{f})" if f in JSON_FIELDS else f"{alias}.{f}" for f in wanted)
    return f"json_array({', '.join(fields)})"
