"""Shares the capacity of a claim fairly: the tenants of a lane take turns, the least recently served first.

Each turn takes one row. This makes the shares equal, and tenants with more rows share the capacity that the
others leave unused. To need few statements, rows are fetched in bulk ahead of the turns: the generator
`FairShare.run` yields requests for rows, and the store that runs the generator fetches the rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct, field

from homing.core.lifecycle.claims import LaneCapacity

DueRow = tuple[int, str, int]
"""(due time, id, the store's row number) of a row."""

BEFORE_FIRST_ROW: DueRow = (-1, "", 0)
"""Position before the first row of a queue."""

_NO_LIMIT = 2**62

_MIN_FETCH_ROWS = 8

_MAX_FETCH_ROWS = 4096
"""Maximum number of rows per queue and fetch, which bounds the memory. A claim can fetch several times."""


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

    def fill(self, rows: Sequence[DueRow], limit: int) -> None:
        """Adds the result of a fetch of at most `limit` rows."""
        self.rows.extend(rows)
        self.looked = True
        self.more = len(rows) == limit
        if rows:
            self.after = rows[-1]


class _TenantTurns(Struct):
    """State of one tenant of a lane: its queues, its capacity and its last turn."""

    tenant: str
    served: int
    """Serial number of the tenant's last turn."""
    capacity: int
    """Number of rows that the tenant may still get in this claim."""
    queues: list[tuple[int, str]]
    """Heap of the tenant's queues as (served, outlet)."""
    took: bool = False
    """True if the tenant got a row in this claim."""


FetchRequest = tuple[Sequence[DueQueue], int]
"""Queues, and the maximum number of rows to fetch into each of them with `DueQueue.fill`."""


class FairShare:
    """Shares the capacity of one lane between its tenants, for one claim."""

    def __init__(
        self,
        capacity: LaneCapacity,
        outlets: OutletCapacity,
        queues: Sequence[DueQueue],
        turns: Mapping[str, int],
        serial: int,
    ) -> None:
        """Starts from the serial number of each tenant's last turn and the last serial number in use."""
        self._left = min(capacity.slots, outlets.rows_left)
        self._outlets = outlets
        self._queues = {(queue.tenant, queue.outlet): queue for queue in queues}
        self._tenants: dict[str, _TenantTurns] = {}
        self.serial = serial
        """Serial number of the last turn. It increases by one per row, over all claims."""
        for queue in queues:
            if outlets.left(queue.outlet) > 0:
                self._add_queue(queue, turns, capacity)

    def run(self) -> Generator[FetchRequest, None, list[DueRow]]:
        """Yields requests for rows, and returns the chosen rows in the order of their turns."""
        waiting = [(turns.served, turns.tenant) for turns in self._tenants.values()]
        heapify(waiting)
        yield from self._fetch_ahead(waiting)
        dealt: list[DueRow] = []
        single_turns = 0  # turns to take one by one before whole rounds are tried again
        while self._left > 0 and waiting:
            if not single_turns:
                rounds = self._deal_whole_rounds(sorted(waiting))
                if rounds:
                    dealt += rounds
                    waiting = self._waiting_tenants()
                    continue
                single_turns = len(waiting)
            single_turns -= 1
            turns = self._tenants[heappop(waiting)[1]]
            row = yield from self._serve(turns)
            if row is None:
                continue
            dealt.append(row)
            self._left -= 1
            turns.capacity -= 1
            if turns.capacity > 0 and turns.queues:
                heappush(waiting, (turns.served, turns.tenant))
        return dealt

    def looked(self) -> list[DueQueue]:
        """Returns the queues from which rows were fetched.

        The `served` and the next due time of these queues may have changed.
        """
        return [queue for queue in self._queues.values() if queue.looked]

    def served(self) -> list[tuple[str, int]]:
        """Returns (tenant, serial number of its last turn) for each tenant that got a row."""
        return [(turns.tenant, turns.served) for turns in self._tenants.values() if turns.took]

    def _add_queue(self, queue: DueQueue, served: Mapping[str, int], capacity: LaneCapacity) -> None:
        turns = self._tenants.get(queue.tenant)
        if turns is None:
            tenant_capacity = capacity.tenant_capacity.get(queue.tenant, capacity.tenant_slots)
            if tenant_capacity <= 0:
                return
            turns = _TenantTurns(queue.tenant, served.get(queue.tenant, 0), tenant_capacity, [])
            self._tenants[queue.tenant] = turns
        heappush(turns.queues, (queue.served, queue.outlet))

    def _deal_whole_rounds(self, waiting: Sequence[tuple[int, str]]) -> list[DueRow]:
        """Deals as many full rounds as possible in which every tenant gets a row.

        The result equals that of single turns and is computed faster. Returns no rows if some tenant has
        several queues, or if no full round is possible.
        """
        tenants = [self._tenants[tenant] for _, tenant in waiting]
        if any(len(turns.queues) != 1 for turns in tenants):
            return []
        queues = [self._queues[turns.tenant, turns.queues[0][1]] for turns in tenants]
        sharing = Counter(_provider(queue.outlet) for queue in queues)
        rounds = min(
            self._left // len(tenants),
            min(turns.capacity for turns in tenants),
            min(len(queue.rows) for queue in queues),
            min(self._outlets.left(queue.outlet) // sharing[_provider(queue.outlet)] for queue in queues),
        )
        if rounds <= 0:
            return []
        last_round = self.serial + (rounds - 1) * len(tenants)
        for position, (turns, queue) in enumerate(zip(tenants, queues, strict=True), 1):
            turns.served = queue.served = last_round + position
            turns.took = True
            turns.capacity -= rounds
            turns.queues[0] = (queue.served, queue.outlet)
            self._outlets.use(queue.outlet, rounds)
        self.serial += rounds * len(tenants)
        self._left -= rounds * len(tenants)
        return [queue.rows.popleft() for _ in range(rounds) for queue in queues]

    def _waiting_tenants(self) -> list[tuple[int, str]]:
        waiting = [
            (turns.served, turns.tenant)
            for turns in self._tenants.values()
            if turns.capacity > 0 and turns.queues
        ]
        heapify(waiting)
        return waiting

    def _serve(self, turns: _TenantTurns) -> Generator[FetchRequest, None, DueRow | None]:
        """Returns the oldest due row of the tenant's least recently served outlet, or None if none is due."""
        while turns.queues:
            outlet = turns.queues[0][1]
            queue = self._queues[turns.tenant, outlet]
            if self._outlets.left(outlet) <= 0 or not (yield from self._has_row(queue, turns.capacity)):
                heappop(turns.queues)
                continue
            row = queue.rows.popleft()
            self._outlets.use(outlet)
            self.serial += 1
            queue.served = turns.served = self.serial
            turns.took = True
            heappop(turns.queues)
            heappush(turns.queues, (queue.served, outlet))
            return row
        return None

    def _has_row(self, queue: DueQueue, capacity: int) -> Generator[FetchRequest, None, bool]:
        if not queue.rows and queue.more:
            tenants = max(1, len(self._tenants))
            share = max(_MIN_FETCH_ROWS, -(-self._left // tenants), self._left // 4)
            yield (
                (queue,),
                min(share, self._left, capacity, self._outlets.left(queue.outlet), _MAX_FETCH_ROWS),
            )
        return bool(queue.rows)

    def _fetch_ahead(self, waiting: Sequence[tuple[int, str]]) -> Generator[FetchRequest, None, None]:
        """Yields one fetch of about as many rows as the first tenants will get."""
        if self._left <= 0 or not waiting:
            return
        first = [self._tenants[tenant] for _, tenant in sorted(waiting)[: self._left]]
        queues = [self._queues[turns.tenant, outlet] for turns in first for _, outlet in turns.queues]
        queues = queues[: max(self._left, 1)]
        share = -(-self._left // len(queues))
        if len(queues) > 1:
            share = min(self._left, max(_MIN_FETCH_ROWS, share + share // 4))
        yield queues, min(share, _MAX_FETCH_ROWS)


def _provider(outlet: str) -> str:
    """Returns the provider of an outlet. The outlet uses the provider's capacity in addition to its own."""
    return outlet.partition("@")[0]


class OutletCapacity:
    """Free slots by outlet and in total, over all lanes of a claim. The lanes are served one after the other.

    An outlet `provider@host` has slots of its own and also uses those of its provider, if the claim lists
    them. So a provider's limit applies to all its hosts together.
    """

    def __init__(self, capacity: Mapping[str, int], slots: int, limit: int | None = None) -> None:
        self.rows_left = _NO_LIMIT if limit is None else limit
        """Number of rows that the claim may still take, over all lanes."""
        self._given = capacity
        self._slots = slots
        self._used: dict[str, int] = {}
        self.closed = [outlet for outlet, left in capacity.items() if left <= 0]
        """Outlets and providers without a free slot. A provider in this list closes all its hosts."""

    def open(self, outlet: str) -> bool:
        """Returns True if this outlet had free slots at the start of the claim."""
        provider = outlet.partition("@")[0]
        return self._given.get(outlet, self._slots) > 0 and self._given.get(provider, 1) > 0

    def left(self, outlet: str) -> int:
        """Returns the number of slots of this outlet that are still free."""
        provider, host, _ = outlet.partition("@")
        here = self._given.get(outlet, self._slots) - self._used.get(outlet, 0)
        if not host or provider not in self._given:
            return here
        return min(here, self._given[provider] - self._used.get(provider, 0))

    def use(self, outlet: str, rows: int = 1) -> None:
        """Records that rows were selected for this outlet."""
        self.rows_left -= rows
        provider, host, _ = outlet.partition("@")
        self._used[outlet] = self._used.get(outlet, 0) + rows
        if host:
            self._used[provider] = self._used.get(provider, 0) + rows
