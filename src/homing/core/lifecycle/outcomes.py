"""The outcome of an attempt, its stored record, and the settlement that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from homing.core.notifications import OutcomeKind, Reason, Status


class Outcome(Struct, frozen=True, omit_defaults=True, gc=False):
    """Result of one attempt, as a provider returns it."""

    kind: OutcomeKind
    provider_message_id: str | None = None
    """The vendor's id of the message. None if the vendor returned none."""
    error_code: str | None = None
    """Error code of the vendor, or one of Homing such as `timeout`. None if there is no error code."""
    error: str | None = None
    """Error text for operators. None if the message was accepted."""
    retry_after_ms: int | None = None
    """Wait that the vendor asked for before the next attempt. None if the vendor asked for no wait."""
    delivered: bool = False
    """True if the message is known to have been delivered, so that no receipt will follow."""
    unlisted: bool = False
    """Set by a provider together with `bad_content` if its error table does not list the error, so that the
    kind is only a guess from the HTTP status. The engine changes the kind to `provider_fault` if another
    provider can still be tried."""
    uncounted: bool = False
    """Set by a provider if the failure says nothing about the message, for example because its broker is
    away. The attempt is stored like any other, but it does not count toward `max_attempts`, so that only
    `max_age` ends the retries."""


class AttemptRecord(Struct, frozen=True, gc=False):
    """One attempt as stored. It is written once, when the attempt is settled, and not overwritten.

    The only exception is the `provider_message_id`: a receipt may add it after an ambiguous send.
    """

    number: int
    provider: str
    outcome: OutcomeKind
    started_at: int
    latency_ms: int
    worker: str
    error_code: str | None = None
    error: str | None = None
    provider_message_id: str | None = None


class RegistryPut(Struct, frozen=True, kw_only=True):
    """A write of reference data that belongs to a settlement or receipt, such as a dead address or an
    unsubscription.

    Only the fields in `value` are overwritten; an existing entry keeps its other fields.
    """

    tenant: str
    kind: str
    key: str
    value: dict[str, Any]


class Settlement(Struct, frozen=True, gc=False):
    """New state of a claimed row. The store applies a settlement only if it belongs to the row's lease.

    The token alone does not show that, because it is given out again after the store has gone back to an
    earlier state. So worker and start time of the claim are compared too.
    """

    id: str
    token: int
    worker: str
    """Worker of the claim."""
    started_at: int
    """Start time of the claim."""
    status: Status
    provider: str
    outlet: str
    max_age_ms: int
    reason: Reason | None = None
    attempt: AttemptRecord | None = None
    """Record of the attempt. None if the checks before the attempt ended or postponed the notification."""
    bounce_always: bool | None = None
    """Set after every attempt: True if the policy's `bounce_failover` is `always`. None keeps the row's
    value."""
    bounce_min_ms: int | None = None
    """Set if a receipt may report a failure: with `sent`, `in_doubt` and `retrying`, and after an attempt
    with an unknown outcome. Minimum wait before a re-send at the same provider. None keeps the row's value.

    Both bounds are stored, instead of one randomly drawn wait, so that the rows of a batch have equal values.
    """
    bounce_max_ms: int | None = None
    """Maximum of the wait of `bounce_min_ms`. The actual wait is drawn when the receipt arrives."""
    give_back: bool = False
    """True if no attempt was made although the claim counted one. The store then subtracts it again."""
    delay_ms: int = 0
    """For `retrying` and `pending`: time from the commit of the settlement until the row is due. Otherwise
    0."""
    failures_here: int = 0
    """Number of failures at `provider` in this round of failover, including this attempt. 0 after a failover
    and at the start of a round."""
    spent: Mapping[str, int] | None = None
    """Provider → `Spent` from now on, if the attempt or a new round of failover changes it. None keeps the
    row's value."""
    moves: int = 0
    """Number of attempts that do not count: moves at once, with that of the next attempt, and attempts whose
    outcome was `uncounted`. Applied only together with `spent`."""
    free_move: bool = False
    """True if the next attempt is a move at once, which neither backoff nor the maximum number of attempts
    counts."""
    last_delay_ms: int = 0
    """Backoff delay that was drawn. Decorrelated jitter grows from it."""
    hold_ms: int = 0
    """Time for which the attempt's provider must not be tried again because of its `Retry-After`."""
    puts: tuple[RegistryPut, ...] = ()
    """Reference data to write in the same transaction."""


class FailureReport(Struct, frozen=True, kw_only=True, gc=False):
    """A provider's report that a message which it had taken failed, and what follows.

    Logs and metrics use it.
    """

    id: str
    """Id of the notification."""
    provider: str
    """Provider that reported the failure."""
    event: str
    """`failed` or `spam_report`."""
    outcome: OutcomeKind | None
    """Class of the error code. None if the provider's error table does not list the code."""
    error_code: str | None
    elapsed_ms: int
    """Time from the start of the attempt until the report was applied."""
    status: Status
    """Status of the notification after the report."""
    next_provider: str
    """Provider of the next attempt if the report has scheduled one, otherwise empty."""
    delay_ms: int
    """Wait before that attempt. 0 if the attempt is due at once, or if there is none."""


class SettleResult(Struct, frozen=True):
    """Notification ids of the settlements of a batch, by result."""

    applied: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    """Settlements that were not applied, because the row has a newer token or is not `sending`."""
    missing: tuple[str, ...] = ()
    """Settlements that were not applied, because the row does not exist."""
    failures: tuple[FailureReport, ...] = ()
    """Failures that providers had reported before the settlements. They were applied together with these."""
