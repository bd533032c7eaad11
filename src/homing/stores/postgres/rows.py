"""Reads, locks and writes the rows of notifications, and converts database records to rows and messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from homing.core.errors import StoreBusy
from homing.core.lifecycle.rows import Row
from homing.core.lifecycle.states import LIVE
from homing.core.notifications import Message
from homing.stores.common.codec import StoredRow, decode_message
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.common.row_columns import (
    JSON_FIELDS,
    LAST_CLAIMED,
    ROW_COLUMNS,
    ROW_FIELDS,
    PostgresTable,
    RowColumn,
    SqlType,
)
from homing.stores.postgres.columns import STATE, is_id, state_columns
from homing.stores.postgres.queues import QueueKey
from homing.stores.postgres.statements import BatchStatement, PostgresTransaction, Record

_decode_counts = msgspec.json.Decoder(dict[str, int]).decode


def _decode_dict(text: str | None) -> dict[str, int]:
    return _decode_counts(text) if text else {}


_decode_messages = msgspec.json.Decoder(list[Message]).decode


_FIRST_JSON = ROW_FIELDS.index("spent")

assert ROW_FIELDS[_FIRST_JSON + 1] == LAST_CLAIMED == "holds", "a claim reads `spent` and `holds` last"

_CLAIMED = ROW_COLUMNS[3:_FIRST_JSON]

CLAIMED = ROW_FIELDS[3:_FIRST_JSON]
"""Fields that a claim reads, besides `spent`, `holds` and the first three of `ROW_FIELDS`, which name the
queue."""


def _column(column: RowColumn, message: str, state: str, queue: str) -> str:
    match column.table:
        case PostgresTable.MESSAGES:
            alias = message
        case PostgresTable.STATES:
            alias = state
        case PostgresTable.QUEUES:
            alias = queue
    text = "::text" if column.type is SqlType.UUID else ""
    return f"{alias}.{column.name}{text}"


def selected(message: str, state: str, queue: str) -> str:
    """Returns the select list of a row, `seq` first.

    The arguments are the aliases of `messages`, of `live` or `settled`, and of `queues`.
    """
    columns = (_column(column, message, state, queue) for column in ROW_COLUMNS)
    return ", ".join((f"{message}.seq", *columns))


def selected_for_claim(message: str, state: str) -> str:
    """Returns the select list of a row to be claimed: (seq, queue, …, spent, holds, message)."""
    columns = (_column(column, message, state, "") for column in _CLAIMED)
    last = (f"{state}.spent", f"{state}.holds", f"{message}.message")
    return ", ".join((f"{state}.seq", f"{state}.queue", *columns, *last))


SELECTED = selected("r", "r", "r")
"""Select list of a row from `homing.rows AS r`."""


def rows_from(records: Iterable[Record]) -> list[SeqAndRow]:
    """Converts records whose first columns are those of `selected`."""
    found: list[SeqAndRow] = msgspec.convert([_values(record) for record in records], list[SeqAndRow])
    return found


def decode_messages(texts: Iterable[str]) -> list[Message]:
    """Decodes many messages at once. One that cannot be read becomes `UNREADABLE_MESSAGE`."""
    given = list(texts)
    try:
        return _decode_messages(f"[{','.join(given)}]")
    except (msgspec.DecodeError, RecursionError):
        return [decode_message(text) for text in given]


def rows_to_claim(records: Iterable[Record], names: Mapping[int, QueueKey]) -> list[SeqAndRow]:
    """Converts records with the columns of `selected_for_claim`. `names` holds the queues by number."""
    values: list[tuple[int, tuple[Any, ...]]] = []
    for record in records:
        spent, holds = record[-3], record[-2]
        last = () if spent is None and holds is None else (_decode_dict(spent), _decode_dict(holds))
        values.append((record[0], (*names[record[1]], *record[2:-3], *last)))
    found: list[SeqAndRow] = msgspec.convert(values, list[SeqAndRow])
    return found


_WIDTH = 1 + len(ROW_FIELDS)

_JSON_PLACES = tuple(1 + ROW_FIELDS.index(name) for name in sorted(JSON_FIELDS))


def _values(record: Record) -> tuple[int, list[Any]]:
    """Returns (seq, field values in the order of `ROW_FIELDS`)."""
    values = list(record[:_WIDTH])
    for place in _JSON_PLACES:
        values[place] = _decode_dict(values[place])
    return values[0], values[1:]


_MAX_LOCK_ROUNDS = 8
"""Maximum number of tries to lock a row that keeps moving between `live` and `settled`."""

_MAX_READS = 2

_SEQS = "SELECT id::text, seq FROM homing.messages WHERE id = ANY($1::text[]::uuid[])"

_BY_ID = f"SELECT {SELECTED} FROM homing.rows AS r WHERE r.id = ANY($1::text[]::uuid[])"  # noqa: S608

_BY_SEQ = f"SELECT {SELECTED} FROM homing.rows AS r WHERE r.seq = ANY($1::bigint[])"  # noqa: S608

_LOCK = "SELECT seq FROM homing.{table} WHERE seq = ANY($1::bigint[]) ORDER BY seq FOR UPDATE"

_STILL_THERE = "SELECT seq FROM homing.states WHERE seq = ANY($1::bigint[]) ORDER BY seq"

LEASED = f"""
SELECT {selected("m", "s", "q")}
FROM homing.messages AS m
JOIN homing.live AS s ON s.seq = m.seq
JOIN homing.queues AS q ON q.id = s.queue
WHERE m.id = ANY($1::text[]::uuid[])
ORDER BY s.seq
FOR UPDATE OF s
"""  # noqa: S608

_SET = ", ".join(f"{name} = u.{name}" for name in STATE if name != "seq")

_UPDATE = f"UPDATE homing.TABLE AS s SET {_SET} FROM {{rows}} WHERE s.seq = u.seq RETURNING s.seq"  # noqa: S608

_MOVE = f"""
WITH gone AS (DELETE FROM homing.OTHER AS s USING {{rows}} WHERE s.seq = u.seq RETURNING u.*)
INSERT INTO homing.TABLE ({", ".join(STATE)}) SELECT * FROM gone
"""  # noqa: S608


def _for_both(text: str) -> dict[str, BatchStatement]:
    """Builds the statement for each of the two tables. OTHER is the table that a row may come from."""
    both = (("live", "settled"), ("settled", "live"))
    return {
        table: BatchStatement(text.replace("TABLE", table).replace("OTHER", other), STATE)
        for table, other in both
    }


_UPDATES = _for_both(_UPDATE)

_MOVED = _for_both(_MOVE)


async def rows_by_id(
    tx: PostgresTransaction, ids: Collection[str], *, lock: bool = False
) -> dict[str, SeqAndRow]:
    """Returns the existing rows with these ids, of any tenant, by id. Locks them first if `lock` is True."""
    wanted = [id for id in dict.fromkeys(ids) if is_id(id)]
    if not lock:
        return {found[1].id: found for found in rows_from(await tx.rows(_BY_ID, wanted))} if wanted else {}
    seqs = [seq for _, seq in await tx.rows(_SEQS, wanted)]
    found_rows = await rows_by_seq(tx, seqs, lock=True)
    return {row.id: (seq, row) for seq, row in found_rows.items()}


async def rows_by_seq(
    tx: PostgresTransaction, seqs: Collection[int], *, lock: bool = False
) -> dict[int, StoredRow]:
    """Returns the existing rows with these seqs, by seq, sorted. Locks them first if `lock` is True."""
    wanted = sorted(set(seqs))
    if not wanted:
        return {}
    if lock:
        await _lock(tx, wanted)
    return dict(sorted(rows_from(await tx.rows(_BY_SEQ, wanted))))


async def leased_by_id(tx: PostgresTransaction, ids: Collection[str]) -> dict[str, SeqAndRow]:
    """Locks and returns the live rows with these ids, by id.

    If a row changes its queue while this transaction waits for its lock, the join still uses the old queue
    and does not return the row. A second read, with a newer snapshot, finds the row.
    """
    found: dict[str, SeqAndRow] = {}
    wanted = [id for id in dict.fromkeys(ids) if is_id(id)]
    for _ in range(_MAX_READS):
        found |= {row.id: (seq, row) for seq, row in rows_from(await tx.rows(LEASED, wanted))}
        wanted = [id for id in wanted if id not in found]
        if not wanted:
            break
    return found


async def find_stored_ids(tx: PostgresTransaction, ids: Collection[str]) -> set[str]:
    """Returns those of the ids that belong to a stored notification."""
    wanted = [id for id in dict.fromkeys(ids) if is_id(id)]
    return {id for id, _ in await tx.rows(_SEQS, wanted)} if wanted else set()


async def write_rows(tx: PostgresTransaction, rows: Mapping[int, Row]) -> None:
    """Writes all mutable columns of these rows. Moves a row if its new status belongs to the other table."""
    queues = await tx.queues.find(tx, {queue_of(row) for row in rows.values()})
    for table, is_live in (("live", True), ("settled", False)):
        here = {seq: row for seq, row in rows.items() if (row.status in LIVE) is is_live}
        if not here:
            continue
        columns = [state_columns(seq, here[seq], queues[queue_of(here[seq])]) for seq in sorted(here)]
        updated = await _UPDATES[table].run(tx, columns)
        rest = set(here) - {seq for (seq,) in updated}
        if rest:
            await _MOVED[table].run(tx, [values for values in columns if values[0] in rest])


def queue_of(row: Row) -> tuple[str, str, str]:
    """Returns the queue that the row waits in, or would wait in."""
    return row.lane, row.tenant, row.outlet


async def _lock(tx: PostgresTransaction, seqs: list[int]) -> None:
    """Locks each row, even if it moves to the other table in the meantime. A deleted row is skipped."""
    left = seqs
    for _ in range(_MAX_LOCK_ROUNDS):
        for table in ("live", "settled"):
            locked = {seq for (seq,) in await tx.rows(_LOCK.format(table=table), left)}
            left = [seq for seq in left if seq not in locked]
            if not left:
                return
        left = [seq for (seq,) in await tx.rows(_STILL_THERE, left)]
        if not left:
            return
    raise StoreBusy("A notification changed too often to be locked. Nothing was changed; try again.")
