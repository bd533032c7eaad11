"""Applying receipts to notifications that a store has read, and collecting what it then has to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.effects import receipt_effects
from homing.core.model import AttemptRecord, Receipt, Recipient, RegistryPut, Status
from homing.core.receipts import absorb, attempt_of
from homing.core.rows import Change, Row, receive, standing_of

Owners = dict[tuple[str, str], int]
"""(provider, provider message id) → seq."""
Place = tuple[int, int]
"""(seq, change) of an attempt."""


class File(Struct):
    """One notification with its attempts, and what was heard about each of them."""

    seq: int
    row: Row
    recipient: Recipient = field(default_factory=Recipient)
    """Needed only where a receipt has effects on the reference data."""
    changes: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)


class Desk:
    """Everything that receipts of one call do, before any of it is written."""

    def __init__(
        self,
        files: Mapping[int, File],
        named: Mapping[str, int],
        owners: Owners,
        now: int,
        record: Callable[[int, Change], None],
    ) -> None:
        """`named` are seqs by notification id; `record` takes note of each change."""
        self._files = files
        self._named = named
        self._owners = owners
        self._now = now
        self._record = record
        self.changed: dict[int, Row] = {}
        self.ranked: dict[Place, int] = {}
        self.learned: dict[Place, str] = {}
        """Message ids that the attempts themselves never came back with."""
        self.puts: list[RegistryPut] = []

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
        verdict = absorb(standing_of(file.row, file.attempts, file.ranks, index, self._now), receipt)
        if verdict is None:
            return False
        if verdict.rank != file.ranks[index]:
            file.ranks[index] = self.ranked[file.seq, file.changes[index]] = verdict.rank
        self._record(file.seq, receive(file.row, verdict, receipt, self._now))
        self.changed[file.seq] = file.row
        self.puts += receipt_effects(file.row, file.recipient, receipt)
        return True

    def learned_of(self) -> list[int]:
        """The notifications of which a message is known by now that was not before."""
        return list(dict.fromkeys(seq for seq, _ in self.learned))

    def _file(self, receipt: Receipt) -> File | None:
        if receipt.notification_id is not None:
            seq = self._named.get(receipt.notification_id)
        else:
            seq = self._owners.get((receipt.provider, receipt.provider_message_id))
        return None if seq is None else self._files.get(seq)

    def _learn(self, file: File, receipt: Receipt, index: int) -> None:
        attempt, message_id = file.attempts[index], receipt.provider_message_id
        if attempt.provider_message_id is None and message_id:
            file.attempts[index] = replace(attempt, provider_message_id=message_id)
            self.learned[file.seq, file.changes[index]] = message_id
            self._owners.setdefault((receipt.provider, message_id), file.seq)
