"""receipt: what providers tell later, applied once, in any order, and kept where it comes too early."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct, json

from homing.core.model import Receipt, ReceiptResult, RegistryPut, Status
from homing.core.receipts import Standing, Verdict, absorb
from homing.core.rows import receive
from homing.stores.codec import MUTABLE_FIELDS, StoredRow, encode, mutable_columns
from homing.stores.sqlite.changes import Book, queue_of, write_puts
from homing.stores.sqlite.rows import rows_by_seq
from homing.stores.sqlite.statements import Many, Tx, Update, insert

MUTABLE = Update(MUTABLE_FIELDS)
_HEARD = """
SELECT json_group_array(json_array(r.provider, r.event_id))
FROM json_each(?1) AS j CROSS JOIN homing_receipts AS r
  ON r.provider = json_extract(j.value, '$[0]') AND r.event_id = json_extract(j.value, '$[1]')
"""
_KNOWN = """
SELECT json_group_array(json_array(
  a.provider, a.provider_message_id, json_array(a.seq, a.change, a.receipt_rank,
    a.change = (SELECT max(change) FROM homing_attempts WHERE seq = a.seq))))
FROM json_each(?1) AS j CROSS JOIN homing_attempts AS a
  ON a.provider = json_extract(j.value, '$[0]') AND a.provider_message_id = json_extract(j.value, '$[1]')
"""
_EARLY = """
SELECT json_group_array(json_array(number, json(kept))) FROM (
  SELECT DISTINCT r.number, r.kept
  FROM json_each(?1) AS j
  CROSS JOIN homing_attempts AS a ON a.seq = j.value
  CROSS JOIN homing_receipts AS r
    ON r.provider = a.provider AND r.provider_message_id = a.provider_message_id AND r.kept IS NOT NULL
  ORDER BY r.number)
"""
_RECEIPTS = insert("homing_receipts", ("provider", "event_id", "provider_message_id", "received_at", "kept"))
_RANKS = Many(
    "UPDATE homing_attempts SET receipt_rank = r.column3 FROM (VALUES ",
    3,
    ") AS r WHERE seq = r.column1 AND change = r.column2",
)

MessageKey = tuple[str, str]
"""(provider, provider message id)."""


class _Known(Struct, array_like=True):
    """The attempt that a provider message belongs to."""

    seq: int
    change: int
    rank: int
    newest: bool


_decode_heard = json.Decoder(list[tuple[str, str]]).decode
_decode_known = json.Decoder(list[tuple[str, str, _Known]], strict=False).decode
_decode_early = json.Decoder(list[tuple[int, Receipt]]).decode


class _Desk:
    """Applies receipts to the rows they are about, and writes what changed at the end."""

    def __init__(self, tx: Tx, receipts: Collection[Receipt]) -> None:
        self._tx = tx
        self._book = Book(tx)
        self._known = _known(tx, receipts)
        self._rows = rows_by_seq(tx, [known.seq for known in self._known.values()])
        self._changed: dict[int, StoredRow] = {}
        self._ranked: dict[tuple[int, int], int] = {}
        self._puts: list[RegistryPut] = []

    def can_apply(self, receipt: Receipt) -> bool:
        """False: its message is unknown so far, or its notification is under way."""
        known = self._known.get(_message(receipt))
        return known is not None and self._rows[known.seq].status is not Status.SENDING

    def apply(self, receipt: Receipt) -> bool:
        """False: it changes nothing."""
        known = self._known[_message(receipt)]
        row = self._rows[known.seq]
        verdict = absorb(_standing(row, known), receipt)
        if verdict is None:
            return False
        self._keep_rank(known, verdict)
        was = queue_of(row)
        self._book.record(known.seq, receive(row, verdict, receipt, self._tx.now), was)
        self._changed[known.seq] = row
        self._puts += receipt.puts
        return True

    def write(self) -> None:
        MUTABLE.run(self._tx, {seq: mutable_columns(row) for seq, row in self._changed.items()})
        _RANKS.run(self._tx, [(*place, rank) for place, rank in self._ranked.items()])
        self._book.write()
        write_puts(self._tx, self._puts)

    def _keep_rank(self, known: _Known, verdict: Verdict) -> None:
        if verdict.rank != known.rank:
            known.rank = verdict.rank
            self._ranked[known.seq, known.change] = verdict.rank


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
        new.append((*event, receipt.provider_message_id, tx.now, kept))
    _RECEIPTS.run(tx, new)
    desk.write()
    return ReceiptResult(tuple(applied), tuple(unchanged), tuple(orphaned))


def take_early(tx: Tx, seqs: Sequence[int]) -> None:
    """Applies what was kept for any attempt of these notifications, which have just been settled."""
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


def _known(tx: Tx, receipts: Collection[Receipt]) -> dict[MessageKey, _Known]:
    found: dict[MessageKey, _Known] = {}
    messages = list({_message(receipt): None for receipt in receipts})
    for provider, message_id, known in _decode_known(tx.one(_KNOWN, encode(messages))):
        earlier = found.get((provider, message_id))
        # Should a provider give one id twice, the message is the one that had it first.
        if earlier is None or (known.seq, known.change) < (earlier.seq, earlier.change):
            found[provider, message_id] = known
    return found


def _standing(row: StoredRow, known: _Known) -> Standing:
    return Standing(
        status=row.status,
        mode=row.mode,
        provider=row.provider,
        outlet=row.outlet,
        attempts=row.attempts,
        rank=known.rank,
        newest=known.newest,
    )


def _message(receipt: Receipt) -> MessageKey:
    return receipt.provider, receipt.provider_message_id
