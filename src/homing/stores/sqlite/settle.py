"""Applies settlements to leased rows. A settlement is applied only if its token is still the newest."""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.model import RegistryPut, Settlement, Status
from homing.core.rows import Change
from homing.core.rows import settle as settled
from homing.stores.codec import KEPT_FIELDS, SETTLED_FIELDS, Column, settled_columns
from homing.stores.fates import APPLIED, MISSING, STALE, Fate
from homing.stores.held import Found, Held
from homing.stores.sqlite.changes import Book, write_puts
from homing.stores.sqlite.receipts import take_early
from homing.stores.sqlite.rows import leased_by_id
from homing.stores.sqlite.statements import Tx, Update
from homing.stores.sqlite.threads import Again

_FAILED = Status.FAILED

# A cached row is written only if the stored row has not changed since the claim.
SETTLED = Update(SETTLED_FIELDS, " AND homing_notifications.changes = {changes} - 1", KEPT_FIELDS)


def settle(tx: Tx, batch: Sequence[Settlement], held: Held) -> list[Fate]:
    """Applies settlements in their order and returns the result of each.

    Raises `RetryTransaction` if a cached row has changed in the database since its claim.
    """
    found = _find_rows(tx, batch, held)
    book = Book(tx)
    if tx.subscribed:
        book.foresee([found[s.id][0] for s in batch if s.status is _FAILED and s.id in found])
    now = tx.now
    fates: list[Fate] = []
    changes: list[tuple[int, Change]] = []
    puts: list[RegistryPut] = []
    for settlement in batch:
        place = found.get(settlement.id)
        if place is None:
            fates.append(MISSING)
            continue
        seq, row = place
        change = settled(row, settlement, now)
        if change is None:
            fates.append(STALE)
            continue
        fates.append(APPLIED)
        changes.append((seq, change))
        if settlement.puts:
            puts += settlement.puts
    written: dict[tuple[Column, ...], list[int]] = {}
    for seq, change in changes:
        written.setdefault(settled_columns(change.row), []).append(seq)
    if SETTLED.run_alike(tx, written) != len(changes):
        raise Again
    book.record_all(changes)
    book.write()
    write_puts(tx, puts)
    take_early(tx, [seq for seq, _ in changes])
    return fates


def _find_rows(tx: Tx, batch: Sequence[Settlement], held: Held) -> dict[str, Found]:
    """Returns the rows of these settlements, from the cache if possible, otherwise from the database."""
    found = held.take(batch)
    if len(found) == len(batch):
        return found
    others = [settlement.id for settlement in batch if settlement.id not in found]
    return found | leased_by_id(tx, others) if others else found
