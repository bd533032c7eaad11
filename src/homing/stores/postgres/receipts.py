"""Applies receipts, each once and in any order. Keeps a receipt until its attempt is known.

A receipt may be kept while the transaction that makes its attempt known is about to commit. Neither
transaction would see the other, and the receipt would never be applied. So every transaction that may make an
attempt known, by settlements or by receipts, holds the lock `RECEIPTS_LOCK` in shared mode. A call that has
kept a receipt tries it again in a second transaction that holds the lock exclusively. At that time, all
earlier transactions have committed, and every later one finds the kept receipt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import json
from msgspec.structs import replace

from homing.core.lifecycle.effects import has_effects
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.notifications import OutcomeKind
from homing.stores.common.codec import ATTEMPT_FIELDS, KeptReceipt, encode
from homing.stores.common.receipt_applier import NotificationFile, ReceiptApplier, SeqByMessage
from homing.stores.postgres.change_recorder import PostgresChangeRecorder, messages_of, write_registry_puts
from homing.stores.postgres.columns import clean, is_id
from homing.stores.postgres.connection import lock_exclusively
from homing.stores.postgres.rows import rows_by_id, rows_by_seq, write_rows
from homing.stores.postgres.statements import PostgresTransaction, Record, transpose

RECEIPTS_LOCK = "receipts"

_INSERT_NEW = """
INSERT INTO homing.receipts (provider, event_id, provider_message_id, notification_id, attempt, received_at)
SELECT e.provider, e.event_id, e.message_id, e.notification_id::uuid, e.attempt, $6
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[])
  AS e (provider, event_id, message_id, notification_id, attempt)
ORDER BY e.provider, e.event_id
ON CONFLICT (provider, event_id) DO NOTHING
RETURNING provider, event_id
"""

_WRITE_KEPT = """
UPDATE homing.receipts AS r SET kept = e.kept
FROM unnest($1::text[], $2::text[], $3::text[]) AS e (provider, event_id, kept)
WHERE r.provider = e.provider AND r.event_id = e.event_id
"""

_OWNERS = """
SELECT a.provider, a.provider_message_id, min(a.seq)
FROM unnest($1::text[], $2::text[]) AS m (provider, message_id)
JOIN homing.attempts AS a ON a.provider_message_id = m.message_id AND a.provider = m.provider
GROUP BY 1, 2
"""

_ATTEMPTS = f"""
SELECT a.seq, a.change, a.receipt_rank, {", ".join(f"a.{name}" for name in ATTEMPT_FIELDS)}
FROM homing.attempts AS a WHERE a.seq = ANY($1::bigint[]) ORDER BY a.seq, a.change
"""  # noqa: S608

# Uses the small partial indexes that contain only kept receipts.
EARLY_FOR = """
SELECT r.number, r.kept FROM homing.receipts AS r
WHERE r.kept IS NOT NULL AND r.number IN (
  SELECT k.number FROM homing.attempts AS a JOIN homing.receipts AS k
    ON k.provider_message_id = a.provider_message_id AND k.provider = a.provider
  WHERE a.seq = ANY($1::bigint[]) AND k.kept IS NOT NULL AND k.notification_id IS NULL
  UNION ALL
  SELECT k.number FROM homing.messages AS m JOIN homing.receipts AS k ON k.notification_id = m.id
  WHERE m.seq = ANY($1::bigint[]) AND k.kept IS NOT NULL AND k.notification_id IS NOT NULL)
