"""Requests and answers about single notifications, and the results of a batch."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.core.notifications import Attempt, Cause, Status
from homing.wire.common import Cursor, DelayMs, FilterFields, Limit, Why


class SendResponse(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Result of a send request, which produces one notification per recipient and channel."""

    notification_id: str | None = None
    """Id of the notification. Set if the request produced exactly one."""
    notification_ids: tuple[str, ...]
    """Ids of all notifications that the request produced."""
    batch_id: str
    """Id shared by all notifications of the request."""
    status: Annotated[str, Meta(examples=["queued", "delivered"])]
    """`queued`, or the result of a synchronous send (`sent` or `delivered`).

    `purged` if the request is a duplicate and the original notification has since been deleted.
    """
    queue_name: Annotated[str | None, Meta(examples=["homing-standard"])] = None
    """Queue that the notifications are in. Omitted after a synchronous send."""
    duplicate: bool = False
    """True if nothing new was accepted, because of the idempotency key or the deduplication window."""
    provider_message_id: str | None = None
    """Message id assigned by the provider. Set after a synchronous send."""
    provider: Annotated[str | None, Meta(examples=["fcm"])] = None
    """Id of the provider that accepted the message. Set after a synchronous send."""
    sent_at: datetime | None = None
    """Time at which the provider accepted the message. Set after a synchronous send."""
    delivered_at: datetime | None = None
    """Time of delivery. Set after a synchronous send that was delivered."""


class NotificationQuery(
    FilterFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Selects notifications and a page of them. All given fields must match."""

    status: tuple[Status, ...] = ()
    """Statuses to select; may be repeated. If omitted, all statuses."""
    statuses: tuple[Status, ...] = ()
    """Another name for `status`."""
    acknowledged: bool | None = None
    """If true, selects only acknowledged notifications. If false, only those that are not acknowledged."""
    q: Annotated[str, Meta(max_length=1000, pattern="^[^\\x00]*$", examples=["ada@example.org"])] = ""
    """Text to search for: an id or its beginning, an address, the id of a recipient, a batch or a provider's
    message, or `key=value` in the metadata. If omitted, the other fields select alone."""
    limit: Limit = 50
    cursor: Cursor | None = None


class RetryInfoQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Hypothetical retry settings to compute with. Nothing is changed."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Maximum number of attempts. If omitted, that of the notification's policy is used."""
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the delays of the notification's policy are used.
    """


class AttemptHistory(Struct, frozen=True, kw_only=True, rename="camel"):
    """History of one notification."""

    notification_id: str
    """Id of the notification."""
    attempts: tuple[Attempt, ...]
    """All attempts, oldest first."""
    causes: tuple[Cause, ...]
    """Changes other than attempts: commands, receipts and pre-send checks."""


class CancelBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Optional reason for a cancellation."""

    why: Why = ""
    """Reason that is stored with the notification."""


class CancelResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of a cancellation."""

    notification_id: str
    """Id of the notification."""
    cancelled: bool
    """True if the notification is cancelled."""
    requested: bool
    """True if an attempt is in progress. It may still succeed, but no further attempt will follow."""


class RescheduleBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """New time of the next attempt."""

    delay_ms: DelayMs
    """Time from now until the next attempt, in milliseconds."""
    why: Why = ""
    """Reason that is stored with the notification."""


class ResolveBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Final status of a notification whose outcome was unknown."""

    status: Literal["sent", "failed"]
    """Status that the notification gets."""
    why: Why = ""
    """Reason that is stored with the notification."""


class BatchItem(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Result of one request of a batch: queued, with its ids, or rejected, with an error."""

    index: int
    """Zero-based position of the request in the batch."""
    status: Literal["queued", "rejected"]
    """`queued` if the request is stored and its notifications will be attempted, otherwise `rejected`."""
    batch_id: str | None = None
    """Id shared by all notifications of the request. Set if the request was queued."""
    notification_id: str | None = None
    """Id of the notification. Set if the request produced exactly one."""
    notification_ids: tuple[str, ...] = ()
    """Ids of all notifications that the request produced."""
    queue_name: str | None = None
    """Queue that the notifications are in. Set if the request was queued."""
    duplicate: bool = False
    """True if the request was already accepted before, so that nothing new was queued."""
    field: str | None = None
    """Rejected field of the request. Set if the request was rejected because of one field."""
    code: str | None = None
    """Error code. Set if the request was rejected."""
    message: str | None = None
    """Error message. Set if the request was rejected."""


class BatchResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """Results of a batch."""

    accepted: int
    """Number of requests that were queued."""
    rejected: int
    """Number of requests that were rejected."""
    results: tuple[BatchItem, ...]
    """Result of each request, in the order of the batch."""
