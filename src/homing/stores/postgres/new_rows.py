"""New rows: their numbers, and what is written of them where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from homing.core.rows import Change
from homing.core.states import LIVE
from homing.stores.postgres.columns import MESSAGE, NEW, message_columns, new_columns
from homing.stores.postgres.rows import queue_of
from homing.stores.postgres.statements import Tx, Write, insertion

_MESSAGE = {"seq": "bigint", **MESSAGE}
MESSAGES = insertion("messages", _MESSAGE)
MESSAGES_ONCE = insertion("messages", _MESSAGE, "ON CONFLICT (id) DO NOTHING RETURNING id::text")
STATES = {table: insertion(table, NEW) for table in ("live", "settled")}

New = tuple[Change, str]
"""A new row, and its message as JSON."""
Numbered = tuple[int, Change, str]
"""The same with its number."""


async def numbered(tx: Tx, new: Sequence[New]) -> list[Numbered]:
    """By id: what is due together goes in that order."""
    by_id = sorted(new, key=lambda one: one[0].row.id)
    return [(seq, *one) for seq, one in zip(await tx.seqs(len(by_id)), by_id, strict=True)]


def messages_of(rows: Iterable[Numbered]) -> list[tuple[Any, ...]]:
    """What goes to `messages`."""
    return [(seq, *message_columns(change.row, message)) for seq, change, message in rows]


async def states_of(tx: Tx, rows: Sequence[Numbered]) -> list[Write]:
    """What goes to `live`, and what never was alive to `settled`."""
    queues = await tx.queues.find(tx, {queue_of(change.row) for _, change, _ in rows})
    columns: dict[str, list[tuple[Any, ...]]] = {"live": [], "settled": []}
    for seq, change, _ in rows:
        row = change.row
        table = "live" if row.status in LIVE else "settled"
        columns[table].append(new_columns(seq, row, queues[queue_of(row)]))
    return [(STATES[table], written) for table, written in columns.items()]
