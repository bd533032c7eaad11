"""Applies settlements to leased rows. A settlement is applied only if its token is still the newest."""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.outcomes import RegistryPut, Settlement
from homing.core.lifecycle.rows import Change
from homing.core.lifecycle.rows import settle as settled
from homing.core.notifications import Status
from homing.stores.common.leased_rows import APPLIED, MISSING, STALE, LeasedRows, SeqAndRow, SettleStatus
from homing.stores.mongo.change_recorder import MongoChangeRecorder, write_registry_puts
from homing.stores.mongo.documents import SETTLED, by_id
from homing.stores.mongo.leases import RowUpdates, row_version
from homing.stores.mongo.receipts import apply_early_receipts
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction


async def settle(tx: MongoTransaction, batch: Sequence[Settlement], held: LeasedRows) -> list[SettleStatus]:
    """Applies settlements in their order and returns the result of each.

    Raises `OutdatedRows` if a cached row has changed in the database since its claim, or is gone.
    """
    found = await _find_rows(tx, batch, held)
    recorder, updates = MongoChangeRecorder(tx), RowUpdates(SETTLED)
    await recorder.prefetch_failure_details(
        [one.id for one in batch if one.status is Status.FAILED and one.id in found]
    )
    statuses: list[SettleStatus] = []
    changes: list[Change] = []
    puts: list[RegistryPut] = []
    for settlement in batch:
        place = found.get(settlement.id)
        if place is None:
            statuses.append(MISSING)
            continue
        row = place[1]
        version = row_version(row)
        change = settled(row, settlement, tx.now)
        if change is None:
            statuses.append(STALE)
            continue
        statuses.append(APPLIED)
        changes.append(change)
        updates.add(row, version)
        puts += settlement.puts
    await updates.write(tx)
    await recorder.record_all(changes)
    await recorder.write()
    await write_registry_puts(tx, puts)
    await apply_early_receipts(tx, [change.row.id for change in changes])
    return statuses


async def _find_rows(
    tx: MongoTransaction, batch: Sequence[Settlement], held: LeasedRows
) -> dict[str, SeqAndRow]:
    """Returns the rows of these settlements, from the cache if possible, otherwise from the database."""
    found = held.take(batch)
    others = [settlement.id for settlement in batch if settlement.id not in found]
    if others:
        found |= by_id(await tx.db.find(NOTIFICATIONS, {"_id": {"$in": others}}))
    return found
