"""The waiting rows of the memory store, claimed fairly between tenants and outlets."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from homing.core.lifecycle.claims import LaneCapacity
from homing.core.routing.fair_share import OutletCapacity

Taker = Callable[[str], None]
"""Leases the row with this id, so that it is no longer due when the next row is chosen."""


class Agenda:
    """Ids by time, earliest first, as a heap with lazy deletion.

    An entry is valid while `holds` returns True. An invalid entry is dropped when it reaches the top, or
    together with all others when the invalid entries outnumber the valid ones.
    """

    __slots__ = ("_heap", "_holds", "_live")

    def __init__(self, holds: Callable[[int, str], bool]) -> None:
        self._holds = holds
        self._heap: list[tuple[int, str]] = []
        self._live = 0

    def add(self, at: int, id: str) -> None:
        """Adds a row that waits for this time."""
        heappush(self._heap, (at, id))
        self._live += 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = sorted({entry for entry in self._heap if self._holds(*entry)})

    def leave(self) -> None:
        """Notes that an added row no longer waits for its time."""
        self._live -= 1

    def first(self) -> tuple[int, str] | None:
        """Returns the earliest valid (time, id), or None if there is none."""
        heap = self._heap
        while heap:
            if self._holds(*heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def within(self, after: int, until: int) -> list[tuple[int, str]]:
        """Returns all valid entries with a time in (`after`, `until`], in order. Scans every entry."""
        return sorted({e for e in self._heap if after < e[0] <= until and self._holds(*e)})


class MemoryQueue(Agenda):
    """The waiting rows of one tenant at one outlet in one lane."""

    __slots__ = ("alarm_at", "outlet", "ready", "served", "tenant")

    def __init__(self, tenant: str, outlet: str, holds: Callable[[int, str], bool]) -> None:
        super().__init__(holds)
        self.tenant = tenant
        self.outlet = outlet
        self.served = 0
        self.ready = False
        """True if the queue had a due row at the last check.

        A queue that is not ready has an alarm instead.
        """
        self.alarm_at: int | None = None


class MemoryTurns:
    """One tenant of a lane: its last turn, and its outlets that have due rows."""

    __slots__ = ("aside", "queued", "ready", "served", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.served = 0
        self.queued = False
        self.ready: list[tuple[int, str]] = []
        """Heap of (served, outlet)."""
        self.aside: list[tuple[int, str]] = []
        """Outlets with due rows but without capacity in the current claim."""


class Lane:
    """The waiting rows of one lane.

    A queue with due rows is `ready`, and its tenant waits for a turn, the least recently served tenant first.
    A queue whose rows are all due later has an alarm. So a claim touches only queues with due rows.
    """

    def __init__(self, holds_at: Callable[[str], Callable[[int, str], bool]]) -> None:
        self._holds_at = holds_at
        """Returns, for an outlet, a function that tests whether a row still waits there for a time."""
        self._queues: dict[tuple[str, str], MemoryQueue] = {}
        self._tenants: dict[str, MemoryTurns] = {}
        self._line: list[tuple[int, str]] = []
        """Heap of (served, tenant), with one entry per tenant with ready queues."""
        self._alarms: list[tuple[int, str, str]] = []
        """Heap of (due_at, tenant, outlet)."""
        self._serial = 0

    def enter(self, tenant: str, outlet: str, due_at: int, id: str) -> None:
        """Adds a waiting row."""
        queue = self._queues.get((tenant, outlet))
        if queue is None:
            queue = MemoryQueue(tenant, outlet, self._holds_at(outlet))
            self._queues[tenant, outlet] = queue
        queue.add(due_at, id)
        if not queue.ready and (queue.alarm_at is None or due_at < queue.alarm_at):
            self._set_alarm(queue, due_at)

    def leave(self, tenant: str, outlet: str) -> None:
        """Removes a waiting row."""
        self._queues[tenant, outlet].leave()

    def deal(self, capacity: LaneCapacity, outlets: OutletCapacity, now: int, take: Taker) -> None:
        """Takes one row of each tenant in turn until the capacity is used or no due row is left.

        This makes the shares equal, and tenants with more rows share the capacity that the others leave
        unused.
        """
        self._ring(now)
        left = min(capacity.slots, outlets.rows_left)
        capacity_left: dict[str, int] = {}
        while left > 0 and self._line:
            _, tenant = heappop(self._line)
            turns = self._tenants[tenant]
            turns.queued = False
            tenant_left = capacity_left.get(
                tenant, capacity.tenant_capacity.get(tenant, capacity.tenant_slots)
            )
            capacity_left[tenant] = tenant_left
            if tenant_left > 0 and self._serve(turns, outlets, now, take):
                capacity_left[tenant] -= 1
                left -= 1
                self._line_up(turns)
        for tenant in capacity_left:
            self._come_back(self._tenants[tenant])

    def next_due_at(self, outlets: OutletCapacity, now: int) -> int | None:
        """Returns the earliest due time after `now` among the outlets that have capacity.

        Ignores rows in queues whose due rows did not fit. The worker claims again as soon as it has capacity.
        """
        self._ring(now)
        closed: list[tuple[int, str, str]] = []
        found = None
        while self._alarms and found is None:
            alarm = self._alarms[0]
            due_at, tenant, outlet = alarm
            queue = self._queues[tenant, outlet]
            first = queue.first() if queue.alarm_at == due_at else None
            if first is not None and first[0] == due_at and outlets.open(outlet):
                found = due_at
                break
            heappop(self._alarms)
            if first is not None and first[0] == due_at:
                closed.append(alarm)
            elif queue.alarm_at == due_at:
                self._look(queue, now)
        for alarm in closed:
            heappush(self._alarms, alarm)
        return found

    def _serve(self, turns: MemoryTurns, outlets: OutletCapacity, now: int, take: Taker) -> bool:
        """Takes the oldest due row of the tenant's least recently served outlet that has capacity.

        Returns False if there is no such row.
        """
        while turns.ready:
            place = heappop(turns.ready)
            outlet = place[1]
            if outlets.left(outlet) <= 0:
                turns.aside.append(place)
                continue
            queue = self._queues[turns.tenant, outlet]
            queue.ready = False
            first = queue.first()
            if first is None or first[0] > now:
                self._look(queue, now)
                continue
            take(first[1])
            outlets.use(outlet)
            self._serial += 1
            queue.served = turns.served = self._serial
            self._look(queue, now)
            return True
        return False

    def _come_back(self, turns: MemoryTurns) -> None:
        """Restores the turn of a tenant whose due rows did not fit into the claim."""
        for place in turns.aside:
            heappush(turns.ready, place)
        turns.aside.clear()
        self._line_up(turns)

    def _ring(self, now: int) -> None:
        """Marks the queues that have become due as ready."""
        while self._alarms and self._alarms[0][0] <= now:
            due_at, tenant, outlet = heappop(self._alarms)
            queue = self._queues[tenant, outlet]
            if queue.alarm_at == due_at:
                self._look(queue, now)

    def _look(self, queue: MemoryQueue, now: int) -> None:
        """Marks a queue as ready if its first row is due. Otherwise sets an alarm for that row."""
        queue.alarm_at = None
        first = queue.first()
        if first is None:
            return
        if first[0] > now:
            self._set_alarm(queue, first[0])
            return
        queue.ready = True
        turns = self._tenants.get(queue.tenant)
        if turns is None:
            turns = self._tenants[queue.tenant] = MemoryTurns(queue.tenant)
        heappush(turns.ready, (queue.served, queue.outlet))
        self._line_up(turns)

    def _line_up(self, turns: MemoryTurns) -> None:
        if turns.ready and not turns.queued:
            turns.queued = True
            heappush(self._line, (turns.served, turns.tenant))

    def _set_alarm(self, queue: MemoryQueue, due_at: int) -> None:
        queue.alarm_at = due_at
        heappush(self._alarms, (due_at, queue.tenant, queue.outlet))
