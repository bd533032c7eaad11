"""Computes the status that receipts lead to, in a separate store."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from homing.core.lifecycle.claims import NewNotification, Submission
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.receipts import Receipt
from homing.core.notifications import (
    Channel,
    Content,
    Message,
    Mode,
    OutcomeKind,
    Priority,
    Recipient,
    Status,
    lane_of,
)
from homing.stores.sqlite import SqliteStore

_T = TypeVar("_T")

_LANE = lane_of(Mode.STANDARD, Channel.EMAIL)

_NOW_MS = 1_000


class ReceiptTrial:
    """Tries out receipts on notifications of its own, which are settled as sent."""

    def __init__(self) -> None:
        self._store = SqliteStore(":memory:", clock=lambda: _NOW_MS)
        self._number = 0

    def expected_status(self, receipts: Sequence[Receipt]) -> tuple[Status, str | None]:
        """Returns the status and reason after these receipts about one message, applied in this order."""
        self._number += 1
        id, provider = f"n{self._number}", receipts[0].provider
        self._send(id, provider)
        for receipt in receipts:
            about_id = replace(
                receipt,
                event_id=f"{id}/{receipt.event_id}",
                provider_message_id=id,
                notification_id=None,
                attempt=0,
            )
            run_without_waiting(self._store.receipt([about_id]))
        history = run_without_waiting(self._store.get("t", id))
        assert history is not None, "the notification was accepted"
        return history.notification.status, history.notification.reason

    def _send(self, id: str, provider: str) -> None:
        """Stores a notification that the provider has accepted, with the notification's id as message id."""
        new = NewNotification(
            id=id,
            channel=Channel.EMAIL,
            mode=Mode.STANDARD,
            lane=_LANE,
            type="order",
            category="order",
            priority=Priority.MEDIUM,
            origin="",
            provider=provider,
            outlet=provider,
            address="somebody",
            message=Message(Recipient(), Content()),
            max_age_ms=1_000_000,
        )
        submission = Submission(tenant="t", batch_id=id, notifications=(new,), lease_to="w", lease_ms=1_000)
        ((claim,),) = (answer.claims for answer in run_without_waiting(self._store.accept([submission])))
        record = AttemptRecord(
            number=1,
            provider=provider,
            outcome=OutcomeKind.ACCEPTED,
            started_at=_NOW_MS,
            latency_ms=0,
            worker="w",
            provider_message_id=id,
        )
        settlement = Settlement(
            id=id,
            token=claim.token,
            worker=claim.worker,
            started_at=claim.started_at,
            status=Status.SENT,
            attempt=record,
            provider=provider,
            outlet=provider,
            max_age_ms=1_000_000,
        )
        run_without_waiting(self._store.settle([settlement]))


def run_without_waiting(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine that never waits, and returns its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("the coroutine waited, but a store in memory never does")
