"""What the service takes and answers with: notifications.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from homing.core.model import Attempt, Cause, Channel, Notification, Reason, Status
from homing.core.policy import Backoff, BounceFailover, Jitter, OnTimeout


class Sent(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of a request. One for several recipients or channels has several notifications."""

    notification_id: str | None = None
    """Where there is exactly one."""
    notification_ids: tuple[str, ...]
    batch_id: str
    status: str
    """`queued`, or what a synchronous send ended in: `sent`, `delivered`; `purged` where it is long ago."""
    queue_name: str | None = None
    duplicate: bool = False
    """Accepted before: by its idempotency key, or all of it inside a dedup window."""
    provider_message_id: str | None = None
    delivered_at: datetime | None = None


class NotificationQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Which notifications: every field that is given must match."""

    channel: Channel | None = None
    type: str | None = None
    provider: str | None = None
    batch_id: str | None = None
    address: str | None = None
    reason: Reason | None = None
    error_code: str | None = None
    created_from: datetime | None = None
    """Accepted then or later."""
    created_until: datetime | None = None
    """Accepted before then."""
    statuses: tuple[Status, ...] = ()
    acknowledged: bool | None = None
    limit: int = 50
    cursor: str | None = None


class Attempts(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Everything that happened to one notification."""

    notification_id: str
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]
    """What changed it besides attempts: commands, receipts, the guard."""


class PolicyView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """All fields of a retry policy. Durations are in milliseconds."""

    max_attempts: int
    """All attempts at all providers, the first included."""
    backoff: Backoff
    base_ms: int
    factor: float
    steps_ms: tuple[int, ...]
    """For `fixed`: the delay after each attempt; the last one repeats."""
    cap_ms: int
    """0: none."""
    jitter: Jitter
    jitter_ratio: float
    jitter_ms: int
    failover_after: int
    timeout_ms: int
    on_timeout: OnTimeout
    max_age_ms: int
    bounce_failover: BounceFailover
    call: str | UnsetType = UNSET
    """For `callable`: the name of the function."""


class ExplanationView(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What happened to a notification, by which policy, and what comes next."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]
    """What changed it besides attempts: commands, receipts, the guard."""
    policy: PolicyView
    rule: str | None
    """The rule that won, if one of the user's own matched."""
    preset_rule: str
    sources: dict[str, str]
    """Field of the policy → where it came from."""
    passed_over: tuple[str, ...]
    """Rules that matched too but were less specific."""
    verdict: str
    next_step: str


class RetryInfoQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Other settings to compute with; they change nothing."""

    max_attempts: int | None = None
    delay_ms: int | None = None
    """The base delay, doubling with each attempt."""


class CancelBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why it is called off."""

    why: str = ""


class Cancelled(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of a cancel."""

    notification_id: str
    cancelled: bool
    requested: bool
    """An attempt is under way; there will be no further one."""


class RescheduleBody(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """When to try next."""

    delay_ms: int
    """From now."""
    why: str = ""


class ResolveBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one in doubt."""

    status: Literal["sent", "failed"]
    why: str = ""
