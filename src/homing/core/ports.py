"""The interfaces that plug-ins implement. A store implements all of `Backend`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field

from homing.core.breaker import Breaker
from homing.core.callbacks import Callback, Heard
from homing.core.decide import Facts
from homing.core.limits import RateLimit
from homing.core.model import (
    Acceptance,
    AmendResult,
    Channel,
    Claim,
    ClaimBatch,
    ClaimRequest,
    Command,
    Content,
    Entry,
    ErrorGroup,
    Event,
    Filter,
    History,
    Lease,
    Outcome,
    Page,
    Priority,
    Receipt,
    ReceiptResult,
    Recipient,
    Retention,
    RollUp,
    Settlement,
    SettleResult,
    Status,
    Submission,
    Tally,
)


class Clock(Protocol):
    """A source of time. `now_ms` is the wall clock; `monotonic_ms` never jumps."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...
    async def sleep_ms(self, duration_ms: int) -> None: ...


class Chance(Protocol):
    """A source of random numbers. `random.Random` is one."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


class Store(Protocol):
    """Durable storage for notifications, their history and the event outbox.

    Every call is one transaction of bounded size and can safely be repeated after an error. The store's clock
    is authoritative, so callers pass durations instead of times. A failed call raises a `StoreError`. After
    a `StoreUnavailable`, the caller repeats the call: either nothing was changed, or the repetition detects
    that the first call succeeded and has no further effect.
    """

    async def open(self) -> None:
        """Connects to the database.

        Raises `SchemaError` if this version of Homing does not support its schema.
        """

    async def close(self) -> None:
        """Releases connections and threads. No method is called afterwards."""

    async def migrate(self) -> tuple[str, ...]:
        """Applies the missing schema migrations and returns their names. Idempotent and forward only."""

    async def now_ms(self) -> int:
        """Returns the current time of the store's clock, in epoch milliseconds."""

    def subscribe(self, names: Collection[str]) -> None:
        """Writes events of these names to the outbox from now on, in the transaction of the change."""

    # Delivery -------------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores all notifications of each submission, or returns the ids stored earlier under its key.

        The pair (tenant, idempotency key) is unique, also within the batch. A repeated key returns the
        earlier ids if the fingerprint is the same, and `conflict` if it differs. A notification whose dedup
        key was used within its window is not stored, and the earlier id is returned for it. If `tx` is given,
        the rows are written in the caller's transaction. A submission with `lease_to` is leased immediately,
        as attempt 1.
        """

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        """Leases due rows to a worker.

        Each leased row gets the next attempt number, a new token and the status `sending`, which are
        committed before the call returns. No row is leased to two workers. The oldest rows of a tenant and
        outlet come first. The tenants of a lane take turns, so that none starves. The request limits the
        number of rows.
        """

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Leases rows that `claim` does not return: expired leases, and waiting rows past their deadline.

        Each row gets a new token and a new lease, but no new attempt. A row whose lease expired keeps the
        provider, worker and start time of the interrupted attempt. A row past its deadline is marked
        `overdue`. The deadline is the earlier of `expires_at` and `aged_from + max_age_ms`, with the
        `max_age_ms` of the last settlement. Synchronous notifications have no deadline.
        """

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        """Extends the leases whose token still matches and returns the ids of their notifications.

        If a lease names a provider other than the row's, the row's provider is changed first.
        """

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        """Applies each settlement whose token matches the row's current lease.

        Status, due time, attempt record, reference data and events are written in one transaction. If a
        cancel was requested meanwhile, a row that would wait or be in doubt becomes `cancelled` instead.
        Receipts that arrived before the settlement are applied in the same transaction.
        """

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        """Applies a command to the given ids, or to at most `limit` notifications that match a filter.

        A filter selects only notifications whose status permits the command. The history records who gave
        the command and why.
        """

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        """Applies receipts and returns their event ids by result.

        A receipt is matched by provider and provider message id. If the message is unknown, or its
        notification is `sending`, the receipt is stored and a later settlement applies it.
        """

    # Events --------------------------------------------------------------------------------------

    async def emit(self, events: Sequence[Event]) -> None:
        """Writes events that belong to no notification, such as alerts, to the outbox."""

    async def outbox(self, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        """Returns the oldest unpublished events, leased to `worker` so that no other relay gets them."""

    async def published(self, ids: Sequence[str]) -> None:
        """Deletes events from the outbox after every sink has published them."""

    # Reads ---------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> History | None:
        """Returns a notification with its attempts and causes, or None if the tenant has no such id."""

    async def list(self, tenant: str, filter: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Returns one page of the notifications that match the filter, newest id first."""

    async def waiting(self, tenant: str, *, limit: int = 50, ready: bool | None = None) -> Page:
        """Returns the `pending` and `retrying` notifications, soonest due first.

        If `ready` is True, only those already due are returned. If it is False, only those not yet due.
        """

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        """Returns exact counts by status and attempts. If `tenant` is None, they cover all tenants."""

    async def error_groups(self, tenant: str, *, limit: int = 50) -> tuple[ErrorGroup, ...]:
        """Groups dead letters by reason and error code, or by error text if they have no code.

        The largest group comes first, and the newest dead letter of each group serves as its example.
        """

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        """Returns the hourly sums of the last `since_ms`, oldest first.

        If `tenant` is None, they cover all tenants.
        """

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        """Returns when the longest-waiting `retrying` notification was last attempted, or None if none waits.

        If `tenant` is None, all tenants are considered.
        """

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        """Returns (tenant, id) of at most `limit` notifications whose status is due for a look-up.

        They have had the given status (`sent` or `in_doubt`) since a time in (`after`, `until`], and their
        last attempt was made at one of the given providers. The longest wait comes first.
        """

    async def tenants(self) -> tuple[str, ...]:
        """Returns all tenants that have or had notifications."""

    # Upkeep --------------------------------------------------------------------------------------

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        """Deletes at most `limit` rows of each kind that are older than their retention.

        Returns how many were deleted, by kind: `notifications`, `keys` and `receipts`. Tallies count deleted
        notifications as `purged`; hourly roll-ups are kept.
        """

    async def size(self) -> Mapping[str, int]:
        """Returns figures for operators: numbers of rows, bytes on disk and the schema version."""


class Registry(Protocol):
    """Reference data: small versioned documents, identified by (tenant, kind, key)."""

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        """Returns the entries with these keys. A key without an entry is absent from the result."""

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        """Returns at most `limit` entries with keys that start with `prefix`, after the key `after`."""

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        """Writes all entries and returns them with their new versions, or writes nothing and returns None.

        None means that the stored version of at least one entry differs from the `version` given. Version −1
        overwrites the entry unconditionally.
        """

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        """Deletes the entries with these keys and returns how many existed."""


class Taken(Struct, frozen=True):
    """Result of taking tokens from a shared bucket."""

    granted: int
    """Number of tokens taken, from 0 to the number requested."""
    wait_ms: int
    """Time until the bucket has another whole token. 0 if it already has one."""


class Want(Struct, frozen=True):
    """Number of tokens to take from a bucket with this limit. A negative number returns unused tokens."""

    limit: RateLimit
    tokens: int


class Shared(Protocol):
    """State that all workers share: breakers, rate limits and the leaders of background tasks."""

    async def breakers(self) -> dict[str, Breaker]:
        """Returns the stored breakers by provider. A provider without one has a closed breaker."""

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        """Stores a breaker with version + 1 if the stored version equals `breaker.version`.

        Returns False, without a change, if another process has stored a newer version.
        """

    async def take(self, key: str, limit: RateLimit, want: int) -> Taken:
        """Takes up to `want` tokens from the bucket `key`, which refills by the store's clock."""

    async def take_many(self, wants: Mapping[str, Want]) -> dict[str, Taken]:
        """Takes tokens from many buckets in one transaction, such as one bucket per recipient."""

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        """Elects `worker` as leader of a background task for `for_ms`, or renews its term.

        Returns False while another worker leads. This way, upkeep runs once and not once per worker.
        """


class Backend(Store, Registry, Shared, Protocol):
    """The three interfaces that every store implements."""


class Delivery(Struct, frozen=True, gc=False):
    """One message to send, as a provider receives it.

    All attempts of a notification have the same values, except for `attempt` and `timeout_ms`.
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
    """Same for all attempts of a notification. Providers pass it on if the vendor supports such keys."""
    attempt: int
    """Number of this attempt; the first is 1."""
    timeout_ms: int
    """Time within which the send must end."""
    expires_at: int | None = None
    """Time after which the message is no longer useful, in epoch milliseconds. None if it never expires."""
    locale: str | None = None
    """Locale in which the content is written. None if it is not known."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The caller's own data, as given in the request."""


class Provider(Protocol):
    """Sends messages over one vendor or protocol. This is the only I/O of an attempt."""

    async def send(self, delivery: Delivery) -> Outcome:
        """Sends one message and returns the outcome.

        A provider reports failures as outcomes. If it raises or exceeds `delivery.timeout_ms` anyway, the
        engine records the attempt as ambiguous.
        """

    async def check(self) -> bool:
        """Returns True if the provider seems usable. Called regularly while its breaker is open."""

    async def close(self) -> None:
        """Releases connections. No method is called afterwards."""


OnOutcomes = Callable[[list[tuple[Any, Outcome | Exception]]], None]
"""Receives `(handle, outcome)` for attempts that ended together. An exception is what `send` would have
raised."""


@runtime_checkable
class Begins(Protocol):
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
class Hears(Protocol):
    """A provider that sends callbacks and can verify and interpret them."""

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """Verifies one callback and returns the receipts it contains.

        Raises `CallbackRefused` if the signature is wrong or, compared with `now_ms`, too old. An event that
        cannot be read is counted as `unreadable` and does not affect the others. A repeated event keeps its
        `event_id`. The receipt of a failure carries the class and the wait from the provider's error table in
        `outcome` and `retry_after_ms`. The engine fills in what a callback cannot contain (`routes`,
        `always_failover` and `backoff_ms`) and replaces `Receipt.provider` with the provider's id in the
        settings.
        """


@runtime_checkable
class Prepares(Protocol):
    """A provider that must fetch something, such as a certificate, before it can verify a callback."""

    async def prepare(self, callback: Callback, now_ms: int) -> None:
        """Fetches what `handle_callback` needs for this callback.

        Never raises. If the fetch fails, the verification fails later.
        """


@runtime_checkable
class LooksUp(Protocol):
    """A provider that can look up the status of a message."""

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """Returns the vendor's current status of this attempt, or None if the vendor has no answer.

        `delivery` equals the delivery that was sent. `provider_message_id` is None if the send was ambiguous.
        In that case the provider searches by the delivery's content and returns a receipt only if the match
        is certain. The receipt carries `notification_id`, `attempt` and an `event_id` that is the same for
        the same answer. If this method raises anyway, the engine treats the result as None.
        """


class Directory(Protocol):
    """Looks up recipients and their preferences.

    By default the `Registry` is used; an application may replace it.
    """

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        """Returns addresses, locale and time zone by id. An unknown id is absent from the result."""

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, Facts]:
        """Returns reasons not to send, by notification id.

        Called once per claimed batch, before the attempts. A notification that is absent from the result may
        be sent.
        """


class Rendered(Struct, frozen=True, gc=False):
    """Content that a renderer has made from a template and data."""

    content: Content
    locale: str | None
    """Locale in which the content is written. None if the renderer does not distinguish locales."""
    version: str | None = None
    """Version of the template, stored with the notification. None if the renderer has no versions."""


class Renderer(Protocol):
    """Renders templates. Rendering takes place before a notification is stored."""

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """Returns the content in exactly this locale.

        If the settings declare locales, `locale` is one of them. Otherwise it is the recipient's own locale,
        or None. Raises `TemplateNotFound` if there is no such template, and `TemplateFailed` if it cannot be
        rendered with the data.
        """


class Sink(Protocol):
    """Publishes events to another system."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Publishes events in the given order. If it raises, the same events are published again later."""


class Waker(Protocol):
    """Wakes a worker early. A lost wake-up only delays work, because workers also poll."""

    def wake(self) -> None:
        """Ends the current call of `wait`, or the next one if none is running."""

    async def wait(self, timeout_ms: int) -> None:
        """Returns when woken, at the latest after `timeout_ms`."""


Before = Callable[[], Awaitable[None]]
"""Waits until all earlier batches are committed. Raises if one of them failed."""


@runtime_checkable
class Overlaps(Protocol):
    """A store that can prepare a batch while another is being committed."""

    async def accept_after(self, batch: Sequence[Submission], before: Before) -> tuple[Acceptance, ...]:
        """Works like `accept`, but commits only after `before` has returned, and not at all if it raises.

        Until then it must hold no lock that the earlier work may need.
        """


@runtime_checkable
class Listens(Protocol):
    """A store that wakes this process when another one has accepted rows. A lost wake-up only delays work."""

    @property
    def hears(self) -> bool:
        """True if the connection supports such wake-ups. False, for example, behind a connection pooler."""

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        """Calls `wake` when rows may have become due, and `wake_inbox` when an inbox entry was written.

        Runs until it is cancelled. Returns immediately if wake-ups are not supported.
        """


EventCall = Callable[[Event], Awaitable[None] | None]
"""A plain or async function that is called once per event."""
