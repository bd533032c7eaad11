"""What stores accept and lease: submissions, new notifications, claims, leases and a worker's capacity."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from homing.core.notifications import Channel, Message, Mode, Priority


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
    """Unit with its own capacity: the provider, or `provider@tenant/origin` for a recipient's own host."""
    address: str
    """Recipient's address on this channel, used by filters and per-recipient limits."""
    message: Message
    max_age_ms: int
    """Maximum age from the policy at acceptance. The first deadline of the row is computed from it."""
    pinned: bool = False
    """True if the request names the provider, so that there is no failover."""
    send_at: int | None = None
    expires_at: int | None = None
    dedup_key: str | None = None
    dedup_window_ms: int = 0
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance. Homing continues the numbering."""
    delay_ms: int = 0
    """Wait after acceptance before the next attempt, which never starts before `send_at`. Set by intake
    together with `attempts_before`; otherwise 0."""
    max_attempts: int | None = None
    """Maximum number of attempts of this notification, including `attempts_before`. None if the policy
    decides."""
    last_error: str | None = None
    """Error text of the last attempt by another system, or of the rejection if `refused`. None if there is
    neither."""
    resend_of: str | None = None
    """Id of the notification that this one repeats. None if it is not a resend."""
    refused: bool = False
    """True if the request cannot be accepted but came from the SQL inbox or the spool, whose writers get no
    error message. The notification is then stored as a dead letter."""
    delay_from: int | None = None
    """Store time from which `delay_ms` counts, if another system's last attempt failed before acceptance.
    None if it counts from acceptance."""


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
    """Length of the lease to `lease_to`. 0 if there is no lease."""


class Acceptance(Struct, frozen=True, gc=False):
    """The store's result for one submission.

    `ids` are in the order of its notifications, or in that of the first request if its idempotency key is
    repeated. The first request may have made another number of notifications.
    """

    batch_id: str
    ids: tuple[str, ...]
    duplicates: frozenset[str] = frozenset()
    """Ids of notifications that existed before: all ids for a repeated idempotency key, or those of messages
    repeated within their dedup window."""
    conflict: bool = False
    """True if the idempotency key belongs to a different request. Nothing was stored, and `ids` is empty."""
    claims: tuple[Claim, ...] = ()
    """Leased notifications of a submission with `lease_to`. Empty otherwise."""


RequestKey = tuple[str, str]
"""(tenant, idempotency key) or (tenant, dedup key)."""


class StoredRequest(Struct, frozen=True, array_like=True):
    """What is stored under an idempotency key."""

    fingerprint: str
    batch_id: str
    ids: tuple[str, ...]

    def answer(self, fingerprint: str) -> Acceptance:
        """Returns the result of another request with the same key: a repetition or a conflict."""
        if fingerprint != self.fingerprint:
            return Acceptance(batch_id=self.batch_id, ids=(), conflict=True)
        return Acceptance(batch_id=self.batch_id, ids=self.ids, duplicates=frozenset(self.ids))


class Claim(Struct, frozen=True, gc=False):
    """One leased notification with everything a worker needs to attempt it.

    From `id` on, each field but the last equals the row's field of the same name. `holds` is a copy, and
    `spent` also has the refusals that an earlier release has stored as holds.
    """

    message: Message
    attempt: int
    """Number of the attempt that this lease is for, already committed in the store. The first is 1."""
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
    """Start of the period that `max_age_ms` limits: creation, `send_at`, a retry or reschedule command, or
    the receipt that reopened the notification. Waits for quiet hours and rate limits move it later."""
    expires_at: int | None
    lease_until: int
    started_at: int
    """Store time of the claim. After an expired lease, it is that of the lost claim; for an overdue row, the
    time at which the row was due."""
    worker: str
    overdue: bool = False
    """True if the row was claimed because its deadline passed. No attempt was counted, and none is made."""
    attempt_floor: int = 0
    """Number of attempts that an operator's retry allows even if the maximum is lower. 0 without such a
    retry."""
    bounce_floor: int = 0
    """Total number of attempts allowed since a receipt reported the failure of a message: those made by then
    plus one, and at most one more than the maximum. 0 if no receipt has reported a failure."""
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance. They are included in `attempt`."""
    max_attempts: int | None = None
    """Maximum number of attempts of this notification. None if the policy decides."""
    failures_here: int = 0
    """Number of failures at `provider` in this round of failover."""
    moves: int = 0
    """Number of attempts that do not count: moves at once, with this attempt if it is one, and uncounted
    failures. They are included in `attempt`, but not in the number that backoff and maximum use."""
    free_move: bool = False
    """True if this attempt is a move at once."""
    last_delay_ms: int = 0
    """Backoff delay drawn before this attempt. Decorrelated jitter grows from it."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """Provider → `Spent`: why the provider is not tried again in this round of failover, or never again. The
    row's own dict, which must not be changed."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Provider → time until which its `Retry-After` forbids an attempt."""
    moved_from: str = ""
    """Set by the worker: provider of the row when it was claimed, if `provider` was chosen instead before the
    attempt. Otherwise empty."""


def provider_key(id: str, bounce_floor: int) -> str:
    """Returns the idempotency key that a provider gets with an attempt: the notification's id, at first.

    The key stays the same across attempts, so that a provider can recognize a repeated message. Once a
    receipt has reported the failure of a message, the next attempt has a new key, because it must not be
    mistaken for the failed message. `bounce_floor` of the row tells the keys apart: each such receipt
    increases it.
    """
    return f"{id}-{bounce_floor}" if bounce_floor else id


