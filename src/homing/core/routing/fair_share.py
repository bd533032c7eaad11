"""Shares the capacity of a claim fairly between modes, tenants and outlets. All stores use this module.

Starts are dealt by mode before channel: a priority row of any channel comes before a bulk row of any other.
Within a mode, the tenants of a provider take turns, the least recently served first, and each turn takes one
row. This makes the shares equal, and tenants with more rows share the capacity that the others leave unused.

Two rules keep capacity free for what comes later. Each mode has a reserve of every provider that the other
modes cannot take. And a tenant holds at most a multiple of the slots that stay free, as the queues of a
network switch do with a dynamic threshold: one flooding tenant gets most of an idle provider, several get
less each, and a slot stays free for the next one.

To need few statements, rows are fetched in bulk ahead of the turns: the generator `FairShare.run` yields
requests for rows, and the store that runs the generator fetches the rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from itertools import islice

from msgspec import Struct, field

from homing.core.lifecycle.claims import UNLIMITED, ClaimRequest, NewOutletsCapacity, ProviderCapacity
from homing.core.notifications import Mode, mode_of

DueRow = tuple[int, str, int]
"""(due time, id, the store's row number) of a row."""

BEFORE_FIRST_ROW: DueRow = (-1, "", 0)
"""Position before the first row of a queue."""

MODE_ORDER = (Mode.PRIORITY, Mode.STANDARD, Mode.BULK)
"""Modes in the order in which starts are dealt. Synchronous sends are never claimed."""

TENANT_FACTOR = 7
"""A tenant holds at most this many times the slots that stay free. Alone, it gets seven eighths."""

_MIN_FETCH_ROWS = 8

_MAX_FETCH_ROWS = 4096
"""Maximum number of rows per queue and fetch, which bounds the memory. A claim can fetch several times."""

_MAX_TURNS = 100_000

_UNLIMITED_PROVIDER = ProviderCapacity(slots=UNLIMITED)

_UNLISTED_PROVIDER = ProviderCapacity(slots=0)


def reserve_of(mode: Mode, capacity: int) -> int:
    """Returns how much of a provider's slots or burst is reserved for a mode.

    The reserve is an eighth for priority, at least one of two, and a sixteenth for each other mode.
    """
    if mode is Mode.PRIORITY:
        return max(1, capacity // 8) if capacity > 1 else 0
    return capacity // 16


def hanging_share(capacity: int) -> int:
    """Returns how many of a provider's slots the outlets whose last answer was a timeout share: a quarter."""
    return max(1, capacity // 4)


def new_outlets_share(capacity: int) -> int:
    """Returns how many of a provider's slots the outlets that have not answered yet share: a half."""
    return max(1, capacity // 2)


def tenant_allowance(held: int, free: int, factor: int | None, *, taking: int = 1, sharing: int = 1) -> int:
    """Returns how many rounds a tenant can take, so that it holds at most `factor` times the free slots.

    In each round, the tenant takes `taking` slots, and `sharing` slots are taken in total.
    """
    if factor is None:
        return max(0, free) // sharing
    return max(0, (factor * free - held) // (taking + factor * sharing))


class DueQueue(Struct):
    """The due rows of one tenant at one outlet of a lane."""

    lane: str
    tenant: str
    outlet: str
    served: int
    """Serial number of the queue's last turn. Higher means more recent."""
    after: DueRow = BEFORE_FIRST_ROW
    """The last row that was fetched."""
    rows: deque[DueRow] = field(default_factory=deque)
    """Rows that were fetched but not yet dealt."""
    looked: bool = False
    """True if this claim has fetched rows from the queue."""
    more: bool = True
    """False if the last fetch reached the end of the due rows."""
    took: bool = False
    """True if a row of the queue was dealt in this claim."""

    def fill(self, rows: Sequence[DueRow], limit: int) -> None:
        """Adds the result of a fetch of at most `limit` rows."""
        self.rows.extend(rows)
        self.looked = True
        self.more = len(rows) == limit
        if rows:
            self.after = rows[-1]


TenantPlace = tuple[Mode, str, str]
"""(mode, provider, tenant)."""


class TenantTurns:
    """Serial numbers of the last turns of tenants, by mode and provider, as known to one process.

    A queue is forgotten when it is empty. Without this record, a tenant whose rows are spread over many
    outlets would count as never served.
    """

    def __init__(self) -> None:
        self._served: dict[TenantPlace, int] = {}

    def get(self, mode: Mode, provider: str, tenant: str) -> int:
        """Returns the serial number of the tenant's last turn, or 0 if none is known."""
        return self._served.get((mode, provider, tenant), 0)

    def record(self, taken: Mapping[TenantPlace, int]) -> None:
        """Records the turns of a claim that was committed."""
        for place, served in taken.items():
            self._served[place] = max(served, self._served.get(place, 0))
        if len(self._served) > _MAX_TURNS:
            newest = sorted(self._served.items(), key=lambda turn: turn[1])[-_MAX_TURNS // 2 :]
            self._served = dict(newest)


class _TenantAtProvider(Struct):
    """State of one tenant at one provider, for one mode: its queues and its last turn."""

    key: tuple[str, str]
    """(provider, tenant)."""
    served: int
    """Serial number of the tenant's last turn."""
    queues: list[tuple[int, str, str]] = field(default_factory=list)
    """Heap of the tenant's queues as (served, lane, outlet)."""
    took: bool = False
    """True if the tenant got a row in this claim."""


FetchRequest = tuple[Sequence[DueQueue], int]
"""Queues, and the maximum number of rows to fetch into each of them with `DueQueue.fill`."""


class FairShare:
    """Shares the capacity of one claim between all queues with due rows."""

    def __init__(
        self, capacity: ClaimCapacity, queues: Iterable[DueQueue], turns: TenantTurns, serial: int
    ) -> None:
        """Starts from the last turn of each queue and tenant and the last serial number in use."""
        self._capacity = capacity
        self._queues = {(queue.lane, queue.tenant, queue.outlet): queue for queue in queues}
        self._turns = turns
        self.serial = serial
        """Serial number of the last turn. It increases by one per row, over all claims."""
        self.dealt: list[DueRow] = []
        """Chosen rows, in the order of their turns."""
        self._modes: dict[Mode, dict[tuple[str, str], _TenantAtProvider]] = {}
        self._lanes: dict[str, Mode] = {}
        self._sharing: Counter[tuple[Mode, str]] = Counter()
        """(mode, provider) → number of queues."""
        for queue in self._queues.values():
            self._add_queue(queue)
        for tenants in self._modes.values():
            for tenant in tenants.values():
                tenant.queues.sort()  # a sorted list is a heap

    def run(self) -> Generator[FetchRequest, None, list[DueRow]]:
        """Yields requests for rows, and returns the chosen rows in the order of their turns."""
        capacity, modes = self._capacity, [mode for mode in MODE_ORDER if mode in self._modes]
        for mode in modes:
            if capacity.owes(mode):
                capacity.dealing_owed = True
                yield from self._deal(mode)
                capacity.dealing_owed = False
        for mode in modes:
            yield from self._deal(mode)
        return self.dealt

    def taken(self) -> dict[TenantPlace, int]:
        """Returns the last turns of the tenants that got a row, for `TenantTurns.record`."""
        return {
            (mode, *tenant.key): tenant.served
            for mode, tenants in self._modes.items()
            for tenant in tenants.values()
            if tenant.took
        }

    def looked(self) -> list[DueQueue]:
        """Returns the queues from which rows were fetched. Their next due time may have changed."""
        return [queue for queue in self._queues.values() if queue.looked]

    def took_turns(self) -> list[DueQueue]:
        """Returns the queues from which rows were dealt and that take turns with others."""
        return [
            queue
            for queue in self._queues.values()
            if queue.took
            and self._sharing[self._lanes[queue.lane], self._capacity.provider(queue.outlet)] > 1
        ]

    def _add_queue(self, queue: DueQueue) -> None:
        provider, mode = self._capacity.provider(queue.outlet), self._lanes.get(queue.lane)
        if mode is None:
            mode = self._lanes[queue.lane] = mode_of(queue.lane)
        self._sharing[mode, provider] += 1
        tenants = self._modes.setdefault(mode, {})
        tenant = tenants.get((provider, queue.tenant))
        if tenant is None:
            # A turn after the last serial number was lost with its commit. Others must not wait for it again.
            served = min(self._turns.get(mode, provider, queue.tenant), self.serial)
            tenant = tenants[provider, queue.tenant] = _TenantAtProvider((provider, queue.tenant), served)
        tenant.served = max(tenant.served, queue.served)
        tenant.queues.append((queue.served, queue.lane, queue.outlet))

    def _deal(self, mode: Mode) -> Generator[FetchRequest, None, None]:
        """Deals as many rows of this mode as the capacity permits."""
        tenants = self._modes[mode]
        waiting = self._waiting(tenants)
        yield from self._fetch_ahead(mode, tenants, waiting)
        single_turns = 0  # turns to take one by one before whole rounds are tried again
        while waiting and self._capacity.rows_left > 0:
            if not single_turns:
                rounds = self._deal_whole_rounds([tenants[key] for _, key in sorted(waiting)])
                if rounds:
                    self.dealt += rounds
                    waiting = self._waiting(tenants)
                    continue
                single_turns = len(waiting)
            single_turns -= 1
            tenant = tenants[heappop(waiting)[1]]
            row = yield from self._serve(mode, tenant, len(waiting) + 1)
            if row is None:
                continue
            self.dealt.append(row)
            if tenant.queues:
                heappush(waiting, (tenant.served, tenant.key))

    def _waiting(
        self, tenants: Mapping[tuple[str, str], _TenantAtProvider]
    ) -> list[tuple[int, tuple[str, str]]]:
        waiting = [(tenant.served, tenant.key) for tenant in tenants.values() if tenant.queues]
        heapify(waiting)
        return waiting

    def _queue(self, tenant: _TenantAtProvider) -> DueQueue:
        """Returns the tenant's least recently served queue."""
        _, lane, outlet = tenant.queues[0]
        return self._queues[lane, tenant.key[1], outlet]

    def _deal_whole_rounds(self, tenants: Sequence[_TenantAtProvider]) -> list[DueRow]:
        """Deals as many full rounds as possible in which every tenant gets a row.

        The result equals that of single turns and is computed faster. Returns no rows if some tenant has
        several queues, or if no full round is possible.
        """
        if any(len(tenant.queues) != 1 for tenant in tenants):
            return []
        queues = [self._queue(tenant) for tenant in tenants]
        rounds = min([len(queue.rows) for queue in queues])
        if rounds:
            rounds = min(rounds, self._capacity.whole_rounds(queues))
        if rounds <= 0:
            return []
        last_round = self.serial + (rounds - 1) * len(tenants)
        for position, (tenant, queue) in enumerate(zip(tenants, queues, strict=True), 1):
            tenant.served = queue.served = last_round + position
            tenant.took = queue.took = True
            tenant.queues[0] = (queue.served, queue.lane, queue.outlet)
            self._capacity.use(queue, rounds)
        self.serial += rounds * len(tenants)
        return [queue.rows.popleft() for _ in range(rounds) for queue in queues]

    def _serve(
        self, mode: Mode, tenant: _TenantAtProvider, waiting: int
    ) -> Generator[FetchRequest, None, DueRow | None]:
        """Returns the oldest due row of the tenant's least recently served queue, or None if none is due."""
        if self._capacity.tenant_left(mode, *tenant.key) <= 0:
            if not self._capacity.dealing_owed:
                tenant.queues.clear()
            return None
        skipped: list[tuple[int, str, str]] = []  # queues that can be served when the other starts are dealt
        row = None
        while tenant.queues and row is None:
            queue = self._queue(tenant)
            left = self._capacity.left(queue)
            if left <= 0:
                entry = heappop(tenant.queues)
                if self._capacity.dealing_owed:
                    skipped.append(entry)
            elif not (yield from self._has_row(queue, left, waiting)):
                heappop(tenant.queues)
            else:
                row = queue.rows.popleft()
                self._capacity.use(queue)
                self.serial += 1
                queue.served = tenant.served = self.serial
                tenant.took = queue.took = True
                heappop(tenant.queues)
                heappush(tenant.queues, (queue.served, queue.lane, queue.outlet))
        for entry in skipped:
            heappush(tenant.queues, entry)
        return row

    def _has_row(self, queue: DueQueue, left: int, waiting: int) -> Generator[FetchRequest, None, bool]:
        if not queue.rows and queue.more:
            rows = min(left, self._capacity.rows_left)
            share = max(_MIN_FETCH_ROWS, -(-rows // waiting), rows // 4)
            yield (queue,), min(share, rows, _MAX_FETCH_ROWS)
        return bool(queue.rows)

    def _fetch_ahead(
        self,
        mode: Mode,
        tenants: Mapping[tuple[str, str], _TenantAtProvider],
        waiting: Sequence[tuple[int, tuple[str, str]]],
    ) -> Generator[FetchRequest, None, None]:
        """Yields one fetch of about as many rows as the first tenants will get."""
        lanes = [lane for lane, of in self._lanes.items() if of is mode]
        left = self._capacity.left_together(mode, lanes, {provider for _, (provider, _) in waiting})
        queues, most = [], 0
        for queue in islice(self._in_turn(mode, [tenants[key] for _, key in sorted(waiting)]), max(0, left)):
            queues.append(queue)
            most = max(most, self._capacity.left(queue))
        if not queues:
            return
        share = -(-left // len(queues))
        if len(queues) > 1:
            share = min(left, max(_MIN_FETCH_ROWS, share + share // 4))
        yield queues, min(share, most, _MAX_FETCH_ROWS)

    def _in_turn(self, mode: Mode, tenants: Iterable[_TenantAtProvider]) -> Iterator[DueQueue]:
        """Yields the queues to fetch from, in the order in which they will be served first."""
        rounds = [self._to_fetch(mode, tenant) for tenant in tenants]
        while rounds:
            going_on = []
            for round in rounds:
                queue = next(round, None)
                if queue is not None:
                    yield queue
                    going_on.append(round)
            rounds = going_on

    def _to_fetch(self, mode: Mode, tenant: _TenantAtProvider) -> Iterator[DueQueue]:
        """Yields as many of a tenant's queues as it can be served rows, the least recently served first."""
        left = self._capacity.tenant_left(mode, *tenant.key)
        if left <= 0:
            return
        tenant.queues.sort()  # a sorted list is a heap
        for _, lane, outlet in tenant.queues:
            queue = self._queues[lane, tenant.key[1], outlet]
            if queue.more and not queue.rows and self._capacity.left(queue) > 0:
                yield queue
                left -= 1
                if not left:
                    return


class _LaneShare(Struct):
    """What is left of a lane during a claim."""

    free: int
    factor: int | None
    held: dict[str, int]

    def allowance(self, tenant: str, taking: int = 1, sharing: int = 1) -> int:
        held = self.held.get(tenant, 0)
        rounds = tenant_allowance(held, self.free, self.factor, taking=taking, sharing=sharing)
        return 1 if not rounds and not held and self.free >= sharing == 1 else rounds


class _SlotShare:
    """What is left of slots that modes and tenants share: those of a provider, or of its new outlets."""

    def __init__(self, given: ProviderCapacity | NewOutletsCapacity, factor: int | None) -> None:
        self._slots = given.slots
        self._reserved = dict(given.reserved)
        self._all_reserved = sum(given.reserved.values())
        self._factor = factor
        self._held = dict(given.held)
        self._tenants = Counter[str]()
        for (_, tenant), number in given.held.items():
            self._tenants[tenant] += number

    def free(self, mode: Mode) -> int:
        """Returns how many slots are free for a mode."""
        return max(0, self._slots - self._all_reserved + self._reserved.get(mode, 0))

    def is_first(self, mode: Mode, tenant: str) -> bool:
        """Returns True if the tenant holds no slot of this mode."""
        return not self._held.get((mode, tenant), 0)

    def rounds(self, mode: Mode, tenant: str, taking: int = 1, sharing: int = 1) -> int:
        """Returns how many rounds the tenant can take within its share of the slots."""
        held = self._tenants.get(tenant, 0)
        return tenant_allowance(held, self.free(mode), self._factor, taking=taking, sharing=sharing)

    def tenants(self) -> Iterable[str]:
        """Returns the tenants that hold slots."""
        return self._tenants

    def use(self, mode: Mode, tenant: str, rows: int) -> None:
        """Records that rows were selected."""
        self._slots -= rows
        reserved = self._reserved.get(mode, 0)
        self._reserved[mode] = max(0, reserved - rows)
        self._all_reserved -= min(reserved, rows)
        self._held[mode, tenant] = self._held.get((mode, tenant), 0) + rows
        self._tenants[tenant] += rows


class _ProviderShare:
    """What is left of a provider during a claim."""

    def __init__(self, given: ProviderCapacity) -> None:
        self._given = given
        self._slots = _SlotShare(given, given.tenant_factor)
        self._new = None if given.new_outlets is None else _SlotShare(given.new_outlets, given.tenant_factor)
        self._starts = given.starts
        self._owed = dict(given.owed)
        self.hanging = given.hanging_slots
        self.outlet_slots = given.outlet_slots

    def owed(self, mode: Mode) -> int:
        """Returns the number of starts that this mode gets before more urgent modes."""
        return self._owed.get(mode, 0)

    def free(self, mode: Mode) -> int:
        """Returns how many slots are free for a mode."""
        return self._slots.free(mode)

    def starts(self, mode: Mode, *, owed: bool = False) -> int:
        """Returns how many attempts of a mode the rate limit and the ramp-up permit.

        A mode that is owed starts may use those that are reserved for priority.
        """
        reserved = 0 if owed or mode is Mode.PRIORITY else self._given.reserved_starts
        return max(0, self._starts - reserved)

    def allowance(self, mode: Mode, tenant: str, taking: int = 1, sharing: int = 1) -> int:
        """Returns how many rounds the tenant can take, within the slots and its share of them."""
        slots = self._slots
        rounds = slots.rounds(mode, tenant, taking, sharing)
        if rounds or sharing > 1:
            return rounds
        return 1 if slots.is_first(mode, tenant) and slots.free(mode) else 0

    def new_allowance(self, mode: Mode, tenant: str, taking: int = 1, sharing: int = 1) -> int:
        """Returns how many rounds the tenant can take at outlets that have not answered yet.

        The first attempt of a mode needs no free slot there, because those in flight may all hang.
        """
        if self._new is None:
            return UNLIMITED
        rounds = self._new.rounds(mode, tenant, taking, sharing)
        return rounds or int(sharing == 1 and self._new.is_first(mode, tenant))

    def closed_tenants(self, mode: Mode) -> list[str]:
        """Returns the tenants that can take no slot of this mode."""
        return [tenant for tenant in self._slots.tenants() if self.allowance(mode, tenant) <= 0]

    def closed_new_tenants(self, mode: Mode) -> list[str]:
        """Returns the tenants that can take no slot of this mode at an outlet that has not answered yet."""
        tenants = () if self._new is None else self._new.tenants()
        return [tenant for tenant in tenants if self.new_allowance(mode, tenant) <= 0]

    def use(self, mode: Mode, tenant: str, rows: int, *, owed: bool, new: bool) -> None:
        """Records that rows were selected. `new` is True if their outlet has not answered yet."""
        self._slots.use(mode, tenant, rows)
        if new and self._new is not None:
            self._new.use(mode, tenant, rows)
        self._starts -= rows
        if owed:
            self._owed[mode] = self.owed(mode) - rows


class _Outlet(Struct):
    """What a claim has to know about an outlet. It does not change during the claim."""

    provider: str
    """Provider whose capacity the rows of the outlet use."""
    share: _ProviderShare
    slots: int
    """Free slots of the outlet when the claim began."""
    hanging: bool
    new: bool
    """True if the outlet has slots of its own and has not answered yet."""


class ClaimCapacity:
    """What is left of the capacity of one claim: by lane, provider, tenant and outlet, and in total.

    An outlet `provider@…` has slots of its own and also uses those of its provider.
    """

    def __init__(self, request: ClaimRequest) -> None:
        self.rows_left = UNLIMITED if request.limit is None else request.limit
        """Number of rows that the claim may still take, over all lanes."""
        self._dealing_owed = False
        self._request = request
        self._lanes = {
            name: _LaneShare(lane.slots, lane.tenant_factor, dict(lane.held))
            for name, lane in request.lanes.items()
        }
        self._no_lane = _LaneShare(0, None, {})
        self._providers = {name: _ProviderShare(given) for name, given in request.providers.items()}
        self._used: dict[str, int] = {}
        self._outlets: dict[str, _Outlet] = {}
        self._left_at: dict[tuple[str, str, str], tuple[int, int]] = {}
        """(lane, tenant, provider) → rows that may be selected: at any outlet, and at new ones.

        It is cleared when something is used. A claim asks for thousands of queues before that.
        """

    @property
    def dealing_owed(self) -> bool:
        """True while only the starts that modes are owed are dealt."""
        return self._dealing_owed

    @dealing_owed.setter
    def dealing_owed(self, value: bool) -> None:
        self._dealing_owed = value
        self._left_at.clear()

    def provider(self, outlet: str) -> str:
        """Returns the provider whose capacity the rows of this outlet use."""
        return self._outlet(outlet).provider

    def closed_outlets(self) -> list[str]:
        """Returns the outlets without a free slot."""
        request = self._request
        closed = [outlet for outlet, left in request.outlet_capacity.items() if left <= 0]
        if request.hanging:
            full = {name for name, share in self._providers.items() if share.hanging <= 0}
            closed += [outlet for outlet in request.hanging if self.provider(outlet) in full]
        return closed

    def closed_providers(self, mode: Mode) -> list[str]:
        """Returns the providers at which no attempt of this mode can start."""
        closed = {
            name
            for name, share in self._providers.items()
            if share.free(mode) <= 0 or share.starts(mode, owed=share.owed(mode) > 0) <= 0
        }
        sharing = [name for name, to in self._request.stand_ins.items() if to in closed]
        return [name for name in closed if name not in self._request.stand_ins] + sharing

    def closed_tenants(self, mode: Mode) -> list[tuple[str, str]]:
        """Returns the (provider, tenant) pairs that can start no attempt of this mode, by their share."""
        return self._with_stand_ins(
            [(name, tenant) for name, one in self._providers.items() for tenant in one.closed_tenants(mode)]
        )

    def closed_new_tenants(self, mode: Mode) -> list[tuple[str, str]]:
        """Returns the (provider, tenant) pairs that can start none at an outlet that has not answered yet."""
        return self._with_stand_ins(
            [
                (name, tenant)
                for name, one in self._providers.items()
                for tenant in one.closed_new_tenants(mode)
            ]
        )

    def known_outlets(self) -> list[str]:
        """Returns the outlets that are not new: they answered, or their last answer was a timeout."""
        return [*self._request.answering, *self._request.hanging]

    def closed_lane_tenants(self, lane: str) -> list[str]:
        """Returns the tenants that can start no attempt in this lane."""
        share = self._lanes[lane]
        return [tenant for tenant in share.held if share.allowance(tenant) <= 0]

    def is_used_up(self, ignored: AbstractSet[str] = frozenset()) -> bool:
        """Returns True if something is used up, so that due rows may wait for capacity.

        `ignored` has providers and outlets that do not count, because they wait for something else.
        """
        return (
            any(lane.free <= 0 or self.closed_lane_tenants(name) for name, lane in self._lanes.items())
            or any(
                set(self.closed_providers(mode)) - ignored or self.closed_tenants(mode) for mode in MODE_ORDER
            )
            or any(outlet not in ignored for outlet in self.closed_outlets())
            or any(self.closed_new_tenants(mode) for mode in MODE_ORDER)
            or any(self._outlet_left(outlet) <= 0 for outlet in self._used)
        )

    def is_open(self, queue: DueQueue) -> bool:
        """Returns True if this claim could start another attempt of this queue."""
        if self.left(queue) > 0:
            return True
        if self._outlet(queue.outlet).share.owed(mode_of(queue.lane)) <= 0:
            return False
        self.dealing_owed = True
        left = self.left(queue)
        self.dealing_owed = False
        return left > 0

    def left(self, queue: DueQueue) -> int:
        """Returns how many rows of this queue may still be selected, if no other queue is served."""
        outlet = self._outlet(queue.outlet)
        place = (queue.lane, queue.tenant, outlet.provider)
        found = self._left_at.get(place)
        if found is None:
            found = self._left_at[place] = self._compute_left(queue.lane, queue.tenant, outlet)
        left, at_new = found
        if left <= 0:
            return 0
        left = min(left, self.rows_left, outlet.slots - self._used.get(queue.outlet, 0))
        if outlet.hanging:
            left = min(left, outlet.share.hanging)
        elif outlet.new:
            left = min(left, at_new)
        return max(0, left)

    def tenant_left(self, mode: Mode, provider: str, tenant: str) -> int:
        """Returns an upper bound of how many rows of a tenant may still be selected at a provider."""
        share = self._providers.get(provider)
        if share is None:
            return self.rows_left
        owed = self._dealing_owed
        left = min(share.free(mode), share.starts(mode, owed=owed), self.rows_left)
        if owed:
            left = min(left, share.owed(mode))
        return left if left <= 0 else min(left, share.allowance(mode, tenant))

    def _compute_left(self, lane: str, tenant: str, outlet: _Outlet) -> tuple[int, int]:
        mode = mode_of(lane)
        left = self.tenant_left(mode, outlet.provider, tenant)
        if left > 0:
            left = min(left, self._lanes.get(lane, self._no_lane).allowance(tenant))
        return left, outlet.share.new_allowance(mode, tenant) if left > 0 else 0

    def left_together(self, mode: Mode, lanes: Iterable[str], providers: Iterable[str]) -> int:
        """Returns an upper bound of how many rows of these lanes, which have one mode, may be selected."""
        slots = sum(self._lanes.get(lane, self._no_lane).free for lane in lanes)
        shares = [self._providers.get(name) for name in providers]
        at_providers = sum(
            UNLIMITED
            if share is None
            else min(share.free(mode), share.owed(mode) if self._dealing_owed else share.starts(mode))
            for share in shares
        )
        return max(0, min(self.rows_left, slots, at_providers))

    def whole_rounds(self, queues: Sequence[DueQueue]) -> int:
        """Returns how often one row of each of these queues, which have one mode, may be selected."""
        if self.dealing_owed:
            return 0
        mode = mode_of(queues[0].lane)
        outlets = [self._outlet(queue.outlet) for queue in queues]
        lanes = Counter([queue.lane for queue in queues])
        lane_tenants = Counter([(queue.lane, queue.tenant) for queue in queues])
        names = Counter([queue.outlet for queue in queues])
        providers = Counter([outlet.provider for outlet in outlets])
        hanging = Counter([outlet.provider for outlet in outlets if outlet.hanging])
        new = Counter([outlet.provider for outlet in outlets if outlet.new])
        rounds = self.rows_left // len(queues)
        for queue, outlet in zip(queues, outlets, strict=True):
            lane, share = self._lanes.get(queue.lane, self._no_lane), outlet.share
            sharing = providers[outlet.provider]
            rounds = min(
                rounds,
                lane.allowance(queue.tenant, lane_tenants[queue.lane, queue.tenant], lanes[queue.lane]),
                self._outlet_left(queue.outlet) // names[queue.outlet],
                share.starts(mode) // sharing,
                share.allowance(mode, queue.tenant, 1, sharing),
                share.hanging // hanging[outlet.provider] if outlet.hanging else UNLIMITED,
                share.new_allowance(mode, queue.tenant, 1, new[outlet.provider]) if outlet.new else UNLIMITED,
            )
            if rounds <= 0:
                return 0
        return rounds

    def take(self, queue: DueQueue) -> bool:
        """Selects one row of this queue if the capacity permits it. Returns True if it does."""
        if self.left(queue) <= 0:
            return False
        self.use(queue)
        return True

    def use(self, queue: DueQueue, rows: int = 1) -> None:
        """Records that rows of this queue were selected."""
        self.rows_left -= rows
        lane = self._lanes[queue.lane]
        lane.free -= rows
        lane.held[queue.tenant] = lane.held.get(queue.tenant, 0) + rows
        self._used[queue.outlet] = self._used.get(queue.outlet, 0) + rows
        outlet = self._outlet(queue.outlet)
        outlet.share.use(mode_of(queue.lane), queue.tenant, rows, owed=self._dealing_owed, new=outlet.new)
        if outlet.hanging:
            outlet.share.hanging -= rows
        self._left_at.clear()

    def owes(self, mode: Mode) -> bool:
        """Returns True if some provider owes starts to this mode."""
        return any(share.owed(mode) > 0 for share in self._providers.values())

    def _with_stand_ins(self, closed: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns (provider, tenant) pairs with those of the providers that use the same capacity."""
        sharing = [
            (name, tenant)
            for name, to in self._request.stand_ins.items()
            for provider, tenant in closed
            if to == provider
        ]
        return [pair for pair in closed if pair[0] not in self._request.stand_ins] + sharing

    def _outlet_left(self, outlet: str) -> int:
        return self._outlet(outlet).slots - self._used.get(outlet, 0)

    def _outlet(self, outlet: str) -> _Outlet:
        found = self._outlets.get(outlet)
        return self._find_outlet(outlet) if found is None else found

    def _find_outlet(self, name: str) -> _Outlet:
        request = self._request
        own, at, _ = name.partition("@")
        provider = request.stand_ins.get(own, own)
        share = self._providers.get(provider)
        if share is None:
            missing = _UNLISTED_PROVIDER if request.only_listed else _UNLIMITED_PROVIDER
            share = self._providers[provider] = _ProviderShare(missing)
        slots = request.outlet_capacity.get(name)
        if slots is None:
            slots = share.outlet_slots if at and share.outlet_slots is not None else request.outlet_slots
        hanging = name in request.hanging
        new = bool(at) and not hanging and name not in request.answering
        found = self._outlets[name] = _Outlet(provider, share, slots, hanging, new)
        return found
