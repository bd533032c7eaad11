"""Notifications: channels, statuses, outcomes, content and the read model. Start here.

Nearly every other module uses these types.

Inside Homing, times are integers, in milliseconds since the epoch by the *store's* clock. Their names end in
`_at` or `_until`. Durations are integers in milliseconds, and their names end in `_ms`. The read model
(`Notification` and the types it contains) is for people and other programs, so its times are aware
`datetime`s in UTC.

Types with many instances have `gc=False`. They contain no reference cycles, so the garbage collector need not
scan them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

DEFAULT_TENANT = "default"


class Channel(StrEnum):
    """The medium over which a message is sent."""

    SMS = "sms"
    EMAIL = "email"
    PUSH = "push"
    WEBHOOK = "webhook"
    CHAT = "chat"
    QUEUE = "queue"


class Priority(StrEnum):
    """Importance of a notification. `normal` is accepted as another name for `medium`."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Mode(StrEnum):
    """Delivery mode of a notification, which Homing derives from the request."""

    SYNCHRONOUS = "synchronous"
    PRIORITY = "priority"
    STANDARD = "standard"
    BULK = "bulk"


class Status(StrEnum):
    """Stage in the life of a notification."""

    PENDING = "pending"
    """Waiting for the first attempt, until `send_at` if that is set."""
    SENDING = "sending"
    """Leased to a worker, with an attempt in progress."""
    RETRYING = "retrying"
    """Waiting for the next attempt, until `next_retry_at`."""
    SENT = "sent"
    """Accepted by a provider."""
    DELIVERED = "delivered"
    """Reported as delivered, by a receipt or by the provider's answer."""
    FAILED = "failed"
    """Dead letter: the retries are exhausted, or the failure is one that a retry cannot fix."""
    CANCELLED = "cancelled"
    """Stopped by a command before a provider accepted the message."""
    EXPIRED = "expired"
    """Expired: `expires_at` passed before a provider accepted the message."""
    SKIPPED = "skipped"
    """Not sent, because the recipient is suppressed or unsubscribed or the device is inactive (see
    `reason`)."""
    IN_DOUBT = "in_doubt"
    """Possibly sent. Only a receipt, a lookup or an operator can determine whether a provider accepted the
    message."""


class OutcomeKind(StrEnum):
    """Result of one attempt. Every answer of a provider maps to exactly one of these."""

    ACCEPTED = "accepted"
    """The provider accepted the message."""
    TRANSIENT = "transient"
    """A temporary failure: a later attempt may succeed."""
    THROTTLED = "throttled"
    """The provider's rate limit was exceeded."""
    BAD_CONTENT = "bad_content"
    """The provider rejected the content."""
    BAD_RECIPIENT = "bad_recipient"
    """The recipient cannot receive this message."""
    DEAD_ADDRESS = "dead_address"
    """The address no longer exists."""
    OPTED_OUT = "opted_out"
    """The recipient has opted out at the provider."""
    PROVIDER_FAULT = "provider_fault"
    """The provider or its account cannot send, for example because of wrong credentials."""
    AMBIGUOUS = "ambiguous"
    """No clear answer, for example a timeout: the message may have been sent."""
    LOST = "lost"
    """The lease expired before the worker recorded a result."""


