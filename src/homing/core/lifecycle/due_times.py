"""Due times that a commit has written, for the timers that wake workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from homing.core.lifecycle.claims import Acceptance, Claim, Submission
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.states import WAITING
from homing.core.notifications import Priority


class DueTime(Struct, frozen=True, gc=False):
    """Time at which a waiting notification is due."""

    id: str
    due_at: int
    """Epoch milliseconds by the store's clock, as the process that wrote the row estimates it."""
    priority: Priority


def accepted_due_times(
    batch: Sequence[Submission], answers: Sequence[Acceptance], now: int
) -> Iterator[DueTime]:
    """Yields the due times of newly accepted notifications. `now` is the store's time at the commit.

    No due time is earlier than `now`. Omits notifications that existed before, and those that do not wait
    because they are already leased to the caller or were stored as dead letters.
    """
    for submission, answer in zip(batch, answers, strict=True):
        if submission.lease_to is not None or answer.conflict:
            continue
        if len(answer.ids) != len(submission.notifications):
            continue  # a repeated request that would make another number of notifications by now
        old = answer.duplicates
        for new, id_ in zip(submission.notifications, answer.ids, strict=True):
            if new.refused or (old and id_ in old):
                continue
            due_at, send_at = now + new.delay_ms, new.send_at
            yield DueTime(id_, due_at if send_at is None or send_at < due_at else send_at, new.priority)


def settled_due_times(
    batch: Iterable[tuple[Settlement, Claim]], refused: Collection[str], now: int
) -> list[DueTime]:
    """Returns the due times of notifications that wait for another attempt.

    `now` is the store's time at the commit. Omits settlements that were not applied.
    """
    return [
        DueTime(settlement.id, now + settlement.delay_ms, claim.priority)
        for settlement, claim in batch
        if settlement.status in WAITING and settlement.id not in refused
    ]
