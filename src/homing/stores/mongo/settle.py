"""Applies settlements to leased rows. A settlement is applied only if its token is still the newest."""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.outcomes import RegistryPut, Settlement
from homing.core.lifecycle.rows import Change
from homing.core.lifecycle.rows import settle as settled
from homing.core.notifications import Status
from homing.stores.common.leased_rows import APPLIED, MISSING, STALE, SettleStatus
from homing.stores.mongo.change_recorder import MongoChangeRecorder, write_registry_puts
from homing.stores.mongo.documents import SETTLED, read_rows
from homing.stores.mongo.leases import LeasedRow, RowRewrites, row_version
from homing.stores.mongo.receipts import apply_early_receipts
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction


async def settle(
    tx: MongoTransaction, batch: Sequence[Settlement], cached: Sequence[LeasedRow]
) -> list[SettleStatus]:
    """Applies settlements in their order and returns the result of each. It runs on a thread.

    `cached` are rows of the batch with their documents, as they were after their claim. Raises `OutdatedRows`
    if one of them has changed in the database since, or is gone.
    """
    documents = {row.id: document for document, row in cached}
    rows = {row.id: row for _, row in cached}
    others = [settlement.id for settlement in batch if settlement.id not in documents]
    if others:
        found = await tx.db.find(NOTIFICATIONS, {"_id": {"$in": others}})
        documents.update({one["_id"]: one for one in found})
        rows.update({row.id: row for row in read_rows(found)})
    recorder, rewrites = MongoChangeRecorder(tx), RowRewrites(SETTLED)
    await recorder.prefetch_failure_details(
        [one.id for one in batch if one.status is Status.FAILED and one.id in rows]
    )
    statuses: list[SettleStatus] = []
    changes: list[Change] = []
    puts: list[RegistryPut] = []
    for settlement in batch:
        row = rows.get(settlement.id)
        if row is None:
            statuses.append(MISSING)
            continue
        version = row_version(row)
        change = settled(row, settlement, tx.now)
        if change is None:
            statuses.append(STALE)
            continue
        statuses.append(APPLIED)
        changes.append(change)
        recorder.count_leases((documents[row.id],))
        rewrites.add(row, version, documents[row.id])
        puts += settlement.puts
    await rewrites.write(tx)
    await recorder.record_all(changes)
    await recorder.write()
    await write_registry_puts(tx, puts)
    await apply_early_receipts(tx, [change.row.id for change in changes])
    return statuses
