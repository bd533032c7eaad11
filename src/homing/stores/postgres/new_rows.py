"""Assigns seqs to new rows and builds what is written to `messages`, `live` and `settled`."""

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
"""(change that creates the row, message as JSON)."""
Numbered = tuple[int, Change, str]
"""(seq, change that creates the row, message as JSON)."""


async def numbered(tx: Tx, new: Sequence[New]) -> list[Numbered]:
    """Assigns seqs in the order of the ids, because rows that are due at the same time are sent by seq."""
    by_id = sorted(new, key=lambda one: one[0].row.id)
    return [(seq, *one) for seq, one in zip(await tx.seqs(len(by_id)), by_id, strict=True)]


def messages_of(rows: Iterable[Numbered]) -> list[tuple[Any, ...]]:
    """Returns the columns to insert into `messages`."""
    return [(seq, *message_columns(change.row, message)) for seq, change, message in rows]


async def states_of(tx: Tx, rows: Sequence[Numbered]) -> list[Write]:
    """Returns the inserts into `live`, and into `settled` for rows that are final from the start."""
    queues = await tx.queues.find(tx, {queue_of(change.row) for _, change, _ in rows})
    columns: dict[str, list[tuple[Any, ...]]] = {"live": [], "settled": []}
    for seq, change, _ in rows:
        row = change.row
        table = "live" if row.status in LIVE else "settled"
        columns[table].append(new_columns(seq, row, queues[queue_of(row)]))
    return [(STATES[table], written) for table, written in columns.items()]
