"""The interfaces of stores. Every store implements `Backend`; `Inbox` and the `Supports…` interfaces are
optional.

`Backend` consists of `Store` for notifications, `Registry` for reference data and `SharedState` for what all
workers must agree on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from homing.core.bounds import DurationMs
from homing.core.clock_steps import ClockStep
from homing.core.lifecycle.claims import (
    Acceptance,
    ClaimBatch,
    ClaimRequest,
    Lease,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.notifications import Filter, History, Page, Status
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import RateLimit
from homing.core.statistics import (
    ErrorGroup,
    GoalRollUp,
    MinuteRollUp,
    RollUp,
    Tally,
    Unacknowledged,
    WaitingGroups,
)
from homing.core.times import check_duration_ms


class Store(Protocol):
    """Durable storage for notifications, their history and the event outbox.

    Every call is one transaction of bounded size and can safely be repeated after an error. The store's clock
    is authoritative, so callers pass durations instead of times. A failed call raises a `StoreError`. After
    a `StoreUnavailable`, the caller repeats the call: either nothing was changed, or the repetition detects
    that the first call succeeded and has no further effect.
    """

    async def open(self) -> None:
        """Connects to the database.

        Raises `SchemaError` if this version of Homing does not support the database's schema.
        """

    async def close(self) -> None:
        """Releases connections and threads. No method is called afterwards."""

    async def migrate(self, *, create: bool = True) -> tuple[str, ...]:
        """Applies the missing schema migrations and returns their names. Idempotent and forward only.

        Raises `SchemaError` if there is no schema yet and `create` is False.
        """

    async def now_ms(self) -> int:
        """Returns the current time of the store's clock, in epoch milliseconds."""

    @property
    def history(self) -> str:
        """Identity of the store's history, as the latest call of this process has found it. Opaque.

        It changes when commits that this process has seen may be gone: after a failover to a standby that
        lagged behind, after a restore, or when the data shows that a commit is gone. A store that cannot know
        changes it too often rather than too rarely. By then, the store has dropped its own caches. No call
        may need this to be correct: every write is safe by its own comparisons, because the history may go
        back without any sign.
        """

    # Delivery -------------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores all notifications of each submission, or returns the ids stored earlier under its key.

        The pair (tenant, idempotency key) is unique, also within the batch. A repeated key returns the
        earlier ids if the fingerprint is the same, and `conflict` if it differs. A notification whose dedup
        key was used within its window is not stored, and the earlier id is returned for it. If `tx` is given,
        the rows are written in the caller's transaction. A submission with `lease_to` is leased immediately,
        as attempt 1.
        """

    async def known_requests(
        self, keys: Collection[RequestKey], *, tx: Any = None
    ) -> dict[RequestKey, StoredRequest]:
        """Returns what was accepted under these (tenant, idempotency key) pairs.

        An unknown key is absent from the result. If `tx` is given, the caller's transaction is read, which
        may contain requests that are not committed yet.
        """

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        """Leases due rows to a worker.

        Each leased row gets the next attempt number, a new token and the status `sending`, which are
        committed before the call returns. No row is leased to two workers. The oldest rows of a tenant and
        outlet come first. Priority rows of all lanes come before standard rows, and these before bulk rows.
        The tenants of a provider take turns, so that none starves. The request limits the number of rows, and
        may choose the rows of one tenant or single rows.
        """

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Leases rows whose lease expired, and waiting rows past their deadline. `claim` returns neither.

        Each row gets a new token and a new lease, but no new attempt. A row whose lease expired keeps the
        provider, worker and start time of the interrupted attempt. A row past its deadline is marked
        `overdue`. The deadline is the earlier of `expires_at` and `aged_from + max_age_ms`, with the
        `max_age_ms` of the last settlement. Synchronous notifications have no deadline. A lease that was
        taken in the future, before the clock was set back, also counts as expired.
        """

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        """Extends the leases whose token still matches and returns the ids of their notifications.

        If a lease names a provider, that provider and its outlet are also stored in the row. A worker
        records a failover this way before it starts the attempt.
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

        A receipt is matched by notification id and attempt if it carries them, otherwise by provider and
        provider message id (see `attempt_of`). If the message is unknown, or its notification is `sending`,
        the receipt is stored and a later settlement applies it. If a settlement commits at the same time, one
        of the two calls must find what the other has written.
        """

    # Events --------------------------------------------------------------------------------------

    # Every call that changes a notification also writes its events to the outbox, in the same transaction:
    # one row per event and sink, for the sinks that are registered when the transaction commits.

    async def register_sink(self, sink: SinkRegistration) -> None:
        """Adds a sink, or changes it if the name is registered already, and marks it as seen now.

        The sink gets the events that are committed after this call has returned. A new sink also gets the
        events that an older release wrote to the outbox while no sink was registered.
        """

    async def sink_seen(self, name: str) -> bool:
        """Marks a sink as seen now. Returns False if no such sink is registered."""

    async def remove_sink(self, name: str) -> int | None:
        """Removes a sink and its unpublished events, in transactions of bounded size.

        Returns the number of these events, or None if no such sink is registered.
        """

    async def sinks(self) -> tuple[RegisteredSink, ...]:
        """Returns all registered sinks by name, with the number of events that wait for each."""

    async def emit(self, events: Sequence[Event]) -> None:
        """Writes events that belong to no notification, such as alerts, to the outbox."""

    async def outbox(self, sink: str, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        """Returns the oldest unpublished events of a sink, in the order in which they were written.

        The worker becomes the sink's only relay for `lease_ms`, by leading the task `relay_task(sink)`. Until
        then, other workers get no events of this sink.
        """

    async def published(self, sink: str, events: Sequence[Event]) -> None:
        """Deletes events from a sink's outbox after the sink has published them.

        An event is known by its id and its time together: once the store has gone back to an earlier state,
        another change of the notification may have written an event with the same id.
        """

    async def park_events(self, sink: str, events: Sequence[Event]) -> None:
        """Sets events aside that the sink refuses. `outbox` does not return them until they are released.

        As in `published`, an event is known by its id and its time together.
        """

    async def release_events(self, sink: str) -> int:
        """Returns the parked events of a sink to their old places in its outbox. Returns their number."""

    # Workers --------------------------------------------------------------------------------------

    async def worker_seen(self, heartbeat: WorkerHeartbeat) -> None:
        """Stores the heartbeat of a worker and marks the worker as seen now. Replaces its last heartbeat."""

    async def worker_gone(self, name: str) -> None:
        """Removes a worker that has stopped. Does nothing if there is no such worker."""

    async def workers(self) -> tuple[SeenWorker, ...]:
        """Returns all workers by name, also those that have died. `prune` removes them after a day."""

    # Reads ---------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> History | None:
        """Returns a notification with its attempts and causes, or None if the tenant has no such id."""

    async def find_missing(self, ids: Collection[str]) -> frozenset[str]:
        """Returns those of the ids under which no notification of any tenant is stored."""

    async def list(
        self,
        tenant: str,
        filter: Filter,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
        scan: int | None = None,
    ) -> Page:
        """Returns one page of the notifications that match the filter, newest id first.

        With `oldest_first`, the oldest id comes first, on this page and on those of its cursor. With `scan`,
        at most this many notifications are compared with the filter, unless an index of metadata finds those
        that match. If there are more, the page is marked as not complete, and its cursor continues after
        them.
        """

    async def waiting(self, tenant: str | None, *, limit: int = 50, ready: bool | None = None) -> Page:
        """Returns the `pending` and `retrying` notifications, soonest due first.

        If `tenant` is None, those of all tenants are returned.
        If `ready` is True, only those already due are returned. If it is False, only those not
        yet due are returned.
        """

    async def count_due(self, tenant: str | None) -> Mapping[Status, int]:
        """Returns the number of waiting notifications that are due now, by status.

        A status without any is left out. If `tenant` is None, those of all tenants are counted.
        """

    async def waiting_groups(
        self, tenant: str, *, step_ms: int | None = None, limit: int = 20_000
    ) -> WaitingGroups:
        """Groups the waiting notifications by lane, provider, reason and, if `step_ms` is given, due time.

        At most `limit` notifications are counted. If more wait, the result is marked as not complete.
        """

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        """Returns exact counts by status and attempts, for one tenant, or for all if `tenant` is None."""

    async def error_groups(
        self, tenant: str, *, limit: int = 50, status: Status = Status.FAILED, newest: int | None = None
    ) -> tuple[ErrorGroup, ...]:
        """Groups dead letters by reason and error code, or by error text if they have no code.

        The largest group comes first. The newest dead letter of each group is its example. With the status
        `retrying`, what waits for a retry is grouped instead, the newest by its last attempt. With `newest`,
        only this many notifications are grouped, those that were accepted last.
        """

    async def retrying(self, tenant: str, *, limit: int = 50) -> Page:
        """Returns notifications that wait for a retry, due or not, that with the oldest last attempt first.

        The page has no cursor.
        """

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        """Returns the hourly roll-ups of the last `since_ms`, oldest first.

        If `tenant` is None, the roll-ups of all tenants are returned.
        """

    async def minute_roll_ups(
        self, tenant: str | None, *, since_ms: int, step_ms: int = 60_000
    ) -> tuple[MinuteRollUp, ...]:
        """Returns the sums of the last `since_ms` in steps of `step_ms`, whole minutes, oldest first.

        The first step may begin earlier. Sums of single minutes are kept for 48 hours. If `tenant` is None,
        those of all tenants are returned.
        """

    async def last_attempts(
        self, tenant: str, *, per_provider: int, scan: int
    ) -> tuple[tuple[str, AttemptRecord], ...]:
        """Returns the last attempts of each provider with the notifications' ids, the latest start first.

        Reads the attempts of the tenant's newest `scan` notifications, and returns at most `per_provider`
        of each provider.
        """

    async def goal_roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[GoalRollUp, ...]:
        """Returns how many notifications met the latency goal of their mode, per hour of the last `since_ms`.

        The oldest hour comes first. If `tenant` is None, the roll-ups of all tenants are returned.
        """

    async def unacknowledged(self, tenant: str | None) -> Unacknowledged:
        """Returns the number of unacknowledged dead letters, and the time of the oldest.

        At most `MOST_UNACKNOWLEDGED` are counted, because alerts and pages read the number often.
        If `tenant` is None, those of all tenants are considered.
        """

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        """Returns the earliest `first_failed_at` of a `retrying` notification, or None if there is none.

        A notification without one counts from its last attempt. Attempts made elsewhere do not count.
        If `tenant` is None, all tenants are considered.
        """

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        """Returns (tenant, id) of at most `limit` notifications that are due for a status lookup.

        They entered the given status (`sent` or `in_doubt`) after `after` and not later than `until`, both
        in epoch milliseconds, and their last attempt was made at one of the given providers. The notification
        that entered the status first comes first.
        """

    async def tenants(self) -> tuple[str, ...]:
        """Returns all tenants that have or had notifications."""

    # Upkeep --------------------------------------------------------------------------------------

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        """Deletes at most `limit` rows of each kind that are older than their retention.

        Returns how many were deleted, by kind: `notifications`, `keys`, `receipts` and `outbox`. Tallies
        count deleted notifications as `purged`; hourly roll-ups are kept, and those of minutes for 48 hours.
        """

    async def size(self) -> Mapping[str, int]:
        """Returns figures for operators, such as numbers of rows, bytes on disk and the schema version."""


class Registry(Protocol):
    """Reference data: small versioned documents, identified by (tenant, kind, key)."""

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        """Returns the entries with these keys. A key without an entry is absent from the result."""

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        """Returns at most `limit` entries whose keys start with `prefix` and sort after `after`."""

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        """Writes all entries and returns them with their new versions, or writes nothing and returns None.

        None means that the stored version of at least one entry differs from the `version` given. Version −1
        overwrites the entry unconditionally.
        """

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        """Deletes the entries with these keys and returns how many existed."""


class TokenGrant(Struct, frozen=True):
    """Result of taking tokens from a shared bucket."""

    granted: int
    """Number of tokens taken, from 0 to the number requested."""
    wait_ms: int
    """Time until the bucket has another whole token above the reserve. 0 if it already has one."""
    left: float = 0.0
    """Number of tokens in the bucket afterwards, including the reserve."""


class TokenRequest(Struct, frozen=True):
    """Number of tokens to take from a bucket, and the limit of the bucket.

    A negative number returns unused tokens.
    """

    limit: RateLimit
    tokens: int
    reserve: int = 0
    """Number of tokens to leave in the bucket."""


class SharedState(Protocol):
    """State that all workers share: breakers, rate limits and the leaders of background tasks."""

    async def breakers(self) -> dict[str, Breaker]:
        """Returns the stored breakers by provider. For a provider that is absent, the breaker is closed."""

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        """Stores a breaker as version `breaker.version + 1` if the stored version equals `breaker.version`.

        Returns False, without a change, if another process has stored a newer version.
        """

    async def take(self, key: str, limit: RateLimit, want: int, reserve: int = 0) -> TokenGrant:
        """Takes up to `want` tokens from the bucket `key`, which refills by the store's clock.

        Leaves `reserve` tokens in the bucket.
        """

    async def take_many(self, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
        """Takes tokens from many buckets in one transaction, such as one bucket per recipient."""

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        """Elects `worker` as leader of a background task for `for_ms`, or renews its term.

        Returns False while another worker leads. This way, upkeep runs once and not once per worker. A term
        that ends later than `for_ms` plus `VOID_TERM_MS` from now was given before the clock was set back,
        and is void.
        """

    async def suspected_clock_step(self) -> ClockStep | None:
        """Returns the step of the store's clock that processes do not believe yet, or None."""


class Backend(Store, Registry, SharedState, Protocol):
    """The three interfaces that every store implements."""


AwaitPrevious = Callable[[], Awaitable[None]]
"""Function that waits until all earlier batches are committed, and raises if one of them failed."""


@runtime_checkable
class SupportsOverlappingAccept(Protocol):
    """A store that can prepare a batch while another is being committed."""

    async def accept_after(
        self, batch: Sequence[Submission], before: AwaitPrevious
    ) -> tuple[Acceptance, ...]:
        """Works like `accept`, but commits only after `before` has returned, and not at all if it raises.

        Until then, the call must hold no lock that the earlier batches may need.
        """


@runtime_checkable
class SupportsWakeUps(Protocol):
    """A store that wakes this process when another one has accepted rows. A lost wake-up only delays work."""

    @property
    def hears(self) -> bool:
        """True while such wake-ups arrive. The worker polls more often while this is False.

        It is False behind some connection poolers, and while `listen` is not connected.
        """

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        """Calls `wake` when rows may have become due, and `wake_inbox` when an inbox entry was written.

        Runs until it is cancelled, and only waits if wake-ups are not supported.
        """


@runtime_checkable
class SupportsMetadataIndexes(Protocol):
    """A store that finds notifications by the metadata keys that the settings declare, without a scan."""

    async def index_metadata(self, keys: Collection[str]) -> None:
        """Creates the missing indexes of these keys, and drops those of all other keys.

        It may take minutes if there are many notifications, in which the store is used as always. Several
        processes may call it at once. A call that was interrupted can be repeated. Raises `InvalidRequest`
        if a text cannot be an indexed key (see `METADATA_KEY`).
        """


class Entry(Struct, frozen=True, kw_only=True):
    """One document of the reference data.

    `version` increases with each write. It is 0 if the document does not exist yet.
    """

    tenant: str
    kind: str
    key: str
    value: dict[str, Any]
    version: int = 0
    updated_at: int = 0
    updated_by: str = ""


Connection = TypeVar("Connection")


class CallerConnection(Struct, Generic[Connection], frozen=True):
    """A connection that belongs to one thread, with a function that runs code on that thread.

    Synchronous drivers bind a connection to the thread that opened it (sqlite3 and Django check this). Using
    the connection on another thread would also block that thread.
    """

    connection: Connection
    run: Callable[[Callable[[], Any]], Awaitable[Any]]
    """Runs a function on the connection's thread and returns its result."""


class StoreCheckResult(Struct, frozen=True, kw_only=True):
    """Result of one check of a store.

    `advice` says how to fix a problem, and is empty if there is none. If `ok` is True, the store can be used
    despite the problem.
    """

    name: str
    ok: bool
    detail: str
    advice: str = ""


@runtime_checkable
class SupportsChecks(Protocol):
    """A store that can check its server, schema and permissions."""

    async def examine(self, *, now_ms: int) -> tuple[StoreCheckResult, ...]:
        """Checks server, settings, schema, grants and clock, and changes nothing.

        `now_ms` is the caller's own time.
        """


class Uninstallation(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the removal of Homing from a database takes away, what it leaves, and what prevents it."""

    schema: str
    objects: Mapping[str, tuple[str, ...]]
    """Names of Homing's own objects, by kind: tables, views, functions, sequences."""
    drops_schema: bool
    """False if the schema belongs to another role. It then stays, empty."""
    notifications: int
    """Number of notifications that are deleted."""
    waiting: int
    """Number of those that are still to be sent."""
    cron_jobs: tuple[str, ...] = ()
    """Names of pg_cron jobs in this database that call Homing. They are unscheduled."""
    roles: tuple[str, ...] = ()
    """Roles of tenants. They lose their rights on the schema, and stay."""
    guarded_callers: tuple[str, ...] = ()
    """Functions outside the schema that call Homing and catch the error if it is gone. They stay."""
    callers: tuple[str, ...] = ()
    """Functions outside the schema that call Homing and would fail without it."""
    workers: tuple[str, ...] = ()
    """Workers that are running."""
    foreign: tuple[str, ...] = ()
    """Objects in the schema that Homing has not created."""
    dependents: tuple[str, ...] = ()
    """Objects outside the schema that depend on it, such as views."""

    def problems(self, *, force: bool = False) -> tuple[str, ...]:
        """Returns what prevents the removal.

        `force` accepts running workers and functions that would fail.
        """
        found = []
        if self.foreign:
            found.append(f"schema {self.schema} contains objects of others: {', '.join(self.foreign)}")
        if self.dependents:
            found.append(f"objects of others depend on it: {', '.join(self.dependents)}")
        if self.callers and not force:
            found.append(f"functions call it and would fail: {', '.join(self.callers)}")
        if self.workers and not force:
            found.append(f"workers are running: {', '.join(self.workers)}")
        return tuple(found)


@runtime_checkable
class SupportsUninstall(Protocol):
    """A store that can be removed from a database that others use as well."""

    async def plan_uninstallation(self) -> Uninstallation:
        """Returns what `uninstall` would do. Changes nothing."""

    async def uninstall(self, *, force: bool) -> Uninstallation:
        """Removes all of Homing. Raises `CommandRefused`, and changes nothing, if something prevents it."""


class InboxEntryKind(StrEnum):
    """What an inbox entry requests."""

    SEND = "send"
    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"
    RESEND = "resend"
    CLEANUP = "cleanup"
    FAIL = "fail"


class InboxEntry(Struct, frozen=True, kw_only=True):
    """One inbox entry, leased to the worker that took it."""

    number: int
    kind: InboxEntryKind
    tenant: str
    id: str
    """Id of the notification to be created, or of its batch if the request creates several. For a command
    other than `resend`, it is unused."""
    notification_id: str | None = None
    """Id of the notification that a command applies to. None for a send request."""
    request: str = "{}"
    """Send request as JSON, in the format of the API and not yet validated. Empty object for a command."""
    enqueued_at: int = 0
    """Time at which the entry was written, by the store's clock."""
    already_failed: bool = False
    """True if the first attempt was made, and failed, before the entry was written."""
    last_error: str | None = None
    """Error text of the failed first attempt. None if there is no text, or no attempt was made."""
    max_retries: int | None = None
    """Maximum number of retries of this notification. If None, the policy decides."""
    who: str = ""
    why: str = ""


class AcceptedEntry(Struct, frozen=True):
    """The submission that intake built from one inbox entry."""

    entry: InboxEntry
    submission: Submission
    otherwise: Submission | None = None
    """Submission that is stored instead, as a dead letter, if the idempotency key belongs to a different
    request. None if `submission` has no idempotency key."""


class InboxAcceptance(Struct, frozen=True):
    """Result of `Inbox.accept_inbox`."""

    entries: int
    """Number of entries that still existed, and are removed now."""
    refused: int = 0
    """Number of those whose request became a dead letter."""


class RetryRule(Struct, frozen=True, kw_only=True):
    """The retry delays of notifications that match these keys, of which `*` matches everything."""

    tenant: str
    type: str
    origin: str
    channel: str
    priority: str
    delays_ms: tuple[int, ...]


@runtime_checkable
class Inbox(Protocol):
    """A store that other programs can write to by SQL.

    An entry is removed in the same transaction that stores its notification or applies its command. It is
    known by its number and its id together, because the store may have gone back to an earlier state since
    the entry was taken, and given its number to another one.
    """

    async def take_inbox(self, limit: int, lease_ms: int) -> tuple[InboxEntry, ...]:
        """Leases the oldest entries. No other worker gets them before the lease expires."""

    async def count_inbox(self, tenant: str | None) -> int:
        """Returns the number of send requests in the inbox, of one tenant, or of all if it is None."""

    async def accept_inbox(self, batch: Sequence[AcceptedEntry]) -> InboxAcceptance:
        """Accepts the submissions whose entries still exist, and removes these entries."""

    async def amend_inbox(self, entry: InboxEntry, command: Command) -> AmendResult | None:
        """Applies the command of an entry. Returns None if another worker has already applied it."""

    async def remove_inbox(self, entries: Sequence[InboxEntry]) -> None:
        """Removes processed entries that no other call removes, such as `cleanup` requests."""

    async def store_retry_delays(self, delays_ms: Sequence[int], rules: Sequence[RetryRule] = ()) -> None:
        """Stores the retry delays of the default policy and of all rules, for SQL functions and views.

        The first of `rules` that matches a notification applies to it.
        """


class SinkRegistration(Struct, frozen=True, kw_only=True):
    """A sink as it is registered in the store."""

    name: str
    kind: str
    """Kind of the sink, such as `log` or `callback`. For operators only."""
    events: frozenset[str]
    """Names of the events that the sink gets."""
    durable: bool = True
    """False if the sink may be removed with its events once no process has used it for an hour."""


class RegisteredSink(SinkRegistration, frozen=True, kw_only=True):
    """A registered sink with its current figures."""

    registered_at: int
    last_seen_at: int
    """Epoch milliseconds at which a process last registered the sink or ran its relay."""
    waiting: int
    """Number of events that the sink has not published yet, without those that are parked."""
    parked: int = 0
    """Number of events that were set aside, because the sink refused them again and again."""
    oldest_at: int | None = None
    """Epoch milliseconds at which the first of the waiting events happened. None if no event waits."""


class WorkerHeartbeat(Struct, frozen=True, kw_only=True):
    """What a worker reports about itself every few seconds."""

    name: str
    """Name of the process, unique among the running ones."""
    version: str
    """Version of Homing that the worker runs."""
    lanes: Mapping[str, int]
    """Lane → maximum number of attempts in flight."""
    providers: tuple[str, ...]
    """Ids of the providers that the worker can send through."""
    running_ms: int = 0
    """Milliseconds since the worker started."""
    draining: bool = False
    """True if the worker claims nothing more and only finishes what is in flight."""


class SeenWorker(Struct, frozen=True, kw_only=True):
    """A worker as its last heartbeat described it. The fields are those of `WorkerHeartbeat`."""

    name: str
    version: str
    lanes: Mapping[str, int]
    providers: tuple[str, ...]
    draining: bool
    started_at: int
    """Epoch milliseconds at which the worker started, by the clock of the store."""
    seen_at: int
    """Epoch milliseconds of the last heartbeat, by the clock of the store."""

    def is_live(self, now: int) -> bool:
        """Returns True unless the last heartbeat is so old that the worker must have died."""
        return now - self.seen_at < DEAD_AFTER_MS


HEARTBEAT_MS = 10_000
"""Interval between two heartbeats of a worker."""

DEAD_AFTER_MS = 60_000
"""A worker without a heartbeat for this long counts as dead. Several heartbeats may be lost or late."""

FORGOTTEN_AFTER_MS = 24 * 3_600_000
"""`prune` removes workers that have sent no heartbeat for this long."""


VOID_TERM_MS = 10 * 60_000
"""A leader's term that ends this much later than a new term would is void."""


def relay_task(sink: str) -> str:
    """Returns the name of the background task whose leader publishes the events of this sink."""
    return f"relay:{sink}"


class Retention(Struct, frozen=True, kw_only=True):
    """How long finished notifications, idempotency keys, receipts and unpublished events are kept.

    `keys_ms` applies to keys and receipts, `outbox_ms` to events, the other fields to notifications by
    status.
    """

    delivered_ms: DurationMs = 24 * 3_600_000
    sent_ms: DurationMs = 7 * 24 * 3_600_000
    others_ms: DurationMs = 30 * 24 * 3_600_000
    keys_ms: DurationMs = 7 * 24 * 3_600_000
    outbox_ms: DurationMs = 7 * 24 * 3_600_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_duration_ms(getattr(self, name), f"retention.{name}")

    @classmethod
    def of_age(cls, age_ms: int) -> Retention:
        """Returns the retention by which everything but events is kept for this long."""
        return cls(delivered_ms=age_ms, sent_ms=age_ms, others_ms=age_ms, keys_ms=age_ms)

    def age_ms(self, status: Status) -> int:
        """Returns how long a notification in this final status is kept."""
        match status:
            case Status.DELIVERED:
                return self.delivered_ms
            case Status.SENT:
                return self.sent_ms
            case _:
                return self.others_ms
