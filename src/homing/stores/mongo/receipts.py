"""Applies receipts, each once and in any order. Keeps a receipt until its attempt is known.

A receipt may be kept while the transaction that makes its attempt known is about to commit. Neither
transaction would see the other, and the receipt would never be applied. So a call that has kept a receipt
waits for the transactions that are open, and tries the receipt again in a second transaction. At that time,
all earlier transactions have ended, and every later one finds the kept receipt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

from msgspec import json
from msgspec.structs import replace
from pymongo import UpdateOne

from homing.core.lifecycle.effects import has_effects
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.lifecycle.rows import Change
from homing.core.notifications import Status
from homing.stores.common.codec import KeptReceipt, encode
from homing.stores.common.receipt_applier import NotificationFile, ReceiptApplier, SeqByMessage
from homing.stores.mongo.change_recorder import MongoChangeRecorder, messages_of, write_registry_puts
from homing.stores.mongo.documents import (
    Document,
    by_id,
    mutable_update,
    read_attempt,
    record_key,
    seq_of,
)
from homing.stores.mongo.schema import ATTEMPTS, NOTIFICATIONS, RECEIPTS
from homing.stores.mongo.transaction import MongoTransaction

_ORDER_PER_MS = 1 << 20

_decode_kept = json.Decoder(KeptReceipt).decode


ANY_KEPT = (
    RECEIPTS,
    (
        {"$match": {"provider": {"$gt": ""}, "kept": {"$exists": True}}},
        {"$limit": 1},
        {"$project": {"_id": 1}},
    ),
)
"""Finds out whether any receipt is kept, with the index of the kept ones. Without the condition on its first
field, the server would read all receipts. A settlement runs it beside its time."""


class _Application:
    """One round of receipts: the notifications that they belong to, and the changes to write."""

    def __init__(self, tx: MongoTransaction, applier: ReceiptApplier, ids: dict[int, str]) -> None:
        self._tx = tx
        self.applier = applier
        self._ids = ids
        self.changes: list[Change] = []

    async def write(self) -> None:
        applier, recorder = self.applier, MongoChangeRecorder(self._tx)
        leased = {one.row.id for one in self.changes if one.before is Status.SENDING}
        leased |= {row.id for row in applier.changed.values() if row.status is Status.SENDING}
        await recorder.read_and_count_leases(leased)
        await self._tx.db.bulk_write(
            NOTIFICATIONS,
            [UpdateOne({"_id": row.id}, mutable_update(row)) for row in applier.changed.values()],
        )
        updates: dict[tuple[int, int], dict[str, Any]] = {}
        for place, rank in applier.ranked.items():
            updates.setdefault(place, {})["receipt_rank"] = rank
        for place, message_id in applier.learned.items():
            updates.setdefault(place, {})["provider_message_id"] = message_id
        await self._tx.db.bulk_write(
            ATTEMPTS,
            [
                UpdateOne({"_id": record_key(self._ids[seq], change)}, {"$set": changed})
                for (seq, change), changed in updates.items()
            ],
        )
        await recorder.record_all(self.changes)
        await recorder.write()
        await write_registry_puts(self._tx, applier.puts)
        # The recursion ends, because each round adds a message id permanently.
        await apply_early_receipts(self._tx, [self._ids[seq] for seq in applier.seqs_with_learned_ids()])


async def apply_receipts(
    tx: MongoTransaction, batch: Sequence[Receipt]
) -> tuple[ReceiptResult, frozenset[str]]:
    """Applies each receipt once, or keeps the receipt if its attempt is not known yet.

    Also returns the keys of the events in this batch that are kept. They include repeated events, because the
    process that kept them first may have died before it tried them again.
    """
    keys = {(one.provider, one.event_id): encode((one.provider, one.event_id)) for one in batch}
    stored = await tx.db.find(RECEIPTS, {"_id": {"$in": list(keys.values())}}, fields=("kept",))
    known = {one["_id"] for one in stored}
    kept = {one["_id"] for one in stored if "kept" in one}
    application = await _prepare(tx, batch)
    applier = application.applier
    applied, unchanged, orphaned, new = [], [], [], []
    for number, receipt in enumerate(batch):
        key = keys[receipt.provider, receipt.event_id]
        if key in known:
            unchanged.append(receipt.event_id)
            continue
        known.add(key)
        document: Document = {
            "_id": key,
            "provider": receipt.provider,
            "event_id": receipt.event_id,
            "provider_message_id": receipt.provider_message_id,
            "notification_id": receipt.notification_id,
            "received_at": tx.now,
            "order": tx.now * _ORDER_PER_MS + number,
        }
        if not applier.can_apply(receipt):
            document["kept"] = encode(receipt)
            kept.add(key)
            orphaned.append(receipt.event_id)
        elif applier.apply(receipt):
            applied.append(receipt.event_id)
        else:
            unchanged.append(receipt.event_id)
        new.append(document)
    await tx.db.insert(RECEIPTS, new)
    await application.write()
    result = ReceiptResult(tuple(applied), tuple(unchanged), tuple(orphaned), tuple(tx.failures))
    return result, frozenset(kept)


async def apply_kept_receipts(
    tx: MongoTransaction, keys: Collection[str], before: ReceiptResult
) -> ReceiptResult:
    """Tries kept receipts again, after the transactions have ended that were open when they were kept.

    Returns the result `before`, with the receipts that were applied now moved from orphaned to applied.
    """
    found = await tx.db.find(RECEIPTS, {"_id": {"$in": list(keys)}, "kept": {"$exists": True}})
    ids = {receipt.event_id for receipt in await _take_kept(tx, found)}
    return ReceiptResult(
        (*before.applied, *(id for id in before.orphaned if id in ids)),
        before.unchanged,
        tuple(id for id in before.orphaned if id not in ids),
        (*before.failures, *tx.failures),
    )


async def apply_early_receipts(tx: MongoTransaction, ids: Sequence[str]) -> None:
    """Applies the kept receipts of these notifications, whose attempts or message ids have become known."""
    if not ids:
        return
    any_kept = tx.beside
    if any_kept is None:
        any_kept = await tx.db.aggregate(*ANY_KEPT)
    if not any_kept:
        return
    await _take_kept(tx, await _find_early(tx, ids))


async def _take_kept(tx: MongoTransaction, found: Sequence[Document]) -> list[Receipt]:
    """Applies those kept receipts whose attempt is known, marks them as applied, and returns them."""
    if not found:
        return []
    early = [
        (one["_id"], _decode_kept(one["kept"]).current())
        for one in sorted(found, key=lambda one: int(one["order"]))
    ]
    application = await _prepare(tx, [receipt for _, receipt in early])
    taken = [(key, receipt) for key, receipt in early if application.applier.can_apply(receipt)]
    for _, receipt in taken:
        application.applier.apply(receipt)
    if taken:
        await tx.db.update(RECEIPTS, {"_id": {"$in": [key for key, _ in taken]}}, {"$unset": {"kept": ""}})
    await application.write()
    return [receipt for _, receipt in taken]


async def _find_early(tx: MongoTransaction, ids: Sequence[str]) -> list[Document]:
    """Returns the kept receipts of these notifications."""
    named = await tx.db.find(RECEIPTS, {"notification_id": {"$in": list(ids)}, "kept": {"$exists": True}})
    found = {one["_id"]: one for one in named}
    messages: dict[str, set[str]] = {}
    condition = {"of": {"$in": list(ids)}, "provider_message_id": {"$exists": True}}
    for one in await tx.db.find(ATTEMPTS, condition, fields=("provider", "provider_message_id")):
        messages.setdefault(one["provider"], set()).add(one["provider_message_id"])
    for provider, message_ids in messages.items():
        of_messages = {
            "provider": provider,
            "provider_message_id": {"$in": sorted(message_ids)},
            "notification_id": None,
            "kept": {"$exists": True},
        }
        found.update({one["_id"]: one for one in await tx.db.find(RECEIPTS, of_messages)})
    return list(found.values())


async def _prepare(tx: MongoTransaction, receipts: Collection[Receipt]) -> _Application:
    """Reads the notifications that these receipts belong to and prepares to apply the receipts."""
    owners = await _find_owners(tx, receipts)
    ids = {r.notification_id for r in receipts if r.notification_id is not None} | set(owners.values())
    rows = by_id(await tx.db.find(NOTIFICATIONS, {"_id": {"$in": sorted(ids)}})) if ids else {}
    files = {seq: NotificationFile(seq, row) for seq, row in rows.values()}
    condition = {"of": {"$in": list(rows)}}
    for one in await tx.db.find(ATTEMPTS, condition, sort=(("of", 1), ("change", 1))) if rows else ():
        file = files[rows[one["of"]][0]]
        file.changes.append(one["change"])
        file.ranks.append(one["receipt_rank"])
        file.attempts.append(read_attempt(one))
    if rows and any(has_effects(receipt) for receipt in receipts):
        for id, message in (await messages_of(tx, list(rows))).items():
            files[rows[id][0]].recipient = message.recipient
    by_message: SeqByMessage = {place: rows[id][0] for place, id in owners.items() if id in rows}
    named = {id: seq for id, (seq, _) in rows.items()}
    changes: list[Change] = []

    def record(seq: int, change: Change) -> None:
        changes.append(_as_recorded(change))

    applier = ReceiptApplier(files, named, by_message, tx.now, record, tx.failures)
    application = _Application(tx, applier, {seq: id for id, (seq, _) in rows.items()})
    application.changes = changes
    return application


def _as_recorded(change: Change) -> Change:
    """Returns a change with a copy of its row, because a later receipt may change the row again."""
    return replace(change, row=copy(change.row))


async def _find_owners(tx: MongoTransaction, receipts: Collection[Receipt]) -> dict[tuple[str, str], str]:
    """Returns the ids of notifications by (provider, provider message id).

    If a provider used a message id twice, the receipt belongs to the older notification.
    """
    messages: dict[str, set[str]] = {}
    for one in receipts:
        if one.notification_id is None:
            messages.setdefault(one.provider, set()).add(one.provider_message_id)
    owners: dict[tuple[str, str], str] = {}
    for provider, message_ids in messages.items():
        condition = {"provider": provider, "provider_message_id": {"$in": sorted(message_ids)}}
        for found in await tx.db.find(ATTEMPTS, condition, fields=("of", "provider_message_id")):
            place = (provider, found["provider_message_id"])
            owners[place] = min(found["of"], owners.get(place, found["of"]), key=seq_of)
    return owners
