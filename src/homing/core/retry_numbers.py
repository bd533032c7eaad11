"""Results of the queue operations: the retries of one notification, and statistics over all."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from homing.core.model import Status


class RetryInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """State of one notification's retries."""

    notification_id: str
    current_attempts: int
    max_attempts: int
    retries_remaining: int
    has_more_retries: bool
    last_attempt_at: datetime | None
    """End of the last attempt. None before the first."""
    next_retry_at: datetime | None
    """Time of the next attempt. None if the notification does not wait for one."""
    is_ready_for_retry: bool
    """True if the notification waits and is due."""
    status: Status
    error_message: str | None
    """Error text of the last attempt. None if there is none."""
    current_delay_minutes: float
    """Delay after the last attempt, before jitter."""
    next_delay_minutes: float
    """Delay after the next attempt if it fails, before jitter."""


class AttemptStatistics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of notifications after this many attempts."""

    attempts: int
    count: int
    pending_count: int
    failed_count: int


class AttemptSuccess(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many of the notifications that ended after this many attempts were sent."""

    attempts: int
    total: int
    succeeded: int
    failed: int
    success_rate: float


class HealthMetrics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Health of the retry system. Purged notifications are still included in totals and rates."""

    total_retrying: int
    """Number of notifications that wait for a retry, or failed for good after at least one."""
    avg_attempts: float
    max_attempts: int
    oldest_retry: datetime | None
    pending_retry_count: int
    permanently_failed_count: int
    total_notifications: int
    sent_count: int
    failed_count: int
    recovered_by_retry_count: int
    success_rate: float
    failure_rate: float
    retry_recovery_rate: float
