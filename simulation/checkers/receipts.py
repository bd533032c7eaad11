"""Computes the status that receipts lead to, in a separate store with one settled notification."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from homing.core.lifecycle.claims import ClaimRequest, LaneCapacity, NewNotification, Submission
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
from homing.stores.memory import MemoryStore

_T = TypeVar("_T")

_LANE = lane_of(Mode.STANDARD, Channel.EMAIL)


class _StillClock:
    def now_ms(self) -> int:
        return 1_000

    def monotonic_ms(self) -> int:
        return 0

    async def sleep_ms(self, duration_ms: int) -> None:
        """Returns at once: no time passes."""


def expected_status(receipts: Sequence[Receipt]) -> tuple[Status, str | None]:
    """Returns the status and reason after these receipts about one message, applied in this order."""
    store = MemoryStore(_StillClock())
    receipts = [replace(receipt, notification_id=None, attempt=0) for receipt in receipts]
    provider, message = receipts[0].provider, receipts[0].provider_message_id
    new = NewNotification(
        id="n",
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
    run_without_waiting(store.accept([Submission(tenant="t", batch_id="b", notifications=(new,))]))
    capacity = LaneCapacity(slots=1, tenant_slots=1)
    request = ClaimRequest(worker="w", lease_ms=1_000, lanes={_LANE: capacity}, outlet_slots=1)
    (claim,) = run_without_waiting(store.claim(request)).claims
    record = AttemptRecord(
        number=1,
        provider=provider,
        outcome=OutcomeKind.ACCEPTED,
        started_at=1_000,
        latency_ms=0,
        worker="w",
        provider_message_id=message,
    )
    settlement = Settlement(
        id="n",
        token=claim.token,
        status=Status.SENT,
        attempt=record,
        provider=provider,
        outlet=provider,
        max_age_ms=1_000_000,
    )
    run_without_waiting(store.settle([settlement]))
    for receipt in receipts:
        run_without_waiting(store.receipt([receipt]))
    history = run_without_waiting(store.get("t", "n"))
    assert history is not None, "the notification was accepted"
    return history.notification.status, history.notification.reason


def run_without_waiting(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine that never waits, and returns its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("the coroutine waited, but the memory store never does")
