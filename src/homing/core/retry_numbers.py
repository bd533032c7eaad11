"""What the queue operations answer with: one notification's retries, and the numbers over all of them."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from homing.core.model import Status


class RetryInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where one notification stands in its retries."""

    notification_id: str
    current_attempts: int
    max_attempts: int
    retries_remaining: int
    has_more_retries: bool
    last_attempt_at: datetime | None
    next_retry_at: datetime | None
    is_ready_for_retry: bool
    status: Status
    error_message: str | None
    current_delay_minutes: float
    next_delay_minutes: float


class AttemptStatistics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Notifications that have had this many attempts."""

    attempts: int
    count: int
    pending_count: int
    failed_count: int


class AttemptSuccess(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many of those that ended after this many attempts were sent."""

    attempts: int
    total: int
    succeeded: int
    failed: int
    success_rate: float


class HealthMetrics(Struct, frozen=True, kw_only=True, rename="camel"):
    """The health of the retry system. Purged notifications still count in totals and rates."""

    total_retrying: int
    """Waiting for a retry, or failed for good after at least one."""
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
