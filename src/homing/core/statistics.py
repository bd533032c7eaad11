"""Statistics about notifications: tallies, hourly roll-ups, error groups and the health of retries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from homing.core.notifications import Channel, Reason, Status


class Tally(Struct, frozen=True):
    """Number of notifications with this status after this many attempts."""

    status: Status
    attempts: int
    count: int
    purged: int = 0
    """Number of purged notifications with this status and number of attempts. `count` does not include
    them."""


def count_statuses(tallies: Sequence[Tally], *statuses: Status) -> int:
    """Returns how many notifications have one of these statuses, without purged ones."""
    return sum(tally.count for tally in tallies if tally.status in statuses)


class ErrorGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Dead letters with the same cause: the same reason and error code or, without a code, the same text.

    `last_error` is the error text of the newest dead letter.
    """

    reason: Reason | None
    error_code: str | None
    last_error: str | None
    count: int
    unacknowledged: int
    newest_at: datetime
    example_id: str


class RollUp(Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts of one hour for one tenant, channel and provider. A purge does not change them."""

    hour_at: datetime
    tenant: str
    channel: Channel
    provider: str
    accepted: int = 0
    sent: int = 0
    delivered: int = 0
    failed: int = 0
    retried: int = 0
    attempts: int = 0
    bounced: int = 0
    """Number of messages that the provider accepted and later reported as not delivered, except for failures
    caused by the recipient."""


class RetryInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """State of one notification's retries."""

    notification_id: str
    current_attempts: int
    max_attempts: int
    """Maximum number of attempts. Moves at once to another provider do not count toward it."""
    retries_remaining: int
    has_more_retries: bool
    last_attempt_at: datetime | None
    """End of the last attempt. None before the first attempt."""
    next_retry_at: datetime | None
    """Time of the next attempt. None if no attempt is planned."""
    is_ready_for_retry: bool
    """True if the notification waits and is due."""
    status: Status
    error_message: str | None
    """Error text of the last attempt. None if there is no error."""
    current_delay_minutes: float
    """Delay after the last attempt, before jitter."""
    next_delay_minutes: float
    """Delay after the next attempt if that attempt fails and no other provider is left, before jitter."""
    moves: int
    """Number of attempts that are moves at once to another provider, which do not count."""
    spent: tuple[str, ...]
    """Providers that are not tried again before the next round of failover, or never again."""


class AttemptStatistics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of notifications after this many attempts."""

    attempts: int
    count: int
    pending_count: int
    failed_count: int


class AttemptSuccess(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number and percentage of notifications that were sent, of those that ended after this many attempts."""

    attempts: int
    total: int
    succeeded: int
    failed: int
    success_rate: float


class HealthMetrics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Health of the retries of a tenant. Rates are percentages.

    The total, the sent, failed and recovered counts and the rates include purged notifications. The other
    fields do not.
    """

    total_retrying: int
    """Number of notifications that wait for a retry, or became dead letters after at least one retry."""
    avg_attempts: float
    max_attempts: int
    oldest_retry: datetime | None
    """When the retry that has waited longest failed first. None if nothing waits for a retry."""
    pending_retry_count: int
    permanently_failed_count: int
    total_notifications: int
    sent_count: int
    failed_count: int
    recovered_by_retry_count: int
    success_rate: float
    failure_rate: float
    retry_recovery_rate: float
