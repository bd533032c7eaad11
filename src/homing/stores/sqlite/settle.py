"""Applies settlements to leased rows. A settlement is applied only if its token is still the newest."""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.outcomes import RegistryPut, Settlement
from homing.core.lifecycle.rows import Change
from homing.core.lifecycle.rows import settle as settled
from homing.core.notifications import Status
from homing.stores.common.codec import Column
from homing.stores.common.leased_rows import APPLIED, MISSING, STALE, LeasedRows, SeqAndRow, SettleStatus
from homing.stores.common.row_columns import UNCHANGED_IF_NULL_FIELDS
from homing.stores.sqlite.change_recorder import SqliteChangeRecorder, write_registry_puts
from homing.stores.sqlite.columns import SETTLED_FIELDS, settled_columns
from homing.stores.sqlite.receipts import apply_early_receipts
from homing.stores.sqlite.rows import leased_by_id
from homing.stores.sqlite.statements import NotificationUpdate, RowVersion, SqliteTransaction, row_version
from homing.stores.sqlite.writer_thread import RetryTransaction

_FAILED = Status.FAILED


# A cached row is written only if the stored row is the same one and has not changed since the claim.
UPDATE_SETTLED = NotificationUpdate(SETTLED_FIELDS, UNCHANGED_IF_NULL_FIELDS, versioned=True)


def settle(tx: SqliteTransaction, batch: Sequence[Settlement], held: LeasedRows) -> list[SettleStatus]:
    """Applies settlements in their order and returns the result of each.

    Raises `RetryTransaction` if a cached row has changed in the database since its claim, or is gone.
    """
    found = _find_rows(tx, batch, held)
    recorder = SqliteChangeRecorder(tx)
    if tx.subscribed:
        recorder.prefetch_failure_details(
            [found[s.id][0] for s in batch if s.status is _FAILED and s.id in found]
        )
    now = tx.now
    statuses: list[SettleStatus] = []
    changes: list[tuple[int, Change]] = []
    written: dict[tuple[Column, ...], list[RowVersion]] = {}
    puts: list[RegistryPut] = []
    for settlement in batch:
        place = found.get(settlement.id)
        if place is None:
            statuses.append(MISSING)
            continue
        seq, row = place
        version = row_version(seq, row)
        change = settled(row, settlement, now)
        if change is None:
            statuses.append(STALE)
            continue
        statuses.append(APPLIED)
        changes.append((seq, change))
        written.setdefault(settled_columns(change.row), []).append(version)
        if settlement.puts:
            puts += settlement.puts
    if UPDATE_SETTLED.run_grouped(tx, written) != len(changes):
        raise RetryTransaction
    recorder.record_all(changes)
    recorder.write()
    write_registry_puts(tx, puts)
    apply_early_receipts(tx, [seq for seq, _ in changes])
    return statuses


def _find_rows(tx: SqliteTransaction, batch: Sequence[Settlement], held: LeasedRows) -> dict[str, SeqAndRow]:
    """Returns the rows of these settlements, from the cache if possible, otherwise from the database."""
    found = held.take(batch)
    if len(found) == len(batch):
        return found
    others = [settlement.id for settlement in batch if settlement.id not in found]
    return found | leased_by_id(tx, others) if others else found
