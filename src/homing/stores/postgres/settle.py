"""Applies settlements to leased rows. A settlement is applied only if its token is still the newest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from homing.core.lifecycle.outcomes import RegistryPut, Settlement
from homing.core.lifecycle.rows import Change
from homing.core.lifecycle.rows import settle as settled
from homing.core.lifecycle.states import LIVE
from homing.stores.common.leased_rows import APPLIED, MISSING, STALE, LeasedRows, SeqAndRow, SettleStatus
from homing.stores.common.row_columns import UNCHANGED_IF_NULL_FIELDS
from homing.stores.postgres.change_recorder import PostgresChangeRecorder, write_registry_puts
from homing.stores.postgres.columns import ENDED_LEASE, SETTLED, STATE, settled_columns
from homing.stores.postgres.receipts import apply_early_receipts
from homing.stores.postgres.rows import find_stored_ids, leased_by_id, queue_of
from homing.stores.postgres.statements import BatchStatement, PostgresTransaction

_WRITTEN = tuple(name for name in SETTLED if name != "seq")

_COLUMNS = {**SETTLED, "id": "uuid", "token": "integer", "started_at": "bigint"}

# A row is written only if the stored row has not changed since it was read or cached. If the database's
# history has gone back since, another notification may have the same seq, and another lease the same token.
_FROM = "{rows} JOIN homing.messages AS m ON m.seq = u.seq AND m.id = u.id"
_UNCHANGED = (
    "s.seq = u.seq AND s.changes = u.changes - 1 AND s.token = u.token AND s.started_at = u.started_at"
)


def _written(name: str) -> str:
    """Returns SQL for the new value of a column that a settlement writes."""
    return f"coalesce(u.{name}, s.{name})" if name in UNCHANGED_IF_NULL_FIELDS else f"u.{name}"


UPDATE_WAITING = BatchStatement(
    f"""
UPDATE homing.live AS s
SET {", ".join(f"{name} = {_written(name)}" for name in _WRITTEN)},
    {", ".join(f"{name} = {value}" for name, value in ENDED_LEASE.items())}
FROM {_FROM} WHERE {_UNCHANGED} RETURNING s.seq
""",  # noqa: S608
    _COLUMNS,
)


def _moved(name: str) -> str:
    return ENDED_LEASE.get(name) or (_written(name) if name in SETTLED else f"s.{name}")


MOVE_TO_SETTLED = BatchStatement(
    f"""
WITH gone AS (
  DELETE FROM homing.live AS s USING {_FROM} WHERE {_UNCHANGED}
  RETURNING {", ".join(f"{_moved(name)} AS {name}" for name in STATE)})
INSERT INTO homing.settled ({", ".join(STATE)}) SELECT * FROM gone RETURNING seq
""",  # noqa: S608
    _COLUMNS,
)

HAS_EARLY_RECEIPTS = "SELECT EXISTS (SELECT 1 FROM homing.receipts WHERE kept IS NOT NULL)"


_Pair = tuple[int, Settlement, SeqAndRow]
"""(index in the batch, settlement, its row)."""


class _Settling:
    """State of one settle call: the results so far and the changes to record."""

    def __init__(self, tx: PostgresTransaction, batch: Sequence[Settlement]) -> None:
        self.tx = tx
        self.recorder = PostgresChangeRecorder(tx)
        self.fates = [STALE] * len(batch)
        self.applied: list[int] = []
        self.puts: list[RegistryPut] = []

    async def apply(self, pairs: Iterable[_Pair]) -> None:
        """Applies each settlement whose token is still the newest and whose row has not changed since."""
        now, fates, puts = self.tx.now, self.fates, self.puts
        changes: dict[int, Change] = {}
        places: dict[int, tuple[int, Settlement]] = {}
        for place, settlement, (seq, row) in pairs:
            change = settled(row, settlement, now)
            if change is not None:
                changes[seq], places[seq] = change, (place, settlement)
        written = await self._write(changes)
        for seq in written:
            place, settlement = places[seq]
            fates[place] = APPLIED
            if settlement.puts:
                puts += settlement.puts
        self.recorder.record_all([(seq, changes[seq]) for seq in written])
        self.applied += written

    async def finish(self) -> None:
        """Records the changes and applies receipts that arrived before their attempt was settled."""
        if not self.applied:
            return
        [(early,)] = await self.recorder.write(last=HAS_EARLY_RECEIPTS)
        await write_registry_puts(self.tx, self.puts)
        if early:
            await apply_early_receipts(self.tx, self.applied)

    async def _write(self, changes: Mapping[int, Change]) -> list[int]:
        """Writes the rows that have not changed since they were read, and returns their seqs."""
        rows = [(seq, row, queue_of(row)) for seq in sorted(changes) for row in (changes[seq].row,)]
        queues = await self.tx.queues.find(self.tx, {queue for _, _, queue in rows})
        stay, end = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        for seq, row, queue in rows:
            columns = (*settled_columns(seq, row, queues[queue]), row.id, row.token, row.started_at)
            (stay if row.status in LIVE else end).append(columns)
        written: list[int] = []
        for statement, these in ((UPDATE_WAITING, stay), (MOVE_TO_SETTLED, end)):
            if these:
                written += [seq for (seq,) in await statement.run(self.tx, these)]
        return written


async def settle(
    tx: PostgresTransaction, batch: Sequence[Settlement], held: LeasedRows
) -> list[SettleStatus]:
    """Applies settlements, first those whose rows are cached, and returns the result of each."""
    settling = _Settling(tx, batch)
    known = held.take(batch)
    await settling.apply([(place, one, known[one.id]) for place, one in enumerate(batch) if one.id in known])
    rest = [(place, one) for place, one in enumerate(batch) if settling.fates[place] is not APPLIED]
    if rest:
        await _read_and_settle(tx, settling, rest)
    await settling.finish()
    return settling.fates


async def _read_and_settle(
    tx: PostgresTransaction, settling: _Settling, rest: Sequence[tuple[int, Settlement]]
) -> None:
    found = await leased_by_id(tx, [settlement.id for _, settlement in rest])
    await settling.apply([(place, one, found[one.id]) for place, one in rest if one.id in found])
    absent = {one.id for _, one in rest if one.id not in found}
    if absent:
        absent -= await find_stored_ids(tx, absent)
        for place, settlement in rest:
            if settlement.id in absent:
                settling.fates[place] = MISSING
