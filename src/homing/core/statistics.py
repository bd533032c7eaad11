"""Statistics about notifications: tallies, hourly roll-ups, error groups and the health of retries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from homing.core.notifications import Channel, Mode, Reason, Status


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
    """Dead letters, or waiting retries, with the same reason and error code. Without a code, the text counts.

    `last_error` is the error text of the newest one.
    """

    reason: Reason | None
    error_code: str | None
    last_error: str | None
    count: int
    unacknowledged: int
    newest_at: datetime
    example_id: str
    last_hour: int = 0
    """Number of those that failed in the last hour."""
    hour_before: int = 0
    """Number of those that failed in the hour before."""


class ErrorGroups(Struct, frozen=True, kw_only=True, rename="camel"):
    """The newest dead letters in groups, the largest group first."""

    items: tuple[ErrorGroup, ...]
    total: int
    """Number of all dead letters, also of those that were not grouped."""
    complete: bool
    """False if only the newest ones were grouped, because there are too many."""


MOST_UNACKNOWLEDGED = 100_000
"""Maximum number of unacknowledged dead letters that are counted."""


class Unacknowledged(Struct, frozen=True, kw_only=True):
    """Dead letters that no operator has acknowledged."""

    count: int
    """Their number. 100,000 means that many or more."""
    oldest_at: datetime | None
    """Time at which the oldest of them became a dead letter. None if there is none."""


class DeliveryCounts(Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened within some time to the notifications of one tenant, channel and provider."""

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
    opened: int = 0
    """Number of opens that the provider reported. A message that is opened twice counts twice."""
    clicked: int = 0
    """Number of clicks on links that the provider reported."""


class RollUp(DeliveryCounts, frozen=True, kw_only=True, rename="camel"):
    """Counts of one hour for one tenant, channel and provider. A purge does not change them."""

    hour_at: datetime


LATENESS_BOUNDS_MS = (100, 300, 1_000, 2_000, 5_000, 15_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)
"""Upper bounds of the lateness buckets, inclusive. A last bucket holds what was later than all of them.

The latency goals of all delivery modes are among them.
"""

LATENESS_BUCKETS = len(LATENESS_BOUNDS_MS) + 1


class MinuteRollUp(DeliveryCounts, frozen=True, kw_only=True, rename="camel"):
    """Counts of some minutes for one tenant, channel and provider. They are kept for 48 hours.

    A purge does not change them.
    """

    minute_at: datetime
    """Start of the minutes that were summed up."""
    attempt_ms: int = 0
    """Sum of the durations of all attempts, in milliseconds."""
    lateness: tuple[int, ...] = (0,) * LATENESS_BUCKETS
    """Number of notifications that were sent, by how late: see `LATENESS_BOUNDS_MS`.

    The time counts as for `GoalRollUp`: from acceptance, `sendAt`, an operator's retry or a bounce until a
    provider accepts the message, without waits on purpose.
    """


class WaitingGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Notifications that wait in one lane for one provider and reason, due in the same step of time."""

    lane: str
    """Delivery mode and channel, such as `standard.sms`."""
    channel: Channel
    provider: str
    reason: Reason | None = None
    """Why they wait. None for those that wait for their first attempt, or for a plain retry."""
    due_from: datetime | None = None
    """Start of the step. None if they are due already, or if the groups are not split by time."""
    count: int
    late: int = 0
    """Number of those that should have been sent already, by the time of acceptance or `sendAt`."""
    oldest_at: datetime | None = None
    """Since when the oldest of the late ones should have been sent. None if there is none."""


class DryRun(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a bulk command would do."""

    matched: int
    """Number of notifications that the command would change."""
    complete: bool
    """False if there are more, which were not counted because that takes too long."""
    takes_ms: int | None
    """How long that takes at the given rate, in milliseconds. None if the rate is not limited."""