class ClaimBatch(Struct, frozen=True, kw_only=True):
    """Rows that one call of `claim` or `reclaim` has leased to a worker."""

    claims: tuple[Claim, ...]
    now: int
    """Time of the call, by the store's clock."""
    next_due_at: int | None
    """Time at which the next row of the requested lanes is due. None if no row waits. It is not after `now`
    if the claim may have left due rows although it had capacity, because other claims were leasing some."""
    unlisted: frozenset[str] = frozenset()
    """Providers that have due rows in the requested lanes, but are left out by `ClaimRequest.only_listed`."""


UNLIMITED = 2**62
"""Capacity that no claim uses up."""


class LaneCapacity(Struct, frozen=True, kw_only=True):
    """Number of attempts that a worker can start in one lane."""

    slots: int
    """Free slots of the lane."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Tenant → its attempts in flight in this lane. A tenant that is missing has none."""
    tenant_factor: int | None = None
    """A tenant holds at most this many times the slots that stay free, but may always take one if it holds
    none. None if tenants are not limited."""


class NewOutletsCapacity(Struct, frozen=True, kw_only=True):
    """Number of attempts that can start at outlets of a provider that have not answered yet.

    Modes and tenants share it by the same rules as the provider. A tenant may always take one in a mode in
    which it holds none here, even if no slot is free.
    """

    slots: int
    """Free slots."""
    reserved: Mapping[Mode, int] = field(default_factory=dict)
    """Mode → free slots that only this mode may take."""
    held: Mapping[tuple[Mode, str], int] = field(default_factory=dict)
    """(mode, tenant) → attempts in flight at these outlets. A pair that is missing has none."""


class ProviderCapacity(Struct, frozen=True, kw_only=True):
    """Number of attempts that a worker can start at one provider, and how modes and tenants share it."""

    slots: int
    """Free slots of the provider."""
    reserved: Mapping[Mode, int] = field(default_factory=dict)
    """Mode → free slots that only this mode may take."""
    starts: int = UNLIMITED
    """Number of attempts that rate limit and ramp-up permit now."""
    reserved_starts: int = 0
    """Number of `starts` that only priority may take."""
    owed: Mapping[Mode, int] = field(default_factory=dict)
    """Mode → starts that it gets before more urgent modes, because they took the last ones."""
    held: Mapping[tuple[Mode, str], int] = field(default_factory=dict)
    """(mode, tenant) → attempts in flight. A pair that is missing has none."""
    tenant_factor: int | None = None
    """A tenant holds at most this many times the slots that stay free for the mode, over all lanes together.
    It may always take one in a mode in which it holds none. None if tenants are not limited."""
    hanging_slots: int = UNLIMITED
    """Free slots of all outlets in `ClaimRequest.hanging` together."""
    new_outlets: NewOutletsCapacity | None = None
    """Capacity of all outlets together that are neither in `ClaimRequest.answering` nor in `hanging`. None if
    they are not limited."""
    outlet_slots: int | None = None
    """Free slots of an outlet of this provider that is not listed in `ClaimRequest.outlet_capacity`. None if
    `ClaimRequest.outlet_slots` applies."""


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Request of a worker for due rows: how many attempts it can start now, by lane, provider and outlet.

    Rows are dealt by mode, the most urgent first, over all channels. Within a mode, the tenants of a provider
    take turns.
    """

    worker: str
    lease_ms: int
    lanes: Mapping[str, LaneCapacity]
    """Lane → its capacity. Other lanes are not claimed."""
    providers: Mapping[str, ProviderCapacity] = field(default_factory=dict)
    """Provider → its capacity. A provider that is missing limits nothing, unless `only_listed` is set."""
    only_listed: bool = False
    """True if rows of providers that are missing in `providers` are not claimed."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Provider → provider in `providers` to which its rows would go now, and whose capacity they use."""
    outlet_slots: int
    """Free slots of an outlet that is not listed in `outlet_capacity`."""
    outlet_capacity: Mapping[str, int] = field(default_factory=dict)
    """Free slots of outlets that are in use, limited or paused. 0 excludes the outlet from the claim."""
    hanging: frozenset[str] = frozenset()
    """Outlets whose last answer was a timeout. Together they have `ProviderCapacity.hanging_slots`."""
    answering: AbstractSet[str] = frozenset()
    """Outlets that have answered before, other than those in `hanging`. The others may turn out to hang, so
    `ProviderCapacity.new_outlets` limits them."""
    limit: int | None = None
    """Maximum number of rows of all lanes together. None if only the capacity limits the claim."""
    tenant: str | None = None
    """Tenant whose rows are claimed. None if the rows of all tenants are."""
    ids: frozenset[str] | None = None
    """Ids of the only rows that are claimed if they are due, the earliest due first. They are not dealt
    fairly between tenants. None if all due rows may be claimed."""


LEASE_MARGIN_MS = 10_000
"""Margin that is added to the timeout of an attempt to get the length of its lease."""


class Lease(Struct, frozen=True, gc=False):
    """Reference to a claim, for `Store.extend`."""

    id: str
    token: int
    provider: str | None = None
    """Provider that the attempt actually uses. None if it is the provider of the claim."""
    outlet: str | None = None
    """Outlet of `provider`. None if the outlet is the provider itself."""
    worker: str | None = None
    """Worker of the claim. A lease of another worker is not extended, even if its token is the same, which
    happens after the store has gone back to an earlier state. None if the worker is not compared."""


LeaseKey = tuple[str, int, int]
"""(id, token, start time) of a claim."""


def lease_key(claim: Claim) -> LeaseKey:
    """Returns what tells a claim from all other claims of the same process.

    The token alone does not, because it is given out again after the store has gone back to an earlier state.
    """
    return claim.id, claim.token, claim.started_at
