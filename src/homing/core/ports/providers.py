"""The interfaces of providers: sending messages, interpreting callbacks and looking up a status."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field

from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt
from homing.core.notifications import Channel, Content, Priority, Recipient
from homing.core.ports.runtime import BlockingCalls


class Delivery(Struct, frozen=True, gc=False):
    """One message to send, as a provider receives it.

    All attempts of a notification have the same values, except for `attempt`, `timeout_ms` and, after a
    reported failure, `idempotency_key`.
    """

    notification_id: str
    tenant: str
    channel: Channel
    type: str
    priority: Priority
    recipient: Recipient
    address: str
    """The recipient's address on this channel, such as an email address or device token."""
    content: Content
    idempotency_key: str
    """Key by which a vendor can recognize a repeated message. Providers pass it on if the vendor supports
    such keys. All attempts have the same key, until a receipt reports that a message has failed: the attempts
    after that have a new one. Without such a receipt, the key is the notification's id."""
    attempt: int
    """Number of this attempt. The first attempt is 1."""
    timeout_ms: int
    """Time within which the send must end."""
    expires_at: int | None = None
    """Time after which the message is useless, in epoch milliseconds. None if the message never expires."""
    locale: str | None = None
    """Locale in which the content is written. None if the locale is not known."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The caller's own data, as given in the request."""


class Provider(Protocol):
    """Sends messages over one vendor or protocol. This is the only I/O of an attempt.

    A provider whose `send` always returns within `delivery.timeout_ms` may have an attribute `ends_in_time`
    that is True. The engine then gives it a little longer before it aborts the attempt, because only the
    provider knows whether the request was written.
    """

    async def send(self, delivery: Delivery) -> Outcome:
        """Sends one message and returns the outcome.

        A provider reports failures as outcomes. If it raises anyway, the engine records the attempt as
        ambiguous. After `delivery.timeout_ms`, the engine records the attempt as ambiguous, cancels this call
        and ignores its result. The call keeps its slot of the provider until it ends.
        """

    async def check(self) -> bool:
        """Returns True if the provider seems usable. Called regularly while its breaker is open."""

    async def close(self) -> None:
        """Releases connections. No method is called afterwards."""


@runtime_checkable
class UsesThreads(Protocol):
    """A provider that makes blocking calls. It gets a thread for each attempt that it may have in flight."""

    def use_threads(self, threads: BlockingCalls) -> None:
        """Sets where the blocking calls run. Called once, before the first send."""


OnOutcomes = Callable[[list[tuple[Any, Outcome | BaseException]]], None]
"""Function that gets `(handle, outcome)` for each of several attempts that ended together. An exception in
place of an outcome is one that `send` would have raised."""


@runtime_checkable
class SupportsBatchSend(Protocol):
    """A provider that can start many attempts with one call and reports each result through a callback."""

    @property
    def begins(self) -> bool:
        """False if the settings rule out batches, for example because requests go through a proxy."""

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        """Starts an attempt for each `(delivery, handle)` and returns without waiting.

        Calls `ended` exactly once per attempt that was not aborted, within the delivery's `timeout_ms`,
        possibly before this method returns. Never raises.
        """

    def give_up(self, marks: Collection[Any]) -> None:
        """Aborts the attempts with these handles, if they still run. Their outcomes are not reported.

        Never raises.
        """


@runtime_checkable
class SupportsCallbacks(Protocol):
    """A provider that sends callbacks and can verify and interpret them."""

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Verifies one callback and returns the receipts it contains.

        Raises `CallbackRefused` if the signature is wrong or, compared with `now_ms`, too old. An event that
        cannot be read is counted as `unreadable` and does not affect the others. A repeated event keeps its
        `event_id`. The receipt of a failure carries the class and the wait from the provider's error table in
        `outcome` and `retry_after_ms`. The engine fills in what a callback cannot contain (`routes`,
        `always_failover` and `backoff_ms`) and replaces `Receipt.provider` with the provider's id in the
        settings.
        """


@runtime_checkable
class SupportsCallbackPreparation(Protocol):
    """A provider that must fetch something, such as a certificate, before it can verify a callback."""

    async def prepare(self, callback: Callback, now_ms: int) -> None:
        """Fetches what `handle_callback` needs for this callback.

        Never raises. If the fetch fails, `handle_callback` rejects the callback.
        """


@runtime_checkable
class SupportsLookup(Protocol):
    """A provider that can look up the status of a message."""

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """Returns the vendor's current status of this attempt, or None if the vendor knows none.

        `delivery` equals the delivery that was sent. `provider_message_id` is None if the send was ambiguous.
        In that case the provider searches by the delivery's content and returns a receipt only if the match
        is certain. The receipt carries `notification_id`, `attempt` and an `event_id` that is the same for
        the same answer. If this method raises anyway, the engine treats the result as None.
        """
