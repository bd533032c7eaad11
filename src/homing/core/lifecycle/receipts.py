"""Receipts: a provider's callback, the events it reports about messages, and the times of lookups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from homing.core.bounds import NOT_A_SETTING, Count, DurationMs
from homing.core.lifecycle.outcomes import FailureReport
from homing.core.notifications import Channel, OutcomeKind
from homing.core.routing.failover import Route

_RECIPIENT_AT_FAULT = frozenset({OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS, OutcomeKind.OPTED_OUT})


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
    """One verified event that a provider reported about one message."""

    provider: str
    provider_message_id: str
    event: ReceiptEvent
    event_id: str
    """Id of the event. A repeated event has the same id and changes nothing."""
    at: int
    """Time of the event according to the provider."""
    notification_id: str | None = None
    """Id of the notification. It identifies the attempt even if the message id is unknown. None if the
    callback does not carry it."""
    attempt: int = 0
    """Number of the attempt that sent the message. 0 if the callback does not carry it."""
    outcome: OutcomeKind | None = None
    """For `failed`: class of the error code in the provider's error table. None if the table does not list
    the code."""
    retry_after_ms: int | None = None
    """For `failed`: time for which the provider must not be tried again, from its error table. None if the
    table has no such time."""
    unsubscribed_from_all: bool = False
    """For `unsubscribe`: True if the recipient unsubscribed from all categories on this channel, and not only
    from that of the message."""
    always_failover: bool = False
    """Set by the engine: True if `bounce_failover` of the provider's channel is `always`. Used only for a row
    without `bounce_always`, which was last settled by an older version of Homing."""
    backoff_ms: int = 0
    """Set by the engine: backoff of the provider's channel. Used only for a row without `bounce_min_ms`,
    which was last settled by an older version of Homing."""
    error_code: str | None = None
    error: str | None = None
    routes: Mapping[Channel, Route] = field(default_factory=dict)
    """Set by the engine: route for the next attempt after a failure, by channel. Other events need it for the
    outlet of their provider."""

    @property
    def recipient_at_fault(self) -> bool:
        """True if the recipient caused the failure, and not the provider or the content."""
        return self.outcome in _RECIPIENT_AT_FAULT

    @property
    def address_dead(self) -> bool:
        """True if the address no longer exists, for example after a hard bounce."""
        return self.outcome is OutcomeKind.DEAD_ADDRESS


class ReceiptResult(Struct, frozen=True):
    """Event ids of the receipts of a batch, by result."""

    applied: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    """Receipts that were repeated, or have no effect on the notification."""
    orphaned: tuple[str, ...] = ()
    """Receipts stored for later, because the message is not known yet or its notification is `sending`. The
    settlement of the attempt applies them."""
    failures: tuple[FailureReport, ...] = ()
    """Failures that were applied: those of this batch, and earlier ones whose attempt it has made known."""


class Callback(Struct, frozen=True, kw_only=True):
    """The raw HTTP request of a provider."""

    url: str
    """URL as the provider called it, with public scheme, host and port and unchanged path and query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by name in lower case."""
    body: bytes = b""
    method: str = "POST"

    def __repr__(self) -> str:
        """Omits URL, headers and body, because they may contain keys and recipients."""
        return f"Callback({self.method}, {len(self.body)} bytes)"


class ParsedCallback(Struct, frozen=True, kw_only=True):
    """Content of a verified callback. Irrelevant and unreadable events are only counted."""

    receipts: tuple[Receipt, ...] = ()
    ignored: int = 0
    """Number of events that Homing does not use."""
    unreadable: int = 0
    """Number of events that could not be read."""
    reply: bytes = b""
    """Body of the HTTP response. Set if a provider's handshake requires one, otherwise empty."""
    reply_type: str = "text/plain"
    """Content type of `reply`."""
    reply_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the HTTP response. Set if a handshake requires them, as that of CloudEvents does."""


class LookUpPolicy(Struct, frozen=True, kw_only=True):
    """When and how often the status of a message is looked up at its provider."""

    doubt_after_ms: DurationMs = 60_000
    """Time in doubt after which a notification is first looked up. Further lookups follow after twice that
    time, four times that time, and so on."""
    silent_after_ms: DurationMs = 30 * 60_000
    """Time without a receipt after which a sent notification is first looked up. Further lookups follow
    after twice that time, four times that time, and so on."""
    until_ms: DurationMs = 24 * 3_600_000
    """Time after which a notification is no longer looked up."""
    per_round: Count = 50
    """Maximum number of lookups per round, over all providers."""
    every_ms: Annotated[int, NOT_A_SETTING] = 60_000
    """Time between rounds."""


def lookup_delays_ms(after_ms: int, until_ms: int) -> Iterator[int]:
    """Yields the times from the change of status to each lookup. Each time is twice the one before."""
    moment = after_ms
    while 0 < moment <= until_ms:
        yield moment
        moment *= 2
