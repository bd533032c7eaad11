"""settle: what became of claims, applied where the token is still the newest."""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.model import RegistryPut, Settlement, Status
from homing.core.rows import settle as settled
from homing.stores.codec import SETTLED_FIELDS, Column, settled_columns
from homing.stores.fates import APPLIED, MISSING, STALE, Fate
from homing.stores.held import Found, Held
from homing.stores.sqlite.changes import Book, write_puts
from homing.stores.sqlite.receipts import take_early
from homing.stores.sqlite.rows import leased_by_id, unchanged
from homing.stores.sqlite.statements import Tx, Update

SETTLED = Update(SETTLED_FIELDS)


def settle(tx: Tx, batch: Sequence[Settlement], held: Held) -> list[Fate]:
    """Applies settlements in their order; the fate of each."""
    found = _found(tx, batch, held)
    book = Book(tx)
    fates: list[Fate] = []
    written: dict[int, tuple[Column, ...]] = {}
    puts: list[RegistryPut] = []
    if tx.subscribed:
        book.foresee([found[s.id][0] for s in batch if s.status is Status.FAILED and s.id in found])
    for settlement in batch:
        if settlement.id not in found:
            fates.append(MISSING)
            continue
        seq, row = found[settlement.id]
        change = settled(row, settlement, tx.now)
        if change is None:
            fates.append(STALE)
            continue
        book.record(seq, change)
        written[seq] = settled_columns(row)
        puts += settlement.puts
        fates.append(APPLIED)
    SETTLED.run(tx, written)
    book.write()
    write_puts(tx, puts)
    take_early(tx, list(written))
    return fates


def _found(tx: Tx, batch: Sequence[Settlement], held: Held) -> dict[str, Found]:
    """The rows that these are about: those that were kept, where nothing has changed them, else as stored."""
    kept = [row for settlement in batch if (row := held.take(settlement)) is not None]
    found = {row.id: (seq, row) for seq, row in unchanged(tx, kept)} if kept else {}
    others = [settlement.id for settlement in batch if settlement.id not in found]
    return found | leased_by_id(tx, others) if others else found