ORDER BY r.number FOR UPDATE
"""

_STILL_KEPT = """
SELECT r.number, r.kept
FROM unnest($1::text[], $2::text[]) AS e (provider, event_id)
JOIN homing.receipts AS r ON r.provider = e.provider AND r.event_id = e.event_id
WHERE r.kept IS NOT NULL ORDER BY r.number FOR UPDATE OF r
"""

_KEPT_EVENTS = """
SELECT r.provider, r.event_id
FROM unnest($1::text[], $2::text[]) AS e (provider, event_id)
JOIN homing.receipts AS r ON r.provider = e.provider AND r.event_id = e.event_id
WHERE r.kept IS NOT NULL
"""

_MARK_APPLIED = "UPDATE homing.receipts SET kept = NULL WHERE number = ANY($1::bigint[])"

_UPDATE_RANKS = """
UPDATE homing.attempts AS a SET receipt_rank = r.rank
FROM unnest($1::bigint[], $2::integer[], $3::integer[]) AS r (seq, change, rank)
WHERE a.seq = r.seq AND a.change = r.change
"""

_UPDATE_MESSAGE_IDS = """
UPDATE homing.attempts AS a SET provider_message_id = r.message_id
FROM unnest($1::bigint[], $2::integer[], $3::text[]) AS r (seq, change, message_id)
WHERE a.seq = r.seq AND a.change = r.change AND a.provider_message_id IS NULL
"""


_decode_receipt = json.Decoder(KeptReceipt).decode

_EventKey = tuple[str, str]
"""Key of a receipt's event: (provider, event id)."""

_Kept = tuple[int, Receipt]
"""(number of the stored receipt, receipt)."""


async def apply_receipts(
    tx: PostgresTransaction, batch: Sequence[Receipt]
) -> tuple[ReceiptResult, list[_EventKey]]:
    """Applies each receipt once, or keeps it if its attempt is not known yet.

    Also returns the keys of the events in this batch that are kept. They include repeated events, because the
    process that kept them first may have died before it tried them again.
    """
    received = [_without_nul(receipt) for receipt in batch]
    new = await _insert_new(tx, received)
    repeated = sorted({_event(receipt) for receipt in received} - new)
    applier, recorder = await _prepare(tx, [receipt for receipt in received if _event(receipt) in new])
    applied, unchanged, orphaned, kept = [], [], [], []
    for receipt in received:
        if _event(receipt) not in new:
            unchanged.append(receipt.event_id)
            continue
        new.discard(_event(receipt))
        if not applier.can_apply(receipt):
            kept.append((*_event(receipt), encode(receipt)))
            orphaned.append(receipt.event_id)
        elif applier.apply(receipt):
            applied.append(receipt.event_id)
        else:
            unchanged.append(receipt.event_id)
    if kept:
        await tx.rows(_WRITE_KEPT, *transpose(kept, 3))
    await _write(tx, applier, recorder)
    waiting: list[_EventKey] = [(provider, id) for provider, id, _ in kept]
    if repeated:
        waiting += [(provider, id) for provider, id in await tx.rows(_KEPT_EVENTS, *transpose(repeated, 2))]
    return ReceiptResult(tuple(applied), tuple(unchanged), tuple(orphaned), tuple(tx.failures)), waiting


async def apply_kept_receipts(
    tx: PostgresTransaction, waiting: Sequence[_EventKey], before: ReceiptResult
) -> ReceiptResult:
    """Tries the kept receipts again while no other transaction can make attempts known.

    Returns the result `before`, with the receipts that were applied now moved from orphaned to applied.
    """
    await lock_exclusively(tx, RECEIPTS_LOCK)
    taken = await _take_kept(tx, await tx.rows(_STILL_KEPT, *transpose(sorted(waiting), 2)))
    ids = {receipt.event_id for _, receipt in taken}
    return ReceiptResult(
        (*before.applied, *(id for id in before.orphaned if id in ids)),
        before.unchanged,
        tuple(id for id in before.orphaned if id not in ids),
        (*before.failures, *tx.failures),
    )


async def apply_early_receipts(tx: PostgresTransaction, seqs: Sequence[int]) -> None:
    """Applies the kept receipts of these notifications, whose attempts or message ids have become known."""
    if seqs:
        await _take_kept(tx, await tx.rows(EARLY_FOR, list(seqs)))


async def _take_kept(tx: PostgresTransaction, found: Sequence[Record]) -> list[_Kept]:
    """Applies those kept receipts whose attempt is known, marks them as applied, and returns them."""
    if not found:
        return []
    early = [(number, _decode_receipt(kept).current()) for number, kept in found]
    applier, recorder = await _prepare(tx, [receipt for _, receipt in early])
    taken = [(number, receipt) for number, receipt in early if applier.can_apply(receipt)]
    for _, receipt in taken:
        applier.apply(receipt)
    await tx.rows(_MARK_APPLIED, [number for number, _ in taken])
    await _write(tx, applier, recorder)
    return taken