class WaitingGroups(Struct, frozen=True, kw_only=True, rename="camel"):
    """What waits, in groups."""

    groups: tuple[WaitingGroup, ...]
    complete: bool
    """False if more notifications wait than were counted."""


def lateness_bucket(late_ms: int) -> int:
    """Returns the number of the lateness bucket of a notification that was sent this late."""
    return bisect_left(LATENESS_BOUNDS_MS, late_ms)


def lateness_quantile(buckets: Sequence[int], quantile: float) -> int | None:
    """Estimates from the lateness buckets how late this share of notifications was at most, in milliseconds.

    Returns None if nothing was sent. Within a bucket, the values count as evenly distributed. The last bucket
    has no upper bound, so its lower bound is returned.
    """
    wanted = quantile * sum(buckets)
    if not wanted:
        return None
    below = 0
    for bucket, count in enumerate(buckets[:-1]):
        if count and below + count >= wanted:
            lower = LATENESS_BOUNDS_MS[bucket - 1] if bucket else 0
            return lower + round((LATENESS_BOUNDS_MS[bucket] - lower) * (wanted - below) / count)
        below += count
    return LATENESS_BOUNDS_MS[-1]


class GoalRollUp(Struct, frozen=True, kw_only=True, rename="camel"):
    """Punctuality of one hour for one tenant and delivery mode. A purge does not change it.

    The time of a notification counts from its acceptance, its `sendAt`, an operator's retry or a bounce until
    a provider accepts the message. Waits for quiet hours and rate limits do not count. Notifications that
    another system attempted first are left out.
    """

    hour_at: datetime
    tenant: str
    mode: Mode
    met: int = 0
    """Number of notifications that were sent within the latency goal of their mode."""
    missed: int = 0
    """Number of notifications that were sent later."""


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
    """Error text of the last failed attempt. None if none failed."""
    current_delay_minutes: float
    """Delay after the last attempt, before jitter."""
    next_delay_minutes: float
    """Delay after the next attempt if that attempt fails and no other provider is left, before jitter."""
    moves: int
    """Number of attempts that do not count: moves at once to another provider, and uncounted failures."""
    spent: tuple[str, ...]
    """Providers that are not tried again before the next round of failover, or never again."""


class AttemptStatistics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of unsuccessful notifications after this many attempts."""

    attempts: int
    count: int
    """Number of notifications that wait, are being sent, or are dead letters."""
    pending_count: int
    """Number of those that wait for their next attempt."""
    failed_count: int
    """Number of those that are dead letters."""


class AttemptSuccess(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number and percentage of notifications that were sent, of all that have made this many attempts."""

    attempts: int
    total: int
    """Number of notifications with this many attempts in any status, also of those that still wait."""
    succeeded: int
    """Number of those that are `sent` or `delivered`."""
    failed: int
    """Number of those that are dead letters."""
    success_rate: float
    """`succeeded` in percent of `total`."""


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


class ThresholdCheck(Struct, frozen=True, kw_only=True, rename="camel"):
    """One threshold, the figure that it limits, and whether it is exceeded."""

    name: str
    """Name of the alert that is raised while the threshold is exceeded."""
    metric: str
    """Name of the figure."""
    value: float
    """The figure. Ages and other durations are in milliseconds, rates and shares in percent."""
    limit: float
    """The threshold, in the unit of the value."""
    exceeded: bool
    """True if the threshold is exceeded, or not reached if `at_least` is True."""
    message: str
    """What the figure says, and the command to look closer."""
    at_least: bool = False
    """True if `limit` is the smallest value that is allowed, not the largest."""
    only_when: str = ""
    """Condition under which the threshold applies. Empty if it always applies."""


class QueueHealth(HealthMetrics, frozen=True, kw_only=True, rename="camel"):
    """The thirteen metrics about retries, and the thresholds."""

    healthy: bool
    """True if no threshold is exceeded."""
    thresholds: tuple[ThresholdCheck, ...]
    """All thresholds with their figures."""
