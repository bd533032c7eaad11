"""The vocabulary of Homing. Start here: every other module uses these types.

Times are integers, in milliseconds since the epoch by the *store's* clock. Their names end in `_at` or
`_until`. Durations are integers in milliseconds, and their names end in `_ms`. The read model (`Notification`
and the types it contains) is for people and other programs, so its times are aware `datetime`s in UTC.

Types with many instances have `gc=False`. They contain no reference cycles, so the garbage collector need not
scan them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from homing.core.failover import Route
from homing.core.times import check_duration_ms

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
    """Importance of a notification. `normal` is accepted for `medium` wherever a priority is read."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Mode(StrEnum):
    """Delivery mode, which intake derives from the request."""

    SYNCHRONOUS = "synchronous"
    PRIORITY = "priority"
    STANDARD = "standard"
    BULK = "bulk"


class Status(StrEnum):
    """Stage in the life of a notification."""

    PENDING = "pending"
    """Waiting for the first attempt, at `send_at` if one is set."""
    SENDING = "sending"
    """Leased to a worker, with an attempt in progress."""
    RETRYING = "retrying"
    """Waiting for the next attempt, at `next_retry_at`."""
    SENT = "sent"
    """Accepted by a provider."""
    DELIVERED = "delivered"
    """Reported as delivered, by a receipt or by the provider's answer."""
    FAILED = "failed"
    """Dead letter: the retries are exhausted, or the failure is one that a retry cannot fix."""
    CANCELLED = "cancelled"
    """Stopped by a command before a provider accepted it."""
    EXPIRED = "expired"
    """`expires_at` passed before a provider accepted it."""
    SKIPPED = "skipped"
    """Not sent, because the recipient is suppressed or unsubscribed or the device is inactive (see
    `reason`)."""
    IN_DOUBT = "in_doubt"
    """Possibly sent. Only a receipt, a look-up or an operator can determine whether a provider accepted
    it."""


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
    """Older than the policy's `max_age_ms` without having been accepted by a provider."""
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
    """Additional headers of an email, besides those that every email has. None for other channels."""
    unsubscribe_url: str | None = None
    """URL at which a single POST unsubscribes the recipient of an email (RFC 8058). None if there is no
    link."""