async def _insert_new(tx: PostgresTransaction, batch: Sequence[Receipt]) -> set[_EventKey]:
    """Stores the keys of the events and returns those that were not stored before."""
    rows = [
        (*_event(receipt), receipt.provider_message_id, _id(receipt), receipt.attempt) for receipt in batch
    ]
    if not rows:
        return set()
    return {(provider, id) for provider, id in await tx.rows(_INSERT_NEW, *transpose(rows, 5), tx.now)}


async def _prepare(
    tx: PostgresTransaction, receipts: Collection[Receipt]
) -> tuple[ReceiptApplier, PostgresChangeRecorder]:
    """Locks and reads the notifications that these receipts belong to and prepares to apply the receipts."""
    ids = sorted({r.notification_id for r in receipts if r.notification_id is not None})
    messages = sorted({(r.provider, r.provider_message_id) for r in receipts if r.notification_id is None})
    named = {id: seq for id, (seq, _) in (await rows_by_id(tx, ids)).items()} if ids else {}
    owners: SeqByMessage = {}
    if messages:
        # If a provider used a message id twice, the receipt belongs to the older notification.
        for provider, message_id, seq in await tx.rows(_OWNERS, *transpose(messages, 2)):
            owners[provider, message_id] = seq
    seqs = [*named.values(), *owners.values()]
    files = {seq: NotificationFile(seq, row) for seq, row in (await rows_by_seq(tx, seqs, lock=True)).items()}
    await _read_attempts(tx, files)
    if any(has_effects(receipt) for receipt in receipts):
        for seq, message in (await messages_of(tx, list(files))).items():
            files[seq].recipient = message.recipient
    recorder = PostgresChangeRecorder(tx)
    return ReceiptApplier(files, named, owners, tx.now, recorder.record, tx.failures), recorder


async def _read_attempts(tx: PostgresTransaction, files: dict[int, NotificationFile]) -> None:
    if not files:
        return
    for seq, change, rank, *fields in await tx.rows(_ATTEMPTS, list(files)):
        values = dict(zip(ATTEMPT_FIELDS, fields, strict=True))
        values["outcome"] = OutcomeKind(values["outcome"])
        file = files[seq]
        file.changes.append(change)
        file.ranks.append(rank)
        file.attempts.append(AttemptRecord(**values))


async def _write(tx: PostgresTransaction, applier: ReceiptApplier, recorder: PostgresChangeRecorder) -> None:
    if applier.changed:
        await write_rows(tx, applier.changed)
    if applier.ranked:
        await tx.rows(
            _UPDATE_RANKS, *transpose([(*place, rank) for place, rank in applier.ranked.items()], 3)
        )
    if applier.learned:
        await tx.rows(
            _UPDATE_MESSAGE_IDS, *transpose([(*place, id) for place, id in applier.learned.items()], 3)
        )
    await recorder.write()
    await write_registry_puts(tx, applier.puts)
    await apply_early_receipts(
        tx, applier.seqs_with_learned_ids()
    )  # the recursion ends, because each round adds a message id permanently


def _event(receipt: Receipt) -> _EventKey:
    return receipt.provider, receipt.event_id


def _id(receipt: Receipt) -> str | None:
    """Returns the notification id in the receipt, or None if the receipt has no valid one."""
    named = receipt.notification_id
    return named if named is not None and is_id(named) else None


def _without_nul(receipt: Receipt) -> Receipt:
    """Replaces NUL characters. Callbacks may contain them, but PostgreSQL cannot store them."""
    texts = {
        name: clean(getattr(receipt, name))
        for name in ("provider_message_id", "event_id", "error_code", "error")
    }
    if all(text == getattr(receipt, name) for name, text in texts.items()):
        return receipt
    return replace(receipt, **texts)
