"""Applies receipts, each once and in any order.

A receipt that arrives before its attempt is known is kept until then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import json

from homing.core.lifecycle.effects import has_effects
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.lifecycle.rows import Change
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    KeptReceipt,
    StoredAttempt,
    encode,
)
from homing.stores.common.receipt_applier import NotificationFile, ReceiptApplier, SeqByMessage
from homing.stores.sqlite.change_recorder import (
    SqliteChangeRecorder,
    messages_of,
    queue_of,
    write_registry_puts,
)
from homing.stores.sqlite.columns import MUTABLE_FIELDS, mutable_columns
from homing.stores.sqlite.rows import rows_by_id, rows_by_seq
from homing.stores.sqlite.statements import (
    MultiRowStatement,
    NotificationUpdate,
    SqliteTransaction,
    build_insert,
)

UPDATE_MUTABLE = NotificationUpdate(MUTABLE_FIELDS)

_KNOWN_EVENTS = """
SELECT json_group_array(json_array(r.provider, r.event_id))
FROM json_each(?1) AS j CROSS JOIN homing_receipts AS r
  ON r.provider = json_extract(j.value, '$[0]') AND r.event_id = json_extract(j.value, '$[1]')
"""

_OWNERS = """
SELECT json_group_array(json_array(a.provider, a.provider_message_id, a.seq))
FROM json_each(?1) AS j CROSS JOIN homing_attempts AS a
  ON a.provider = json_extract(j.value, '$[0]') AND a.provider_message_id = json_extract(j.value, '$[1]')
"""

_ATTEMPTS = f"""
SELECT json_group_array(json_array(
  a.seq, a.change, a.receipt_rank, json_array({", ".join(f"a.{f}" for f in ATTEMPT_FIELDS)})))
FROM json_each(?1) AS j CROSS JOIN homing_attempts AS a ON a.seq = j.value
"""  # noqa: S608

_EARLY_RECEIPTS = """
SELECT json_group_array(json_array(number, json(kept))) FROM (
  SELECT r.number, r.kept
  FROM json_each(?1) AS j
  CROSS JOIN homing_attempts AS a ON a.seq = j.value
  CROSS JOIN homing_receipts AS r
    ON r.provider = a.provider AND r.provider_message_id = a.provider_message_id AND r.kept IS NOT NULL
  WHERE r.notification_id IS NULL
  UNION
  SELECT r.number, r.kept
  FROM json_each(?1) AS j
  CROSS JOIN homing_notifications AS n ON n.seq = j.value
  CROSS JOIN homing_receipts AS r
    ON r.notification_id = n.id AND r.kept IS NOT NULL AND r.notification_id IS NOT NULL
  ORDER BY 1)
