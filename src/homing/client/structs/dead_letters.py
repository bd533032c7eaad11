"""What the service takes and answers with: dead letters.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from homing.core.model import Channel, Reason, Status


class DeadLetterQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Which dead letters: every field that is given must match."""

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
    acknowledged: bool | None = None
    """Only those, or only the others; left out, the unacknowledged come first."""
    limit: int = 50
    cursor: str | None = None


class GroupQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many groups."""

    limit: int = 50


class BulkFilter(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
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
    statuses: tuple[Status, ...] = (Status.FAILED,)
    """Dead letters, unless others are named."""
    acknowledged: bool | None = None
    """Left out: dead letters that nobody has acknowledged."""


class BulkBody(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A command on all that a filter finds."""

    command: Literal["acknowledge", "resend", "retry", "cancel"]
    filter: BulkFilter = BulkFilter()
    why: str = ""
    dry_run: bool = False
    """Only say how many it would be."""
    rate_per_second: float | None = None
    """At most so many; left out, as fast as it goes."""


class AcknowledgeBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody found out about it."""

    why: str = ""


class ResendBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why it is sent again, and by whom."""

    why: str = ""
    provider: str | None = None
    """Forces where it goes: no failover."""


class Resent(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A resend is a new notification with the same message; the original is acknowledged and linked."""

    notification_id: str
    """Of the new one."""
    resend_of: str
    status: Status
