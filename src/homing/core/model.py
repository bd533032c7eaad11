"""The vocabulary of Homing. Who has read this page can guess the rest.

Times are integers, milliseconds since the epoch by the *store's* clock, and end in `_at` or `_until`.
Durations are integers in milliseconds and end in `_ms`. The read model (`Notification` and what hangs on
it) is for people and other programs, so there times are aware `datetime`s in UTC.

What there are many of at once has `gc=False`: nothing in it leads back to it, so the garbage collector need
not look at thousands of them again and again.
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
    """How a message travels."""

    SMS = "sms"
    EMAIL = "email"
    PUSH = "push"
    WEBHOOK = "webhook"
    CHAT = "chat"
    QUEUE = "queue"


class Priority(StrEnum):
    """How much it matters. `normal` is accepted for `medium` wherever a priority is read."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Mode(StrEnum):
    """How a notification is delivered; derived at intake, see `core.modes`."""

    SYNCHRONOUS = "synchronous"
    PRIORITY = "priority"
    STANDARD = "standard"
    BULK = "bulk"


class Status(StrEnum):
    """Where a notification is in its life. `core.states` holds the legal transitions."""

    PENDING = "pending"
    """Waits for its first attempt or its `send_at`."""
    SENDING = "sending"
    """Leased to a worker: an attempt is under way."""
    RETRYING = "retrying"
    """Waits for its next attempt (`next_retry_at`)."""
    SENT = "sent"
    """A provider took it."""
    DELIVERED = "delivered"
    """A receipt says it arrived."""
    FAILED = "failed"
    """Dead letter: retries spent, or a failure that no retry mends."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its `expires_at` passed before a provider took it."""
    SKIPPED = "skipped"
    """Must not be sent: suppressed, unsubscribed or the device is inactive; `reason` says which."""
    IN_DOUBT = "in_doubt"
    """May or may not have been taken; only a receipt, a look-up or an operator resolves it."""


class OutcomeKind(StrEnum):
    """What became of one attempt. Every provider answer is exactly one of these."""

    ACCEPTED = "accepted"
    TRANSIENT = "transient"
    THROTTLED = "throttled"
    BAD_CONTENT = "bad_content"
    BAD_RECIPIENT = "bad_recipient"
    DEAD_ADDRESS = "dead_address"
    OPTED_OUT = "opted_out"
    PROVIDER_FAULT = "provider_fault"
    AMBIGUOUS = "ambiguous"
    LOST = "lost"


class Reason(StrEnum):
    """Why a notification ended, or waits, where the status alone does not say it."""

    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    BAD_CONTENT = "BAD_CONTENT"
    BAD_RECIPIENT = "BAD_RECIPIENT"
    DEAD_ADDRESS = "DEAD_ADDRESS"
    OPTED_OUT = "OPTED_OUT"
    PROVIDER_UNAVAILABLE = "PROVIDER_UNAVAILABLE"
    """Older than the policy's `max_age_ms` without a provider having taken it."""
    DELIVERY_TIMEOUT = "DELIVERY_TIMEOUT"
    """A synchronous send ran out of its two seconds."""
    DELIVERY_FAILED = "DELIVERY_FAILED"
    """A synchronous send failed."""
    RECEIPT_FAILED = "RECEIPT_FAILED"
    """The provider took it and later reported that it did not arrive."""
    SPAM_REPORT = "SPAM_REPORT"
    OPERATOR = "OPERATOR"
    EXPIRED = "EXPIRED"
    SUPPRESSED = "SUPPRESSED"
    UNSUBSCRIBED = "UNSUBSCRIBED"
    DEVICE_INACTIVE = "DEVICE_INACTIVE"
    UNCONFIRMED = "UNCONFIRMED"
    """In doubt: the answer never came and the policy says `hold`."""
    RATE_LIMIT = "RATE_LIMIT"
    QUIET_HOURS = "QUIET_HOURS"
    NO_PROVIDER = "NO_PROVIDER"
    """Waits because every provider it could use is paused."""