"""

_INSERT_RECEIPTS = build_insert(
    "homing_receipts",
    ("provider", "event_id", "provider_message_id", "notification_id", "received_at", "kept"),
)

_UPDATE_RANKS = MultiRowStatement(
    "UPDATE homing_attempts SET receipt_rank = r.column3 FROM (VALUES ",
    3,
    ") AS r WHERE seq = r.column1 AND change = r.column2",
)

_UPDATE_MESSAGE_IDS = MultiRowStatement(
    "UPDATE homing_attempts SET provider_message_id = r.column3 FROM (VALUES ",
    3,
    ") AS r WHERE seq = r.column1 AND change = r.column2 AND provider_message_id IS NULL",
)


_decode_known_events = json.Decoder(list[tuple[str, str]]).decode

_decode_owners = json.Decoder(list[tuple[str, str, int]]).decode

_decode_attempts = json.Decoder(list[tuple[int, int, int, StoredAttempt]]).decode

_decode_early = json.Decoder(list[tuple[int, KeptReceipt]]).decode


def _prepare(
    tx: SqliteTransaction, receipts: Collection[Receipt]
) -> tuple[ReceiptApplier, SqliteChangeRecorder]:
    """Reads the notifications that these receipts belong to and prepares to apply the receipts."""
    named, owners, files = _read_files(tx, receipts)
    recorder = SqliteChangeRecorder(tx)
    waited = {seq: queue_of(file.row) for seq, file in files.items()}

    def record(seq: int, change: Change) -> None:
        recorder.record(seq, change, waited[seq])
        waited[seq] = queue_of(change.row)

    return ReceiptApplier(files, named, owners, tx.now, record, tx.failures), recorder


def _write(tx: SqliteTransaction, applier: ReceiptApplier, recorder: SqliteChangeRecorder) -> None:
    UPDATE_MUTABLE.run(tx, {seq: mutable_columns(row) for seq, row in applier.changed.items()})
    _UPDATE_RANKS.run(tx, [(*place, rank) for place, rank in applier.ranked.items()])
    _UPDATE_MESSAGE_IDS.run(tx, [(*place, message) for place, message in applier.learned.items()])
    recorder.write()
    write_registry_puts(tx, applier.puts)
    apply_early_receipts(
        tx, applier.seqs_with_learned_ids()
    )  # the recursion ends, because each round adds a message id permanently


def apply_receipts(tx: SqliteTransaction, batch: Sequence[Receipt]) -> ReceiptResult:
    """Applies each receipt once, or keeps the receipt if its attempt is not known yet."""
    known_events = set(
        _decode_known_events(tx.one(_KNOWN_EVENTS, encode([(r.provider, r.event_id) for r in batch])))
    )
    applier, recorder = _prepare(tx, batch)
    applied, unchanged, orphaned, new = [], [], [], []
    for receipt in batch:
        event = (receipt.provider, receipt.event_id)
        if event in known_events:
            unchanged.append(receipt.event_id)
            continue
        known_events.add(event)
        kept = None
        if not applier.can_apply(receipt):
            kept = encode(receipt)
            orphaned.append(receipt.event_id)
        elif applier.apply(receipt):
            applied.append(receipt.event_id)
        else:
            unchanged.append(receipt.event_id)
        new.append((*event, receipt.provider_message_id, receipt.notification_id, tx.now, kept))
    _INSERT_RECEIPTS.run(tx, new)
    _write(tx, applier, recorder)
    return ReceiptResult(tuple(applied), tuple(unchanged), tuple(orphaned), tuple(tx.failures))


def apply_early_receipts(tx: SqliteTransaction, seqs: Sequence[int]) -> None:
    """Applies the kept receipts of these notifications, whose attempts or message ids have become known."""
    if not seqs or not tx.one("SELECT EXISTS (SELECT 1 FROM homing_receipts WHERE kept IS NOT NULL)"):
        return
    kept = _decode_early(tx.one(_EARLY_RECEIPTS, encode(seqs)))
    early = [(number, receipt.current()) for number, receipt in kept]
    if not early:
        return
    applier, recorder = _prepare(tx, [receipt for _, receipt in early])
    applicable = [(number, receipt) for number, receipt in early if applier.can_apply(receipt)]
    for _, receipt in applicable:
        applier.apply(receipt)
    numbers = encode([number for number, _ in applicable])
    tx.run("UPDATE homing_receipts SET kept = NULL WHERE number IN (SELECT value FROM json_each(?))", numbers)
    _write(tx, applier, recorder)


def _read_files(
    tx: SqliteTransaction, receipts: Collection[Receipt]
) -> tuple[dict[str, int], SeqByMessage, dict[int, NotificationFile]]:
    """Reads the notifications that these receipts belong to.

    Returns their seqs by notification id, their seqs by provider message id, and the notifications by seq.
    """
    ids = {r.notification_id for r in receipts if r.notification_id is not None}
    named = {id: seq for id, (seq, _) in rows_by_id(tx, sorted(ids)).items()} if ids else {}
    owners: SeqByMessage = {}
    messages = sorted({(r.provider, r.provider_message_id) for r in receipts if r.notification_id is None})
    for provider, message_id, seq in _decode_owners(tx.one(_OWNERS, encode(messages))):
        # If a provider used a message id twice, the receipt belongs to the older notification.
        owners[provider, message_id] = min(seq, owners.get((provider, message_id), seq))
    files = {
        seq: NotificationFile(seq, row)
        for seq, row in rows_by_seq(tx, [*named.values(), *owners.values()]).items()
    }
    for seq, change, rank, attempt in sorted(
        _decode_attempts(tx.one(_ATTEMPTS, encode(list(files)))), key=lambda found: found[:2]
    ):
        file = files[seq]
        file.changes.append(change)
        file.ranks.append(rank)
        file.attempts.append(attempt)
    if any(has_effects(receipt) for receipt in receipts):
        for seq, message in messages_of(tx, list(files)).items():
            files[seq].recipient = message.recipient
    return named, owners, files