class Reason(StrEnum):
    """Why a notification ended or waits, if the status alone does not explain it."""

    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    BAD_CONTENT = "BAD_CONTENT"
    BAD_RECIPIENT = "BAD_RECIPIENT"
    DEAD_ADDRESS = "DEAD_ADDRESS"
    OPTED_OUT = "OPTED_OUT"
    PROVIDER_UNAVAILABLE = "PROVIDER_UNAVAILABLE"
    """No provider accepted the message within the policy's `max_age_ms`."""
    DELIVERY_TIMEOUT = "DELIVERY_TIMEOUT"
    """A synchronous send did not end within two seconds."""
    DELIVERY_FAILED = "DELIVERY_FAILED"
    """A synchronous send failed."""
    RECEIPT_FAILED = "RECEIPT_FAILED"
    """The provider accepted the message and later reported that it was not delivered."""
    SPAM_REPORT = "SPAM_REPORT"
    OPERATOR = "OPERATOR"
    EXPIRED = "EXPIRED"
    SUPPRESSED = "SUPPRESSED"
    UNSUBSCRIBED = "UNSUBSCRIBED"
    DEVICE_INACTIVE = "DEVICE_INACTIVE"
    UNCONFIRMED = "UNCONFIRMED"
    """In doubt: the provider's answer never arrived, and the policy's `on_timeout` is `hold`."""
    RATE_LIMIT = "RATE_LIMIT"
    QUIET_HOURS = "QUIET_HOURS"
    NO_PROVIDER = "NO_PROVIDER"
    """Waiting because every provider that could be used is paused."""


