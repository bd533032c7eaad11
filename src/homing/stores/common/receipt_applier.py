"""Applies receipts to notifications that a store has read, and collects the changes it must write."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.lifecycle.effects import receipt_effects
from homing.core.lifecycle.outcomes import AttemptRecord, FailureReport, RegistryPut
from homing.core.lifecycle.receipt_decision import (
    ReceiptDecision,
    apply_receipt,
    attempt_of,
    decide_receipt,
    receipt_context,
)
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.rows import Change, Row
from homing.core.notifications import Recipient, Status

_FAILURES = frozenset({ReceiptEvent.FAILED, ReceiptEvent.SPAM_REPORT})

SeqByMessage = dict[tuple[str, str], int]
"""Maps (provider, provider message id) to the seq of the notification."""

AttemptKey = tuple[int, int]
"""Key of an attempt: (seq of its notification, change number)."""


class NotificationFile(Struct):
    """One notification with its attempts and the rank of the last receipt for each attempt.

    `changes`, `ranks` and `attempts` are parallel lists.
    """

    seq: int
    row: Row
    recipient: Recipient = field(default_factory=Recipient)
    """Set only if a receipt has effects on the reference data."""
    changes: list[int] = field(default_factory=list)
    """Change numbers, the second part of each attempt's key."""
    ranks: list[int] = field(default_factory=list)
    """Highest receipt rank applied to each attempt so far."""
    attempts: list[AttemptRecord] = field(default_factory=list)


class ReceiptApplier:
    """Applies the receipts of one call in memory. The store writes the collected changes afterwards."""

    def __init__(
        self,
        files: Mapping[int, NotificationFile],
        named: Mapping[str, int],
        owners: SeqByMessage,
        now: int,
        record: Callable[[int, Change], None],
        failures: list[FailureReport],
    ) -> None:
        """`files` is keyed by seq, `named` maps notification ids to seqs.

        `record` is called with the seq and the change for each change of a row. The applied reports of
        failures are appended to `failures`.
        """
        self._files = files
        self._named = named
        self._owners = owners
        self._now = now
        self._record = record
        self._failures = failures
        self.changed: dict[int, Row] = {}
        """Rows to write, by seq."""
        self.ranked: dict[AttemptKey, int] = {}
        """New receipt ranks to write, by attempt."""
        self.learned: dict[AttemptKey, str] = {}
        """Provider message ids to write, by attempt. A receipt supplied them because the attempt had none."""
        self.puts: list[RegistryPut] = []
        """Registry entries to write, for example suppressions."""

    def can_apply(self, receipt: Receipt) -> bool:
        """Returns False if the receipt's attempt is not known yet or its notification is being sent."""
        file = self._file(receipt)
        if file is None or file.row.status is Status.SENDING:
            return False
        return attempt_of(receipt, file.attempts) is not None

    def apply(self, receipt: Receipt) -> bool:
        """Applies a receipt for which `can_apply` is True. Returns False if it changes nothing."""
        file = self._file(receipt)
        index = attempt_of(receipt, file.attempts) if file is not None else None
        assert file is not None, "can_apply was False for this receipt"
        assert index is not None, "can_apply was False for this receipt"
        self._learn(file, receipt, index)
        decision = decide_receipt(
            receipt_context(file.row, file.attempts, file.ranks, index, self._now), receipt
        )
        if decision is None:
            return False
        if decision.rank != file.ranks[index]:
            file.ranks[index] = self.ranked[file.seq, file.changes[index]] = decision.rank
        self._record(file.seq, apply_receipt(file.row, decision, receipt, self._now))
        self.changed[file.seq] = file.row
        if receipt.event in _FAILURES:
            self._failures.append(self._failure(file, receipt, decision, file.attempts[index].started_at))
        self.puts += receipt_effects(file.row, file.recipient, receipt)
        return True

    def seqs_with_learned_ids(self) -> list[int]:
        """Returns the seqs of the notifications with an entry in `learned`."""
        return list(dict.fromkeys(seq for seq, _ in self.learned))

    def _failure(
        self, file: NotificationFile, receipt: Receipt, decision: ReceiptDecision, started_at: int
    ) -> FailureReport:
        return FailureReport(
            id=file.row.id,
            provider=receipt.provider,
            event=receipt.event.value,
            outcome=receipt.outcome,
            error_code=receipt.error_code,
            elapsed_ms=max(0, self._now - started_at),
            status=file.row.status,
            next_provider=decision.provider if decision.reopened else "",
            delay_ms=decision.delay_ms,
        )

    def _file(self, receipt: Receipt) -> NotificationFile | None:
        if receipt.notification_id is not None:
            seq = self._named.get(receipt.notification_id)
        else:
            seq = self._owners.get((receipt.provider, receipt.provider_message_id))
        return None if seq is None else self._files.get(seq)

    def _learn(self, file: NotificationFile, receipt: Receipt, index: int) -> None:
        attempt, message_id = file.attempts[index], receipt.provider_message_id
        if attempt.provider_message_id is None and message_id:
            file.attempts[index] = replace(attempt, provider_message_id=message_id)
            self.learned[file.seq, file.changes[index]] = message_id
            self._owners.setdefault((receipt.provider, message_id), file.seq)