class Message(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The part of a notification that is written at acceptance and never changed."""

    recipient: Recipient
    content: Content
    template_key: str | None = None
    template_version: str | None = None
    """Version of the template that was rendered. None if the content was given in the request."""
    locale: str | None = None
    """Locale of the content. None if the content was given in the request and the locale is not known."""
    metadata: dict[str, Any] = field(default_factory=dict)


class NewNotification(Struct, frozen=True, gc=False):
    """A notification that intake has validated, rendered and routed, for the store to accept."""

    id: str
    channel: Channel
    mode: Mode
    lane: str
    type: str
    category: str
    priority: Priority
    origin: str
    provider: str
    """Provider of the first attempt, unless its breaker is open by then."""
    outlet: str
    """Unit with its own capacity: the provider, or `provider@host` if hosts have their own slots."""
    address: str
    """Recipient's address on this channel, used by filters and per-recipient limits."""
    message: Message
    max_age_ms: int
    """Maximum age from the policy at acceptance. The store uses it only to compute `deadline_at`."""
    pinned: bool = False
    """True if the request names the provider. There is no failover then."""
    send_at: int | None = None
    expires_at: int | None = None
    dedup_key: str | None = None
    dedup_window_ms: int = 0
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance. Homing continues their numbering."""
    delay_ms: int = 0
    """Wait after acceptance before the next attempt, which never starts before `send_at`. Set by intake
    together with `attempts_before`; otherwise 0."""
    max_attempts: int | None = None
    """Maximum number of attempts of this notification, including `attempts_before`. None if the policy
    decides."""
    last_error: str | None = None
    """Error text of the last earlier attempt, or of the rejection if `refused`. None without either."""
    resend_of: str | None = None
    """Id of the notification that this one repeats. None if it is not a resend."""
    refused: bool = False
    """True if the request is invalid but came through the SQL inbox, whose writers get no error message. It
    is stored as a dead letter."""


class Submission(Struct, frozen=True, gc=False):
    """One send request. Its notifications are accepted together or not at all."""

    tenant: str
    batch_id: str
    notifications: tuple[NewNotification, ...]
    idempotency_key: str | None = None
    """Key under which a repeated request returns the same ids. None if the caller gave none."""
    fingerprint: str = ""
    """Hash of the request body. The same key with a different fingerprint is a conflict."""
    lease_to: str | None = None
    """Worker to which the notifications are leased at acceptance, for a synchronous send. None otherwise."""
    lease_ms: int = 0
    """Length of that lease. 0 without `lease_to`."""


class Acceptance(Struct, frozen=True, gc=False):
    """The store's result for one submission. `ids` are in the order of its notifications."""

    batch_id: str
    ids: tuple[str, ...]
    duplicates: frozenset[str] = frozenset()
    """Ids that existed before: all of them for a repeated idempotency key, or some because of a dedup
    window."""
    conflict: bool = False
    """True if the idempotency key belongs to a different request. Nothing was stored, and `ids` is empty."""
    claims: tuple[Claim, ...] = ()
    """Leased notifications of a submission with `lease_to`. Empty otherwise."""


class Claim(Struct, frozen=True, gc=False):
    """One leased notification with everything a worker needs to attempt it.

    From `id` on, each field except `holds` equals the row's field of the same name.
    """

    message: Message
    attempt: int
    """Number of the attempt that this lease is for; the first is 1. It is already committed in the store."""
    due_at: int
    """Time at which the row was due. The claim's time minus `due_at` is the scheduling lateness."""
    id: str
    tenant: str
    batch_id: str
    channel: Channel
    mode: Mode
    lane: str
    type: str
    category: str
    priority: Priority
    origin: str
    provider: str
    outlet: str
    pinned: bool
    address: str
    token: int
    """Fencing token. A settlement is applied only if it carries the row's newest token."""
    created_at: int
    aged_from: int
    """Start of the period that `max_age_ms` limits: creation, `send_at`, an operator's retry, or the receipt
    that reopened the notification."""
    expires_at: int | None
    lease_until: int
    started_at: int
    """Store time of the claim. After an expired lease, store time of the claim that was lost."""
    worker: str
    overdue: bool = False
    """True if the row was claimed because its deadline passed. No attempt was counted, and none is made."""
    attempt_floor: int = 0
    """Number of attempts that an operator's retry allows even if the policy's maximum is lower. 0 if none."""
    bounce_floor: int = 0
    """Number of attempts that a reopening receipt allows, at most one beyond the maximum. 0 if none."""
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance. They are included in `attempt`."""
    max_attempts: int | None = None
    """Maximum number of attempts of this notification. None if the policy decides."""
    failures_here: int = 0
    """Number of consecutive failures at `provider`."""
    last_delay_ms: int = 0
    """Backoff delay drawn before this attempt. Decorrelated jitter grows from it."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Provider → time until which it must not be tried, because of `Retry-After` or a backoff."""


class ClaimBatch(Struct, frozen=True, kw_only=True):
    """Result of one claim."""

    claims: tuple[Claim, ...]
    now: int
    """The store's time."""
    next_due_at: int | None
    """Time at which the next row of the requested lanes is due. None if none waits."""


class LaneRoom(Struct, frozen=True, kw_only=True):
    """Number of attempts that a worker can start in one lane."""

    slots: int
    tenant_slots: int
    """Maximum for a single tenant, so that a burst of one tenant leaves slots for the others."""
    tenant_room: Mapping[str, int] = field(default_factory=dict)
    """Free slots of tenants that already use some in this lane. Other tenants have `tenant_slots`."""


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """What a worker can start now, over all its lanes. Only due rows are claimed."""

    worker: str
    lease_ms: int
    lanes: Mapping[str, LaneRoom]
    outlet_slots: int
    """Free slots of an outlet that is not listed in `outlet_room`."""
    outlet_room: Mapping[str, int] = field(default_factory=dict)
    """Free slots of outlets that are in use, limited or paused. 0 excludes the outlet from the claim.

    `provider@host` also uses a slot of `provider`, if that is listed.
    """


class Lease(Struct, frozen=True, gc=False):
    """Reference to a claim, for `Store.extend`."""

    id: str
    token: int
    provider: str | None = None
    """Provider that the attempt actually uses. None if it is the claim's."""
    outlet: str | None = None
    """Outlet of that provider. None if it equals the provider's id."""


class Outcome(Struct, frozen=True, omit_defaults=True, gc=False):
    """Result of one attempt, as a provider returns it."""

    kind: OutcomeKind
    provider_message_id: str | None = None
    """The vendor's id of the message. None if the vendor returned none."""
    error_code: str | None = None
    """The vendor's error code, or one of Homing's such as `timeout`. None if there is no error code."""
    error: str | None = None
    """Error text for operators. None if the message was accepted."""
    retry_after_ms: int | None = None
    """Wait that the vendor asked for before the next attempt. None if it asked for none."""
    delivered: bool = False
    """True if the message is known to have been delivered, so that no receipt will follow."""
    unlisted: bool = False
    """Set by a provider together with `bad_content` if its error table does not list the error, so that the
    kind is only a guess from the HTTP status. The engine turns it into `provider_fault` if another provider
    can still be tried."""


class AttemptRecord(Struct, frozen=True, gc=False):
    """One attempt as stored. It is written once, when the attempt is settled, and not overwritten.

    The only exception: a receipt may add the `provider_message_id` that is missing after an ambiguous send.
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
    """New state of a claimed row. The store applies it only while its token is the newest."""

    id: str
    token: int
    status: Status
    provider: str
    outlet: str
    max_age_ms: int
    reason: Reason | None = None
    attempt: AttemptRecord | None = None
    """Record of the attempt. None if the checks before the attempt ended or postponed the notification."""
    bounce_always: bool | None = None
    """Set for every attempt: True if the policy's `bounce_failover` is `always`. None keeps the row's
    value."""
    bounce_min_ms: int | None = None
    """Set with `sent` and `in_doubt`: minimum wait before a re-send at the same provider if a receipt
    reports a failure. None keeps the row's value.

    The two bounds are stored without a drawn jitter, so that the rows of one batch stay alike.
    """
    bounce_max_ms: int | None = None
    """Maximum of that wait. The actual wait is drawn between the two bounds when the receipt arrives."""
    give_back: bool = False
    """True if the row was postponed before the send. The attempt that the claim counted is uncounted."""
    delay_ms: int = 0
    """Time from the commit of the settlement until the row is due, for `retrying` and `pending`. Otherwise
    0."""
    failures_here: int = 0
    """Number of consecutive failures at `provider`, including this attempt. 0 after a failover."""
    last_delay_ms: int = 0
    """Backoff delay that was drawn. Decorrelated jitter grows from it."""
    hold_ms: int = 0
    """Set after a failover: time for which the attempt's provider must not be tried again, from its backoff
    or `Retry-After`. Otherwise 0."""
    puts: tuple[RegistryPut, ...] = ()
    """Reference data to write in the same transaction."""


class SettleResult(Struct, frozen=True):
    """Ids of the settlements of a batch, by result."""

    applied: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    """Not applied, because the row has a newer token or is not `sending`."""
    missing: tuple[str, ...] = ()
    """Not applied, because the row does not exist."""


class CommandName(StrEnum):
    """What an operator or caller can do to a notification. Each command is permitted in certain statuses."""

    CANCEL = "cancel"
    RETRY = "retry"
    """Makes a notification due now. A finished one gets one more attempt. May force a provider."""
    RESEND = "resend"
    """Creates a new notification with the same message. The original is acknowledged and linked to it."""
    ACKNOWLEDGE = "acknowledge"
    RESCHEDULE = "reschedule"
    RESOLVE = "resolve"
    """Sets an `in_doubt` notification to `sent` or `failed`."""


class Command(Struct, frozen=True, kw_only=True):
    """A command with its author and reason, both of which are stored in the history."""

    name: CommandName
    who: str
    why: str = ""
    provider: str | None = None
    """Provider to use, for `retry` and `resend`. None keeps the current one."""
    outlet: str | None = None
    """Outlet of `provider`. None if it equals the provider's id."""
    delay_ms: int = 0
    """For `reschedule`: time from now until the notification is due."""
    resolution: Status | None = None
    """For `resolve`: `sent` or `failed`. None for other commands."""
    new_ids: Mapping[str, str] = field(default_factory=dict)
    """For `resend`: original id → id of the new notification."""
    batch_id: str = ""
    """For `resend`: batch id of the new notifications."""
    max_age_ms: int = 86_400_000
    """For `resend`: maximum age of the new notifications."""


class AmendResult(Struct, frozen=True, kw_only=True):
    """Ids of the notifications of a command, by result."""

    applied: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    """Currently being attempted. A cancel takes effect when the attempt ends."""
    refused: Mapping[str, Status] = field(default_factory=dict)
    """Not changed, because the command is not permitted in their status."""
    missing: tuple[str, ...] = ()
    """Not found for this tenant."""
    resent: Mapping[str, str] = field(default_factory=dict)
    """Original id → id of the new notification."""


class ReceiptEvent(StrEnum):
    """Normalized event of a provider's callback."""

    QUEUED = "queued"
    SENT = "sent"
    DELIVERED = "delivered"
    FAILED = "failed"
    SPAM_REPORT = "spam_report"
    UNSUBSCRIBE = "unsubscribe"
    OPEN = "open"
    CLICK = "click"


class Receipt(Struct, frozen=True, kw_only=True):
    """One verified event about one message at a provider."""

    provider: str
    provider_message_id: str
    event: ReceiptEvent
    event_id: str
    """Id of the event. A repeated event has the same id and changes nothing."""
    at: int
    """Time of the event according to the provider."""
    notification_id: str | None = None
    """Notification's id, if the callback carries it. It identifies the attempt even without a message id."""
    attempt: int = 0
    """Number of the attempt that sent the message. 0 if the callback does not carry it."""
    outcome: OutcomeKind | None = None
    """For `failed`: class of the error code in the provider's error table. None if the table does not list
    the code."""
    retry_after_ms: int | None = None
    """For `failed`: time for which the provider must not be tried again, from its error table. None if there
    is none."""
    unsubscribed_from_all: bool = False
    """For `unsubscribe`: True if the recipient left every category on this channel, not only this one."""
    always_failover: bool = False
    """Set by the engine: True if `bounce_failover` of the provider's channel is `always`. Used only for a row
    without `bounce_always`, which was last settled by an older version of Homing."""
    backoff_ms: int = 0
    """Set by the engine: backoff of the provider's channel. Used only for a row without `bounce_min_ms`,
    which was last settled by an older version of Homing."""
    error_code: str | None = None
    error: str | None = None
    routes: Mapping[Channel, Route] = field(default_factory=dict)
    """Set by the engine: route for the next attempt after a failure, by channel."""

    @property
    def recipient_at_fault(self) -> bool:
        """True if the failure concerns the recipient, so that no other provider would succeed."""
        return self.outcome in _RECIPIENT_AT_FAULT

    @property
    def address_dead(self) -> bool:
        """True if the address no longer exists (hard bounce, dead token). It is deactivated or suppressed."""
        return self.outcome is OutcomeKind.DEAD_ADDRESS


_RECIPIENT_AT_FAULT = frozenset({OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS, OutcomeKind.OPTED_OUT})


class ReceiptResult(Struct, frozen=True):
    """Event ids of the receipts of a batch, by result."""

    applied: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    """Repeated, or without an effect on the notification."""
    orphaned: tuple[str, ...] = ()
    """Stored for later, because the message is not known yet. Applied when its attempt is settled."""


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
    """`command`, `receipt`, or `guard` for the checks before an attempt."""
    name: str
    """The command, the receipt's event, or what the checks decided."""
    at: datetime
    status_before: Status
    status_after: Status
    who: str
    """Author of the command, provider of the receipt, or `homing`."""
    why: str = ""
    """Reason given, or error reported. Empty if there is none."""


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
    attempt_count: int = 0
    """Number of attempts so far, including `attempts_before`."""
    attempt_floor: int = 0
    """Number of attempts that an operator's retry allows even if the policy's maximum is lower. 0 if none."""
    bounce_floor: int = 0
    """Number of attempts that a reopening receipt allows, at most one beyond the maximum. 0 if none."""
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance."""
    max_attempts: int | None = None
    """Maximum number of attempts of this notification. None if the policy decides."""
    provider: str
    """Provider of the next attempt while waiting; otherwise of the last one."""
    pinned: bool = False
    """True if the request or an operator named the provider. There is no failover then."""
    send_at: datetime | None = None
    """Earliest time of the first attempt. None if the request set none."""
    expires_at: datetime | None = None
    """Time after which no attempt is made. None if the notification does not expire."""
    next_retry_at: datetime | None = None
    """Time of the next attempt. Set only while `pending` or `retrying`."""
    last_attempt_at: datetime | None = None
    sent_at: datetime | None = None
    delivered_at: datetime | None = None
    failed_at: datetime | None = None
    reason: Reason | None = None
    last_error: str | None = None
    error_code: str | None = None
    acknowledged_at: datetime | None = None
    """Time at which an operator acknowledged the dead letter. None if it is not acknowledged."""
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None
    resend_of: str | None = None
    """Id of the notification that this one repeats. None if it is not a resend."""
    resent_as: str | None = None
    """Id of the notification that repeats this one. None if it was not resent."""
    cancel_requested: bool = False
    """True if a cancel was requested during the current attempt and takes effect when it ends."""
    template_key: str | None = None
    template_version: str | None = None
    locale: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    provider_names: tuple[str, ...] = ()
    """Providers in attempt order: index = attempt − 1. Set for a single notification, empty in lists.

    An attempt made by another system has an empty name and no message id.
    """
    provider_message_ids: tuple[str | None, ...] = ()
    """The providers' message ids, in the same order. None for an attempt without one."""
    engagement: Mapping[str, int] = field(default_factory=dict)
    """Number of `open` and `click` events, if receipts reported any."""


class History(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that happened to one notification."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]


class Filter(Struct, frozen=True, kw_only=True, rename="camel"):
    """Selects notifications. Every field that is set must match."""

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


class Page(Struct, frozen=True, kw_only=True, rename="camel"):
    """One page of notifications. `cursor` requests the next page; it is None on the last one."""

    items: tuple[Notification, ...]
    cursor: str | None = None


class Tally(Struct, frozen=True):
    """Number of notifications with this status after this many attempts."""

    status: Status
    attempts: int
    count: int
    purged: int = 0
    """Number of notifications of this status and attempts that a purge has removed. Statistics include
    them."""


class ErrorGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Dead letters with the same cause: the same reason and error code or, without a code, the same text.

    `last_error` is the text of the newest one.
    """

    reason: Reason | None
    error_code: str | None
    last_error: str | None
    count: int
    unacknowledged: int
    newest_at: datetime
    example_id: str


class RollUp(Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts of one hour. A purge does not change them."""

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


class Retention(Struct, frozen=True, kw_only=True):
    """How long finished notifications and idempotency keys are kept."""

    delivered_ms: int = 24 * 3_600_000
    sent_ms: int = 7 * 24 * 3_600_000
    others_ms: int = 30 * 24 * 3_600_000
    keys_ms: int = 7 * 24 * 3_600_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_duration_ms(getattr(self, name), f"retention.{name}")

    def age_ms(self, status: Status) -> int:
        """Returns how long a notification in this final status is kept."""
        match status:
            case Status.DELIVERED:
                return self.delivered_ms
            case Status.SENT:
                return self.sent_ms
            case _:
                return self.others_ms


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Something that happened, for sinks to publish. It is written in the transaction of the change."""

    id: str
    name: str
    """`StatusChanged`, `NotificationFailed` or `Alert`."""
    tenant: str
    at: int
    notification_id: str | None = None
    """Notification that the event is about. None for an alert."""
    payload: dict[str, Any] = field(default_factory=dict)


class Entry(Struct, frozen=True, kw_only=True):
    """One document of the reference data. `version` increases with each write; 0 if it does not exist yet."""

    tenant: str
    kind: str
    key: str
    value: dict[str, Any]
    version: int = 0
    updated_at: int = 0
    updated_by: str = ""


def lane_of(mode: Mode, channel: Channel) -> str:
    """Returns the lane of a mode and channel, such as `standard.email`."""
    return f"{mode.value}.{channel.value}"