class Recipient(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Receiver of a notification, given by at least one address or by an id in the recipient directory."""

    id: str | None = None
    email: str | None = None
    phone: str | None = None
    device_token: str | None = None
    url: str | None = None
    locale: str | None = None
    time_zone: str | None = None


class Attachment(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A file attached to an email. `content` is base64."""

    filename: str
    content: str
    content_type: str = "application/octet-stream"
    content_id: str | None = None
    """Id by which the HTML shows the file in place, as `<img src="cid:ID">`. None if the file is attached."""


class Content(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Rendered content of a message. It is the same for every attempt."""

    subject: str | None = None
    title: str | None = None
    body: str | None = None
    text: str | None = None
    html: str | None = None
    data: dict[str, Any] | None = None
    attachments: tuple[Attachment, ...] = ()
    headers: dict[str, str] | None = None
    """Additional headers of an email, besides those that every email has. None if there are none."""
    unsubscribe_url: str | None = None
    """URL at which a single POST unsubscribes the recipient of an email (RFC 8058). None if there is no
    link."""


class Message(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The part of a notification that is written at acceptance and never changed."""

    recipient: Recipient
    content: Content
    template_key: str | None = None
    template_version: str | None = None
    """Version of the template that was rendered. None if the request gave the content, or the renderer has no
    versions."""
    locale: str | None = None
    """Locale of the content. None if the locale is not known."""
    metadata: dict[str, Any] = field(default_factory=dict)


UNREADABLE_MESSAGE = Message(
    recipient=Recipient(),
    content=Content(text="The stored message cannot be read by this version."),
)
"""Stands for a stored message that cannot be decoded. Lists show it, and it is never sent."""


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One attempt, as the API and commands return it."""

    number: int
    provider: str
    outcome: OutcomeKind
    started_at: datetime
    ended_at: datetime
    latency_ms: int
    worker: str
    error_code: str | None = None
    error: str | None = None
    provider_message_id: str | None = None


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Why a status changed without an attempt: by a command, a receipt or the checks before an attempt."""

    kind: str
    """Kind of cause: `command`, `receipt`, or `guard` for the checks before an attempt."""
    name: str
    """Name of the command, event of the receipt, or decision of the checks."""
    at: datetime
    status_before: Status
    status_after: Status
    who: str
    """Author of the command, provider of the receipt, or `homing`."""
    why: str = ""
    """Reason given with the command, or error that was reported. Empty if there is neither."""


class Notification(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One message to one recipient over one channel, as the API and commands return it."""

    id: str
    tenant: str
    batch_id: str
    status: Status
    channel: Channel
    type: str
    category: str
    priority: Priority
    mode: Mode
    origin: str
    recipient: Recipient
    content: Content
    created_at: datetime
    updated_at: datetime
    attempt_count: int = field(default_factory=int)
    """Number of attempts so far, including `attempts_before`. In JSON even if it is 0."""
    moves: int = 0
    """Number of attempts that do not count toward the maximum: moves at once to another provider, and
    failures that say nothing about the message. A waiting notification's next attempt is included if it is a
    move at once."""
    spent: tuple[str, ...] = ()
    """Providers that are not tried again before the next round of failover, or never again."""
    attempt_floor: int = 0
    """Number of attempts that an operator's retry allows even if the maximum is lower. 0 without such a
    retry."""
    bounce_floor: int = 0
    """Number of attempts that a receipt allowed when it reopened the notification, but at most one more than
    the maximum. 0 if no receipt did."""
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance."""
    max_attempts: int | None = None
    """Maximum number of attempts of this notification. None if the policy decides."""
    provider: str
    """Provider of the next attempt while the notification waits, otherwise that of the last attempt."""
    pinned: bool = False
    """True if the request or an operator named the provider, so that there is no failover."""
    send_at: datetime | None = None
    """Earliest time of the first attempt. None if the request set none."""
    expires_at: datetime | None = None
    """Time after which no attempt starts. None if the notification does not expire."""
    next_retry_at: datetime | None = None
    """Time of the next attempt. Set only while `pending` or `retrying`."""
    last_attempt_at: datetime | None = None
    first_failed_at: datetime | None = None
    """When the first attempt failed, or a receipt first reported a failure. None if nothing has failed. If a
    command reopened the notification, its failures count from then."""
    sent_at: datetime | None = None
    delivered_at: datetime | None = None
    failed_at: datetime | None = None
    reason: Reason | None = None
    last_error: str | None = None
    """Error text of the last failed attempt or receipt, kept after a later success. None if none failed."""
    error_code: str | None = None
    """Error code that belongs to `last_error`. None if the provider gave none."""
    acknowledged_at: datetime | None = None
    """Time at which an operator acknowledged the dead letter. None if it is not acknowledged."""
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None
    resend_of: str | None = None
    """Id of the notification that this one repeats. None if it is not a resend."""
    resent_as: str | None = None
    """Id of the notification that repeats this one. None if it was not resent."""
    cancel_requested: bool = False
    """True if a cancel was requested during the latest attempt. No further attempt is made. It stays True
    while the status is `sent`, because a receipt may still report a failure."""
    template_key: str | None = None
    template_version: str | None = None
    locale: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    provider_names: tuple[str, ...] = ()
    """Provider of each attempt, in order. Set for a single notification, empty in lists.

    For an attempt made by another system, the name is empty.
    """
    provider_message_ids: tuple[str | None, ...] = ()
    """The provider's message id of each attempt, in order. None for an attempt without one. Set for a single
    notification, empty in lists."""
    engagement: Mapping[str, int] = field(default_factory=dict)
    """Number of `open` and `click` events, if receipts reported any."""


class History(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that happened to one notification."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]


class Filter(Struct, frozen=True, kw_only=True, rename="camel"):
    """Selects the notifications that match every field that is set."""

    statuses: tuple[Status, ...] = ()
    channel: Channel | None = None
    type: str | None = None
    provider: str | None = None
    batch_id: str | None = None
    address: str | None = None
    reason: Reason | None = None
    error_code: str | None = None
    acknowledged: bool | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    id_prefix: str | None = None
    """Beginning of the id, in the form in which ids are written."""
    recipient_id: str | None = None
    provider_message_id: str | None = None
    """Id that a provider gave to the message of one of the attempts."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Key → value that the notification's metadata must have on its top level. A number, true or false is
    compared with its text in JSON; an object or array never matches. Not indexed: combine it with other
    fields if there are many notifications."""


class Page(Struct, frozen=True, kw_only=True, rename="camel"):
    """One page of notifications. `cursor` requests the next page; it is None on the last one."""

    items: tuple[Notification, ...]
    cursor: str | None = None
    complete: bool = True
    """False if the search ended at its limit, so that there may be more on the next page, even if this one is
    not full or empty."""


def lane_of(mode: Mode, channel: Channel) -> str:
    """Returns the lane of a mode and channel, such as `standard.email`."""
    return f"{mode.value}.{channel.value}"


_MODES = {mode.value: mode for mode in Mode}


def mode_of(lane: str) -> Mode:
    """Returns the mode of a lane, or standard if the lane does not name one."""
    return _MODES.get(lane.partition(".")[0], Mode.STANDARD)
