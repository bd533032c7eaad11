"""receipt: what providers tell later, applied once, in any order, and kept where it comes too early."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct, field, json
from msgspec.structs import replace

from homing.core.effects import has_effects, receipt_effects
from homing.core.model import AttemptRecord, Receipt, ReceiptResult, RegistryPut, Status
from homing.core.receipts import absorb, attempt_of
from homing.core.rows import receive, standing_of
from homing.stores.codec import (
    ATTEMPT_FIELDS,
    MUTABLE_FIELDS,
    StoredAttempt,
    StoredRow,
    encode,
    mutable_columns,
)
from homing.stores.sqlite.changes import Book, messages_of, queue_of, write_puts
from homing.stores.sqlite.rows import rows_by_id, rows_by_seq
from homing.stores.sqlite.statements import Many, Tx, Update, insert

MUTABLE = Update(MUTABLE_FIELDS)
_HEARD = """
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
_EARLY = """
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
_RECEIPTS = insert(
    "homing_receipts",
    ("provider", "event_id", "provider_message_id", "notification_id", "received_at", "kept"),
)
_RANKS = Many(
    "UPDATE homing_attempts SET receipt_rank = r.column3 FROM (VALUES ",
    3,
    ") AS r WHERE seq = r.column1 AND change = r.column2",
)
_LEARNED = Many(
    "UPDATE homing_attempts SET provider_message_id = r.column3 FROM (VALUES ",
    3,
    ") AS r WHERE seq = r.column1 AND change = r.column2 AND provider_message_id IS NULL",
)

_decode_heard = json.Decoder(list[tuple[str, str]]).decode
_decode_owners = json.Decoder(list[tuple[str, str, int]]).decode
_decode_attempts = json.Decoder(list[tuple[int, int, int, StoredAttempt]]).decode
_decode_early = json.Decoder(list[tuple[int, Receipt]]).decode


class _File(Struct):
    """One notification with its attempts, and what was heard about each of them."""

    seq: int
    row: StoredRow
    changes: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)


class _Desk:
    """Applies receipts to the rows they are about, and writes what changed at the end."""

    def __init__(self, tx: Tx, receipts: Collection[Receipt]) -> None:
        self._tx = tx
        self._book = Book(tx)
        self._named, self._owners, self._files = _files(tx, receipts)
        self._changed: dict[int, StoredRow] = {}
        self._ranked: dict[tuple[int, int], int] = {}
        self._learned: dict[tuple[int, int], str] = {}
        self._puts: list[RegistryPut] = []

    @property
    def learned(self) -> list[int]:
        """The notifications of which a message is known by now that was not before."""
        return list(dict.fromkeys(seq for seq, _ in self._learned))

    def can_apply(self, receipt: Receipt) -> bool:
        """False: its message is unknown so far, or its notification is under way."""
        file = self._file(receipt)
        if file is None or file.row.status is Status.SENDING:
            return False
        return attempt_of(receipt, file.attempts) is not None

    def apply(self, receipt: Receipt) -> bool:
        """False: it changes nothing."""
        file = self._file(receipt)
        index = attempt_of(receipt, file.attempts) if file is not None else None
        assert file is not None, "only what can be applied gets here"
        assert index is not None, "only what can be applied gets here"
        self._learn(file, receipt, index)
        verdict = absorb(standing_of(file.row, file.attempts, file.ranks, index), receipt)
        if verdict is None:
            return False
        if verdict.rank != file.ranks[index]:
            file.ranks[index] = self._ranked[file.seq, file.changes[index]] = verdict.rank
        was = queue_of(file.row)
        self._book.record(file.seq, receive(file.row, verdict, receipt, self._tx.now), was)
        self._changed[file.seq] = file.row
        if has_effects(receipt):
            recipient = messages_of(self._tx, (file.seq,))[file.seq].recipient
            self._puts += receipt_effects(file.row, recipient, receipt)
        return True

    def write(self) -> None:
        MUTABLE.run(self._tx, {seq: mutable_columns(row) for seq, row in self._changed.items()})
        _RANKS.run(self._tx, [(*place, rank) for place, rank in self._ranked.items()])
        _LEARNED.run(self._tx, [(*place, message) for place, message in self._learned.items()])
        self._book.write()
        write_puts(self._tx, self._puts)

    def _file(self, receipt: Receipt) -> _File | None:
        if receipt.notification_id is not None:
            seq = self._named.get(receipt.notification_id)
        else:
            seq = self._owners.get((receipt.provider, receipt.provider_message_id))
        return None if seq is None else self._files[seq]

    def _learn(self, file: _File, receipt: Receipt, index: int) -> None:
        """Fills in the message id that the attempt never came back with."""
        attempt, message_id = file.attempts[index], receipt.provider_message_id
        if attempt.provider_message_id is None and message_id:
            file.attempts[index] = replace(attempt, provider_message_id=message_id)
            self._learned[file.seq, file.changes[index]] = message_id
            self._owners.setdefault((receipt.provider, message_id), file.seq)


def take(tx: Tx, batch: Sequence[Receipt]) -> ReceiptResult:
    """Each event once: applied, kept for later, or without effect."""
    heard = set(_decode_heard(tx.one(_HEARD, encode([(r.provider, r.event_id) for r in batch]))))
    desk = _Desk(tx, batch)
    applied, unchanged, orphaned, new = [], [], [], []
    for receipt in batch:
        event = (receipt.provider, receipt.event_id)
        if event in heard:
            unchanged.append(receipt.event_id)
            continue
        heard.add(event)
        kept = None
        if not desk.can_apply(receipt):
            kept = encode(receipt)
            orphaned.append(receipt.event_id)
        elif desk.apply(receipt):
            applied.append(receipt.event_id)
        else:
            unchanged.append(receipt.event_id)
        new.append((*event, receipt.provider_message_id, receipt.notification_id, tx.now, kept))
    _RECEIPTS.run(tx, new)
    desk.write()
    take_early(tx, desk.learned)
    return ReceiptResult(tuple(applied), tuple(unchanged), tuple(orphaned))


def take_early(tx: Tx, seqs: Sequence[int]) -> None:
    """Applies what was kept for any attempt of these notifications, of which something new is known."""
    if not seqs or not tx.one("SELECT EXISTS (SELECT 1 FROM homing_receipts WHERE kept IS NOT NULL)"):
        return
    early = _decode_early(tx.one(_EARLY, encode(seqs)))
    if not early:
        return
    desk = _Desk(tx, [receipt for _, receipt in early])
    applicable = [(number, receipt) for number, receipt in early if desk.can_apply(receipt)]
    for _, receipt in applicable:
        desk.apply(receipt)
    numbers = encode([number for number, _ in applicable])
    tx.run("UPDATE homing_receipts SET kept = NULL WHERE number IN (SELECT value FROM json_each(?))", numbers)
    desk.write()
    take_early(tx, desk.learned)  # ends: each round fills in a message id that is never taken back


_Owners = dict[tuple[str, str], int]
"""(provider, provider message id) → seq."""


def _files(tx: Tx, receipts: Collection[Receipt]) -> tuple[dict[str, int], _Owners, dict[int, _File]]:
    """The notifications that these receipts are about: by their ids, by their messages, and whole."""
    ids = {r.notification_id for r in receipts if r.notification_id is not None}
    named = {id: seq for id, (seq, _) in rows_by_id(tx, sorted(ids)).items()} if ids else {}
    owners: _Owners = {}
    messages = sorted({(r.provider, r.provider_message_id) for r in receipts if r.notification_id is None})
    for provider, message_id, seq in _decode_owners(tx.one(_OWNERS, encode(messages))):
        # Should a provider give one id twice, the message is the one that had it first.
        owners[provider, message_id] = min(seq, owners.get((provider, message_id), seq))
    files = {
        seq: _File(seq, row) for seq, row in rows_by_seq(tx, [*named.values(), *owners.values()]).items()
    }
    for seq, change, rank, attempt in sorted(
        _decode_attempts(tx.one(_ATTEMPTS, encode(list(files)))), key=lambda found: found[:2]
    ):
        file = files[seq]
        file.changes.append(change)
        file.ranks.append(rank)
        file.attempts.append(attempt)
    return named, owners, files
