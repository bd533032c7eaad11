"""The seams of Homing, declared by those who use them. A store implements three: Store, Registry, Shared."""

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
    """Time, handed in. `now_ms` is the wall clock; `monotonic_ms` never jumps."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...
    async def sleep_ms(self, duration_ms: int) -> None: ...


class Chance(Protocol):
    """Randomness, handed in (`random.Random` is one)."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


class Store(Protocol):
    """The only truth. Every call is one transaction, bounded, and safe to repeat after an error.

    The store owns the clock: callers pass durations. Errors are `StoreError`s; after a
    `StoreUnavailable` nothing was changed, or the same call repeated finds that it was.
    """

    async def open(self) -> None:
        """Connects; raises `SchemaError` for a schema that this code does not know."""

    async def close(self) -> None: ...

    async def migrate(self) -> tuple[str, ...]:
        """Brings the schema up to date; the names of the migrations applied. Idempotent, forward only."""

    async def now_ms(self) -> int:
        """The store's clock."""

    def subscribe(self, names: Collection[str]) -> None:
        """Events of these names are written to the outbox, each with the change that it tells of."""

    # The line -----------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores each submission whole, or answers with what was stored before under its key.

        (tenant, idempotency key) is unique, also within the batch: same fingerprint, the same ids;
        another, `conflict`. A dedup key inside its window answers with the earlier id and stores
        nothing. `tx` joins the caller's transaction. `lease_to` leases at once (attempt 1).
        """

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        """Leases due rows: attempt + 1, new token, status `sending`, committed before it returns.

        Disjoint between workers; oldest first within a tenant and outlet; fair between the tenants of
        a lane (round robin, no tenant starves); at most the room that the request gives.
        """

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Takes what no claim will: expired leases, and waiting rows whose deadline passed (`overdue`).

        New token, new lease, no new attempt. A lost lease keeps the provider, worker and start of the
        attempt that was lost. The deadline is the earlier of `expires_at` and `aged_from + max_age_ms`
        (as last settled); synchronous ones have none.
        """

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        """Prolongs leases whose token still matches, and records a changed provider; ids still held."""

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        """Applies each settlement whose token matches a live lease: state, due time, attempt row,
        reference data and events in one transaction. A requested cancel turns what would wait into
        `cancelled`. Receipts that came early are applied in the same transaction.
        """

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        """Applies a command to ids, or to at most `limit` notifications that a filter finds and that
        the command is possible for. Recorded with who and why."""

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        """Applies callbacks by (provider, provider message id) with `core.receipts.absorb`; unknown
        messages, and those whose notification is `sending`, are kept and applied by a later settle."""

    # Events --------------------------------------------------------------------------------------

    async def emit(self, events: Sequence[Event]) -> None:
        """Writes events that belong to no notification (alerts)."""

    async def outbox(self, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        """Oldest unpublished events, leased to this relay so that others leave them alone meanwhile."""

    async def published(self, ids: Sequence[str]) -> None:
        """Removes events that every sink has taken."""

    # Reads ---------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> History | None: ...

    async def list(self, tenant: str, filter: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Newest first by id."""

    async def waiting(self, tenant: str, *, limit: int = 50, ready: bool | None = None) -> Page:
        """`pending` and `retrying`, soonest due first; only the due (True), only those not (False)."""

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        """Exact counts by status and attempts, kept with every write. None: of all tenants (upkeep)."""

    async def error_groups(self, tenant: str, *, limit: int = 50) -> tuple[ErrorGroup, ...]:
        """Dead letters by reason and code (without one, by text), most first; the newest as an example."""

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        """Hourly sums of the last `since_ms`, oldest first. None: of all tenants."""

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        """When the longest-waiting `retrying` notification was last attempted."""

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        """(tenant, id) of at most `limit` notifications that have had this status since a moment in
        (`after`, `until`], and were last at one of these providers; the longest silent first.

        For look-ups: the status is `sent` or `in_doubt`, and nothing was heard since.
        """

    async def tenants(self) -> tuple[str, ...]:
        """All tenants that have or had notifications."""

    # Upkeep --------------------------------------------------------------------------------------

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        """Removes at most `limit` rows of each kind that are past their age; kind → how many.

        Kinds: `notifications`, `keys`, `receipts`. Tallies move to `purged`; roll-ups stay.
        """

    async def size(self) -> Mapping[str, int]:
        """What an operator wants to know of the store: rows, bytes, schema version."""


class Registry(Protocol):
    """Reference data: small documents by (tenant, kind, key), with versions."""

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]: ...

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        """By key, ascending."""

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        """All or nothing: None where one of them has moved on from the `version` that is given.

        Version −1 writes whatever is there.
        """

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int: ...


class Taken(Struct, frozen=True):
    """Tokens leased from a shared bucket, and how long until there is one more."""

    granted: int
    wait_ms: int


class Want(Struct, frozen=True):
    """How many tokens are wanted of a bucket with this limit; less than none gives them back."""

    limit: RateLimit
    tokens: int


class Shared(Protocol):
    """What all workers must agree on."""

    async def breakers(self) -> dict[str, Breaker]: ...

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        """Compare-and-set on `version`; the stored one has version + 1. False: somebody was faster."""

    async def take(self, key: str, limit: RateLimit, want: int) -> Taken:
        """Leases up to `want` tokens of the bucket, by the store's clock."""

    async def take_many(self, wants: Mapping[str, Want]) -> dict[str, Taken]:
        """The same of many buckets in one transaction: a limit for each recipient of a batch is one call."""

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        """True for one worker at a time: upkeep runs once, not once per worker. Renews its own lead."""


class Backend(Store, Registry, Shared, Protocol):
    """All three ports, as every store implements them."""


class Delivery(Struct, frozen=True, gc=False):
    """One attempt, as a provider sees it. All of it but `attempt` is the same for every attempt."""

    notification_id: str
    tenant: str
    channel: Channel
    type: str
    priority: Priority
    recipient: Recipient
    address: str
    content: Content
    idempotency_key: str
    attempt: int
    timeout_ms: int
    expires_at: int | None = None
    locale: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class Provider(Protocol):
    """The only I/O of an attempt. It answers with an Outcome and never raises; the engine makes sure."""

    async def send(self, delivery: Delivery) -> Outcome: ...

    async def check(self) -> bool:
        """Whether the provider looks usable; asked while its breaker is open."""

    async def close(self) -> None: ...


OnOutcomes = Callable[[list[tuple[Any, Outcome | Exception]]], None]
"""Told (mark, outcome) of attempts that ended at the same moment; an error is what `send` would raise."""


@runtime_checkable
class Begins(Protocol):
    """A provider that takes many attempts at once, with nobody waiting for each."""

    @property
    def begins(self) -> bool:
        """Whether this one does, as it is set up."""

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        """Begins what `send` would do for each, and returns; each has a mark to know it by.

        Each ends within its `timeout_ms`, and `ended` is told of it once, in here or later, unless it is
        given up. Never raises.
        """

    def give_up(self, marks: Collection[Any]) -> None:
        """Breaks off those of them that are under way; nothing is told of them. Never raises."""


@runtime_checkable
class Hears(Protocol):
    """A provider that calls back: it can tell a callback of its own and says what it means."""

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """Verifies and reads one callback; raises `CallbackRefused` where it is not the provider's.

        Pure: `now_ms` is there to refuse signatures that are too old. One event that cannot be read is
        counted as `unreadable`, and the others are heard. The same event has the same `event_id` however
        often it comes. A failure carries the class and the wait of the provider's error table in `outcome`
        and `retry_after_ms`. The engine fills in what a callback cannot know (`routes`, `always_failover` and
        `backoff_ms`), and it replaces `Receipt.provider` with the provider's id in the roster.
        """


@runtime_checkable
class Prepares(Protocol):
    """A provider that must fetch something (a certificate) before it can verify a callback."""

    async def prepare(self, callback: Callback, now_ms: int) -> None:
        """Called before `hear`, which then finds what it needs, or refuses. Never raises."""


@runtime_checkable
class LooksUp(Protocol):
    """A provider that can be asked what became of a message."""

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """What the provider says of this attempt now; None: it does not know it, or gave no answer.

        `delivery` is as it was sent; without `provider_message_id` (the send was ambiguous) the provider
        searches by what `delivery` has, and answers only where it is sure that it is this one. The receipt
        carries `notification_id` and `attempt`, and an `event_id` that is the same for the same answer.
        Like `send` it never raises; the engine makes sure.
        """


class Directory(Protocol):
    """Who may be told what, now. The store-backed default reads the Registry; a user's service may answer."""

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        """Addresses, locale and time zone of the recipients that are known by these ids."""

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, Facts]:
        """By notification id; one that is not in it has nothing against it. One call per claimed batch."""


class Rendered(Struct, frozen=True, gc=False):
    """What a template made of the data."""

    content: Content
    locale: str | None
    """The one it is written in."""
    version: str | None = None
    """Of the template, kept with the notification."""


class Renderer(Protocol):
    """Templates. Rendering happens before anything is stored."""

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """The content in this locale and no other.

        `locale` is resolved (see `core.locale`) where locales are declared, else the recipient's own. Raises
        `TemplateNotFound`, or `TemplateFailed` where it does not render with the data.
        """


class Sink(Protocol):
    """Takes events out. Raising means: not taken, try again later."""

    async def publish(self, events: Sequence[Event]) -> None: ...


class Waker(Protocol):
    """Says "look now". Losing every word of it only costs time: a worker looks by itself too."""

    def wake(self) -> None: ...

    async def wait(self, timeout_ms: int) -> None:
        """Returns when woken, or after `timeout_ms` at the latest."""


Before = Callable[[], Awaitable[None]]
"""Returns when all that came before is stored; raises where it is not."""


@runtime_checkable
class Overlaps(Protocol):
    """A backend that can work on a batch while it commits another."""

    async def accept_after(self, batch: Sequence[Submission], before: Before) -> tuple[Acceptance, ...]:
        """Like `accept`, but nothing is committed before `before` returns, and nothing at all if it raises.

        Until then it holds nothing that what comes before may have to wait for.
        """


@runtime_checkable
class Listens(Protocol):
    """A store that hears of what others have accepted. Like a `Waker`: losing it only costs time."""

    @property
    def hears(self) -> bool:
        """Whether it may listen at all: not behind a pooler, say."""

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        """Calls `wake` when there may be something to claim, and `wake_inbox` when something was written to
        the inbox; until it is cancelled, or returns at once."""


EventCall = Callable[[Event], Awaitable[None] | None]
