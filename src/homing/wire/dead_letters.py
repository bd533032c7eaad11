"""Requests and answers about dead letters, bulk commands and their jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.core.lifecycle.jobs import SLOWEST_PER_SECOND
from homing.core.notifications import Filter, Status
from homing.wire.common import Cursor, FilterFields, Limit, Text, Why


class DeadLetterQuery(
    FilterFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Selects dead letters. All given fields must match."""

    acknowledged: bool | None = None
    """If true, lists only acknowledged dead letters. If false, only unacknowledged ones. If omitted, both."""
    limit: Limit = 50
    cursor: Cursor | None = None


class GroupQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits the number of groups that are returned."""

    limit: Limit = 50


class AcknowledgeBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Optional reason for acknowledging a dead letter."""

    why: Why = ""
    """Note that is stored with the notification."""


class MoveBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Optional reason for ending a notification as a dead letter."""

    why: Why = ""
    """Reason that is stored with the notification."""


class ResendBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Optional reason for a resend, and optionally the provider to use."""

    why: Why = ""
    """Reason that is stored with the notification."""
    provider: Annotated[Text, Meta(examples=["sns"])] | None = None
    """Id of the only provider that is tried, without failover. If omitted, the provider is chosen as usual.
    """


class ResendResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """The new notification that a resend has created."""

    notification_id: str
    """Id of the new notification."""
    resend_of: str
    """Id of the original notification."""
    status: Status
    """Status of the new notification."""


class BulkFilter(
    FilterFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Selects notifications. All given fields must match."""

    statuses: Annotated[tuple[Status, ...], Meta(min_length=1, max_length=10)] = (Status.FAILED,)
    """Statuses to select. By default, only dead letters (`failed`)."""
    acknowledged: bool | None = None
    """If true, selects only acknowledged notifications. If false, only unacknowledged ones.

    If omitted, selects only unacknowledged ones if `statuses` is just `failed`, otherwise both.
    """

    def chosen(self) -> Filter:
        """Returns the engine's filter."""
        dead_only = self.statuses == (Status.FAILED,)
        acknowledged = False if dead_only and self.acknowledged is None else self.acknowledged
        return self.filter(self.statuses, acknowledged)


class BulkBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """A command for all notifications that match a filter."""

    command: Literal["acknowledge", "resend", "retry", "cancel"]
    """What to do with each notification."""
    filter: BulkFilter = BulkFilter()
    """Notifications to select. By default, all unacknowledged dead letters."""
    why: Why = ""
    """Reason that is stored with each notification."""
    dry_run: bool = False
    """If true, nothing is changed, and the response only has the number of matching notifications."""
    rate_per_second: Annotated[float, Meta(ge=SLOWEST_PER_SECOND, le=100_000)] | None = None
    """Maximum number of notifications per second. If omitted, there is no limit."""


class DryRunResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of a dry run. Nothing was changed."""

    dry_run: bool
    """Always true."""
    matched: int
    """Number of matching notifications for which the command is possible now."""
    complete: bool = True
    """False if there are more, which were not counted because that takes too long."""
    takes_ms: int | None = None
    """How long the job takes at the given rate, in milliseconds. Null if the request gives no rate."""


class JobQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits the number of jobs that are returned."""

    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number of items to return.")] = 50