class Recipient(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Whom to tell: at least one address, or an id that the recipient directory knows."""

    id: str | None = None
    email: str | None = None
    phone: str | None = None
    device_token: str | None = None
    url: str | None = None
    locale: str | None = None
    time_zone: str | None = None


class Attachment(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A file that goes with an email; `content` is base64."""

    filename: str
    content: str
    content_type: str = "application/octet-stream"


class Content(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """What to say, as rendered. It never changes between attempts."""

    subject: str | None = None
    title: str | None = None
    body: str | None = None
    text: str | None = None
    html: str | None = None
    data: dict[str, Any] | None = None
    attachments: tuple[Attachment, ...] = ()
    headers: dict[str, str] | None = None
    """Of an email, besides those that every mail has."""
    unsubscribe_url: str | None = None
    """Of an email: where one POST unsubscribes (RFC 8058)."""


class Message(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The part of a notification that is written once and only read afterwards."""

    recipient: Recipient
    content: Content
    template_key: str | None = None
    template_version: str | None = None
    """Of the files that it was rendered from."""
    locale: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class NewNotification(Struct, frozen=True, gc=False):
    """One notification as intake hands it to the store: validated, rendered, routed."""

    id: str
    channel: Channel
    mode: Mode
    lane: str
    type: str
    category: str
    priority: Priority
    origin: str
    provider: str
    """The provider its next attempt goes to, unless a breaker moves it on."""
    outlet: str
    """What has capacity of its own: the provider, or `provider@host` where hosts have slots."""
    address: str
    """The address it goes to on its channel: for filters and per-recipient limits."""
    message: Message
    max_age_ms: int
    """By the policy at acceptance; only tells the store when to look again (see `deadline_at`)."""
    pinned: bool = False
    """The caller forced the provider: no failover."""
    send_at: int | None = None
    expires_at: int | None = None
    dedup_key: str | None = None
    dedup_window_ms: int = 0
    attempts_before: int = 0
    """Attempts that were made elsewhere before it came here: its own are counted on from them."""
    delay_ms: int = 0
    """With `attempts_before`: its next attempt is due this long after acceptance, not before `send_at`."""
    max_attempts: int | None = None
    """Its own maximum, those made elsewhere included; it wins over the policy's."""
    last_error: str | None = None
    """What the last of the `attempts_before` said, or why it is `refused`."""
    resend_of: str | None = None
    refused: bool = False
    """It was written where nobody could be told that it is wrong: it is stored as a dead letter."""


class Submission(Struct, frozen=True, gc=False):
    """One request: its notifications are accepted together or not at all."""

    tenant: str
    batch_id: str
    notifications: tuple[NewNotification, ...]
    idempotency_key: str | None = None
    fingerprint: str = ""
    """Of the request's body: the same key with another fingerprint is a conflict."""
    lease_to: str | None = None
    """A worker's name: accepted already leased to it (synchronous send)."""
    lease_ms: int = 0


class Acceptance(Struct, frozen=True, gc=False):
    """The store's answer to one submission, in the order of its notifications."""

    batch_id: str
    ids: tuple[str, ...]
    duplicates: frozenset[str] = frozenset()
    """Ids that were there before: by idempotency key (all of them) or by dedup window."""
    conflict: bool = False
    """The idempotency key was used with another body; nothing was stored, `ids` are empty."""
    claims: tuple[Claim, ...] = ()
    """For a submission with `lease_to`."""


class Claim(Struct, frozen=True, gc=False):
    """One leased notification with all a worker needs to attempt it.

    From `id` on, everything but `holds` is the row's field of the same name (`core.rows.claim_of`).
    """

    message: Message
    attempt: int
    """The attempt that this lease is for; 1 is the first. Already counted and committed."""
    due_at: int
    """When it was due: the claim's time minus this is the schedule lateness."""
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
    """Fencing token: a settlement counts only while it is the newest."""
    created_at: int
    aged_from: int
    """`max_age_ms` counts from here: creation, `send_at`, an operator's retry, or a reopening receipt."""
    expires_at: int | None
    lease_until: int
    started_at: int
    """Store time of the claim; for an expired lease, of the claim that was lost."""
    worker: str
    overdue: bool = False
    """Claimed because its deadline passed, not to be attempted: no attempt was counted."""
    attempt_floor: int = 0
    """Attempts allowed at least up to this number, whatever the policy's maximum: an operator's retry."""
    bounce_floor: int = 0
    """The same, by a receipt that reopened it; never more than one attempt beyond the maximum."""
    attempts_before: int = 0
    """How many of its attempts were made elsewhere, before it came here."""
    max_attempts: int | None = None
    """Its own maximum, where it has one: it wins over the policy's."""
    failures_here: int = 0
    """Failures in a row at `provider`."""
    last_delay_ms: int = 0
    """The delay before this attempt: decorrelated jitter grows from it."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Providers that asked to be left alone, and until when (`Retry-After`)."""


class ClaimBatch(Struct, frozen=True, kw_only=True):
    """What a claim took, the store's time, and when the next row of those lanes is due."""

    claims: tuple[Claim, ...]
    now: int
    next_due_at: int | None


class LaneRoom(Struct, frozen=True, kw_only=True):
    """How much a worker can start in one lane."""

    slots: int
    tenant_slots: int
    """The most that one tenant may take of them, so that a flood leaves room for others."""
    tenant_room: Mapping[str, int] = field(default_factory=dict)
    """Room left for tenants that already hold slots here; others have `tenant_slots`."""


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """One claim serves all lanes. Only due rows, only what can be started now."""

    worker: str
    lease_ms: int
    lanes: Mapping[str, LaneRoom]
    outlet_slots: int
    """Room at an outlet that is not named in `outlet_room`."""
    outlet_room: Mapping[str, int] = field(default_factory=dict)
    """Room at outlets that are in use, limited or paused (0: left out altogether).

    `provider@host` counts against the room of `provider` too, where that is named.
    """


class Lease(Struct, frozen=True, gc=False):
    """A handle on a claim, for `extend`. A provider that differs from the claim's is recorded first."""

    id: str
    token: int
    provider: str | None = None
    outlet: str | None = None


class Outcome(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a provider made of one attempt."""

    kind: OutcomeKind
    provider_message_id: str | None = None
    error_code: str | None = None
    error: str | None = None
    retry_after_ms: int | None = None
    delivered: bool = False
    """Taken and known to have arrived (no receipt will follow)."""
    unlisted: bool = False
    """Set by a provider together with `bad_content` if its error table does not list the error, so that the
    kind is a guess by the status alone. `core.decide.attributed` turns it into `provider_fault` if another
    provider can still be tried."""


class AttemptRecord(Struct, frozen=True, gc=False):
    """One try, as it is kept. Written once, at its settlement; nothing about it is ever overwritten.

    A receipt may fill in the `provider_message_id` that an ambiguous send never came back with.
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
    """A reference-data write that belongs to a settlement or receipt (`core.effects` makes them).

    Its fields are written over those of what is there: the rest of a device stays.
    """

    tenant: str
    kind: str
    key: str
    value: dict[str, Any]


class Settlement(Struct, frozen=True, gc=False):
    """What is to become of a claim. Made by `core.decide` alone; applied only while the token matches."""

    id: str
    token: int
    status: Status
    provider: str
    outlet: str
    max_age_ms: int
    reason: Reason | None = None
    attempt: AttemptRecord | None = None
    """None: no attempt took place (ended or postponed by the guard)."""
    bounce_always: bool | None = None
    """Set for every attempt: the policy's `bounce_failover` is `always`. None leaves the row's value."""
    bounce_min_ms: int | None = None
    """Set with `sent` and `in_doubt`: the shortest wait before a re-send at the same provider, if a receipt
    reports a failure. None leaves the row's value.

    The two bounds are stored without a drawn jitter, so that the rows of one batch stay alike.
    """
    bounce_max_ms: int | None = None
    """The longest such wait. `core.receipts` draws the wait between the two bounds."""
    give_back: bool = False
    """Postponed before the send: the attempt that the claim counted is returned."""
    delay_ms: int = 0
    """For `retrying` and `pending`: due this long after the settlement commits."""
    failures_here: int = 0
    last_delay_ms: int = 0
    hold_ms: int = 0
    """Failed over: the attempt's provider is not to be tried again for this long (backoff, Retry-After)."""
    puts: tuple[RegistryPut, ...] = ()


class SettleResult(Struct, frozen=True):
    """Ids by fate. Only `applied` changed anything."""

    applied: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class CommandName(StrEnum):
    """What an operator (or the caller) can do to a notification; `core.states` says from which status."""

    CANCEL = "cancel"
    RETRY = "retry"
    """Due now; a finished one gets one more attempt. May force a provider."""
    RESEND = "resend"
    """A new notification with the same message; the original is acknowledged and linked."""
    ACKNOWLEDGE = "acknowledge"
    RESCHEDULE = "reschedule"
    RESOLVE = "resolve"
    """Says what became of one in doubt: `sent` or `failed`."""


class Command(Struct, frozen=True, kw_only=True):
    """A command with who gave it and why; both are kept."""

    name: CommandName
    who: str
    why: str = ""
    provider: str | None = None
    outlet: str | None = None
    delay_ms: int = 0
    """For `reschedule`: due this long from now."""
    resolution: Status | None = None
    new_ids: Mapping[str, str] = field(default_factory=dict)
    """For `resend`: original id → id of the new notification."""
    batch_id: str = ""
    max_age_ms: int = 86_400_000


class AmendResult(Struct, frozen=True, kw_only=True):
    """Ids by what became of the command."""

    applied: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    """Under way right now: takes effect when the attempt ends (cancel)."""
    refused: Mapping[str, Status] = field(default_factory=dict)
    """Not possible in the status they are in."""
    missing: tuple[str, ...] = ()
    resent: Mapping[str, str] = field(default_factory=dict)
    """Original id → new id."""


class ReceiptEvent(StrEnum):
    """What a provider's callback says, normalised."""

    QUEUED = "queued"
    SENT = "sent"
    DELIVERED = "delivered"
    FAILED = "failed"
    SPAM_REPORT = "spam_report"
    UNSUBSCRIBE = "unsubscribe"
    OPEN = "open"
    CLICK = "click"


class Receipt(Struct, frozen=True, kw_only=True):
    """One verified event about one provider message."""

    provider: str
    provider_message_id: str
    event: ReceiptEvent
    event_id: str
    """The same event has the same id: a repeat changes nothing."""
    at: int
    notification_id: str | None = None
    """Ours, where the callback carries it back: then it finds its attempt also without a message id."""
    attempt: int = 0
    """With `notification_id`: which attempt the message was of; 0 where the callback does not say."""
    outcome: OutcomeKind | None = None
    """For `failed`: the class of the error code in the provider's error table. None if the table does not
    list the code."""
    retry_after_ms: int | None = None
    """For `failed`: the provider is not to be tried again for this long, by its error table."""
    unsubscribed_from_all: bool = False
    """For `unsubscribe`: from everything on this channel, not only from the notification's category."""
    always_failover: bool = False
    """`bounce_failover` of the provider's channel is `always`. Used only for a row without `bounce_always`,
    which was last settled by an older version of Homing."""
    backoff_ms: int = 0
    """The backoff of the provider's channel. Used only for a row without `bounce_min_ms`, which was last
    settled by an older version of Homing."""
    error_code: str | None = None
    error: str | None = None
    routes: Mapping[Channel, Route] = field(default_factory=dict)
    """Where a failed one goes next, by the channel of its notification."""

    @property
    def recipient_at_fault(self) -> bool:
        """The failure concerns the recipient, so that no provider would do better."""
        return self.outcome in _RECIPIENT_AT_FAULT

    @property
    def address_dead(self) -> bool:
        """The address itself is gone (hard bounce, dead token): it is deactivated or suppressed."""
        return self.outcome is OutcomeKind.DEAD_ADDRESS


_RECIPIENT_AT_FAULT = frozenset({OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS, OutcomeKind.OPTED_OUT})


class ReceiptResult(Struct, frozen=True):
    """Event ids by fate."""

    applied: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()
    """No such message yet: kept, and applied when its attempt is settled."""


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One try, as people read it."""

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
    """Why a notification changed its status when no attempt did it: a command, a receipt or the guard."""

    kind: str
    """`command`, `receipt` or `guard`."""
    name: str
    at: datetime
    status_before: Status
    status_after: Status
    who: str
    why: str = ""


class Notification(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One message to one recipient over one channel, as people and other programs read it."""

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
    attempt_floor: int = 0
    """Attempts granted at least up to this number, whatever the policy's maximum."""
    bounce_floor: int = 0
    """The same, by a receipt that reopened it; never more than one attempt beyond the maximum."""
    attempts_before: int = 0
    """How many of `attempt_count` were made elsewhere, before it came here."""
    max_attempts: int | None = None
    """Its own maximum, where it has one: it wins over the policy's."""
    provider: str
    """Where the last attempt went, or where the first will go."""
    pinned: bool = False
    send_at: datetime | None = None
    expires_at: datetime | None = None
    next_retry_at: datetime | None = None
    """Set while `pending` or `retrying`: when it is due."""
    last_attempt_at: datetime | None = None
    sent_at: datetime | None = None
    delivered_at: datetime | None = None
    failed_at: datetime | None = None
    reason: Reason | None = None
    last_error: str | None = None
    error_code: str | None = None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None
    resend_of: str | None = None
    resent_as: str | None = None
    cancel_requested: bool = False
    template_key: str | None = None
    template_version: str | None = None
    locale: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    provider_names: tuple[str, ...] = ()
    """In attempt order: index = attempt − 1. Filled by `get`, empty in lists.

    An attempt that was made elsewhere has an empty name here, and no message id.
    """
    provider_message_ids: tuple[str | None, ...] = ()
    engagement: Mapping[str, int] = field(default_factory=dict)
    """`open` and `click` counts, where receipts told them."""


class History(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that happened to one notification."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]


class Filter(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which notifications; every field that is set must match."""

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
    """Newest first; `cursor` asks for what follows, None is the end."""

    items: tuple[Notification, ...]
    cursor: str | None = None


class Tally(Struct, frozen=True):
    """How many notifications have this status after this many attempts."""

    status: Status
    attempts: int
    count: int
    purged: int = 0
    """How many more of this cell a purge has removed. Statistics count them too."""


class ErrorGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Dead letters that died of the same thing: the same reason and code, or, without a code, the same text.

    `last_error` is the text of the newest.
    """

    reason: Reason | None
    error_code: str | None
    last_error: str | None
    count: int
    unacknowledged: int
    newest_at: datetime
    example_id: str


class RollUp(Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened in one hour. A purge does not touch it."""

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
    """Messages that the provider took and then reported as not arrived, through no fault of the recipient."""


class Retention(Struct, frozen=True, kw_only=True):
    """How long settled notifications and request keys are kept."""

    delivered_ms: int = 24 * 3_600_000
    sent_ms: int = 7 * 24 * 3_600_000
    others_ms: int = 30 * 24 * 3_600_000
    keys_ms: int = 7 * 24 * 3_600_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_duration_ms(getattr(self, name), f"retention.{name}")

    def age_ms(self, status: Status) -> int:
        """How long a notification is kept that has had this final status all the time."""
        match status:
            case Status.DELIVERED:
                return self.delivered_ms
            case Status.SENT:
                return self.sent_ms
            case _:
                return self.others_ms


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Something a sink may want to hear of, written in the transaction of the change itself."""

    id: str
    name: str
    """`StatusChanged`, `NotificationFailed` or `Alert`."""
    tenant: str
    at: int
    notification_id: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)


class Entry(Struct, frozen=True, kw_only=True):
    """One piece of reference data. `version` rises with each write; 0 means it is not there yet."""

    tenant: str
    kind: str
    key: str
    value: dict[str, Any]
    version: int = 0
    updated_at: int = 0
    updated_by: str = ""


def lane_of(mode: Mode, channel: Channel) -> str:
    """A lane is mode × channel: `standard.email`."""
    return f"{mode.value}.{channel.value}"
