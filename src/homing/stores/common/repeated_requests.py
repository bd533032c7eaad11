"""Recognizes submissions and notifications that are stored already, by idempotency key, id or dedup key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homing.core.errors import StoreRejected
from homing.core.lifecycle.claims import NewNotification, RequestKey, Submission
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.states import FINAL_FAILURE_RANK, RECEIPT_RANK
from homing.core.notifications import OutcomeKind

_MAY_BE_TAKEN = ", ".join(
    f"'{kind.value}'" for kind in (OutcomeKind.ACCEPTED, OutcomeKind.AMBIGUOUS, OutcomeKind.LOST)
)
"""Outcomes of attempts whose provider may have taken the message, as a list in SQL."""


def may_be_taken(attempts: str, seq: str) -> str:
    """Returns the SQL condition that a provider may have taken a message and has not reported its failure.

    `attempts` is the table of the attempts, and `seq` the column that identifies the notification.
    """
    return f"""EXISTS (
    SELECT 1 FROM {attempts} AS a WHERE a.seq = {seq} AND a.outcome IN ({_MAY_BE_TAKEN}) AND NOT EXISTS (
      SELECT 1 FROM {attempts} AS f
      WHERE f.seq = a.seq AND f.receipt_rank IN ({RECEIPT_RANK[ReceiptEvent.FAILED]}, {FINAL_FAILURE_RANK})
        AND (f.change = a.change
          OR (f.provider = a.provider AND f.provider_message_id = a.provider_message_id))))"""  # noqa: S608


def is_stored(submission: Submission, new: NewNotification, stored: Mapping[str, tuple[str, str]]) -> bool:
    """Returns True if the notification's id is stored already. `stored` maps ids to (tenant, batch id).

    Raises `StoreRejected` if the id belongs to another request.
    """
    owner = stored.get(new.id)
    if owner is not None and owner != (submission.tenant, submission.batch_id):
        raise id_of_another_request(new.id)
    return owner is not None


def id_of_another_request(id: str) -> StoreRejected:
    """Returns the error for an id that another request has used before."""
    return StoreRejected(f"The id {id} already belongs to another request; ids must be new.")


def earlier_id(
    submission: Submission,
    new: NewNotification,
    stored: Mapping[str, tuple[str, str]],
    dedups: Mapping[RequestKey, tuple[str, int]],
    now: int,
) -> str | None:
    """Returns the id under which the notification is already stored, or None if it is new.

    It is stored already if this call is a repetition, or if its dedup key was used within the dedup window.
    `stored` maps ids to (tenant, batch id), and `dedups` maps (tenant, dedup key) to (id, time).
    """
    if is_stored(submission, new, stored):
        return new.id
    if new.dedup_key is None:
        return None
    earlier = dedups.get((submission.tenant, new.dedup_key))
    if earlier is None or earlier[1] + new.dedup_window_ms <= now:
        return None
    return earlier[0]


def ids_to_look_up(batch: Sequence[Submission]) -> list[str]:
    """Returns the ids that show whether a submission without an idempotency key is a repetition.

    A caller repeats a call that was committed if the result was lost. A submission is stored completely, so
    its first id is enough, unless a dedup key may have excluded some of its notifications.
    """
    ids: list[str] = []
    for submission in batch:
        if submission.idempotency_key is None:
            wanted = submission.notifications
            if len(wanted) > 1 and not may_be_partly_stored(submission):
                wanted = wanted[:1]
            ids += [new.id for new in wanted]
    return ids


def may_be_partly_stored(submission: Submission) -> bool:
    """Returns True if a dedup key may have excluded some notifications of a submission that was stored."""
    return any(new.dedup_key is not None for new in submission.notifications)
