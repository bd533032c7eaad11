"""settle: what became of claims, applied where the token is still the newest."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from homing.core.model import RegistryPut, Settlement, SettleResult
from homing.core.rows import settle as settled
from homing.core.states import LIVE
from homing.stores.postgres.changes import Book, write_puts
from homing.stores.postgres.codec import SETTLED, STATE, settled_columns
from homing.stores.postgres.receipts import take_early
from homing.stores.postgres.rows import leased_by_id, queue_of, stored
from homing.stores.postgres.statements import Batch, Tx

_WRITTEN = tuple(name for name in SETTLED if name != "seq")
_UPDATED = len(SETTLED) + 1
# What ends with every lease: nobody holds it, and the time of the change is the transaction's.
_ALWAYS = {
    "lease_until": "NULL::bigint",
    "overdue": "false",
    "worker": "''",
    "updated_at": f"${_UPDATED}::bigint",
}
WAITS_ON = Batch(
    f"""
UPDATE homing.live AS s
SET {", ".join(f"{name} = u.{name}" for name in _WRITTEN)},
    {", ".join(f"{name} = {value}" for name, value in _ALWAYS.items())}
FROM {{rows}} WHERE s.seq = u.seq
""",  # noqa: S608
    SETTLED,
)


def _moved(name: str) -> str:
    return _ALWAYS.get(name) or (f"u.{name}" if name in SETTLED else f"s.{name}")


ENDS = Batch(
    f"""
WITH gone AS (
  DELETE FROM homing.live AS s USING {{rows}} WHERE s.seq = u.seq
  RETURNING {", ".join(f"{_moved(name)} AS {name}" for name in STATE)})
INSERT INTO homing.settled ({", ".join(STATE)}) SELECT * FROM gone
""",  # noqa: S608
    SETTLED,
)
EARLY = "SELECT EXISTS (SELECT 1 FROM homing.receipts WHERE kept IS NOT NULL)"


class Fate(Enum):
    """What became of a settlement."""

    APPLIED = 0
    STALE = 1
    MISSING = 2


async def settle(tx: Tx, batch: Sequence[Settlement]) -> list[Fate]:
    """Applies settlements in their order; the fate of each."""
    found = await leased_by_id(tx, [settlement.id for settlement in batch])
    absent = [settlement.id for settlement in batch if settlement.id not in found]
    ended = await stored(tx, absent) if absent else set()
    book = Book(tx)
    fates: list[Fate] = []
    applied: dict[int, Settlement] = {}
    puts: list[RegistryPut] = []
    for settlement in batch:
        if settlement.id not in found:
            fates.append(Fate.STALE if settlement.id in ended else Fate.MISSING)
            continue
        seq, row = found[settlement.id]
        change = settled(row, settlement, tx.now)
        if change is None:
            fates.append(Fate.STALE)
            continue
        book.record(seq, change)
        applied[seq] = settlement
        puts += settlement.puts
        fates.append(Fate.APPLIED)
    if not applied:
        return fates
    changed = {seq: found[settlement.id][1] for seq, settlement in applied.items()}
    queues = await tx.queues.find(tx, {queue_of(row) for row in changed.values()})
    for statement, stays in ((WAITS_ON, True), (ENDS, False)):
        written = [
            settled_columns(seq, row, queues[queue_of(row)])
            for seq, row in changed.items()
            if (row.status in LIVE) is stays
        ]
        if written:
            await statement.run(tx, written, tx.now)
    await book.write()
    await write_puts(tx, puts)
    if await tx.one(EARLY):
        await take_early(tx, list(applied))
    return fates


def result_of(batch: Sequence[Settlement], fates: Sequence[Fate]) -> SettleResult:
    """Ids by fate."""
    ids: dict[Fate, list[str]] = {fate: [] for fate in Fate}
    for settlement, fate in zip(batch, fates, strict=True):
        ids[fate].append(settlement.id)
    return SettleResult(tuple(ids[Fate.APPLIED]), tuple(ids[Fate.STALE]), tuple(ids[Fate.MISSING]))
