"""The schedule of the memory store: queues, leases, deadlines and ages.

Each is a heap with lazy deletion (`Agenda`), so only `silent` has to scan a whole heap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from homing.core.lifecycle.claims import ClaimRequest
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.rows import CauseRecord, Row
from homing.core.lifecycle.states import FINAL
from homing.core.notifications import Mode, Status
from homing.core.ports.stores import Retention
from homing.core.routing.fair_share import OutletCapacity
from homing.stores.memory_lanes import Agenda, Lane, Taker


class Kept(Struct):
    """A stored notification. The message is encoded, so that no reader can change it."""

    row: Row
    message: bytes
    attempts: tuple[AttemptRecord, ...] = ()
    ranks: tuple[int, ...] = ()
    """The highest receipt rank of each attempt."""
    causes: tuple[CauseRecord, ...] = ()


class Place(Struct, frozen=True, gc=False):
    """The position of a row in the schedule. Comparing it before and after a change shows what to move."""

    outlet: str = ""
    due_at: int | None = None
    deadline_at: int | None = None
    lease_until: int | None = None
    retrying_from: int | None = None
    resting: Status | None = None


NOWHERE = Place()
_RESTING = FINAL | {Status.IN_DOUBT}


def place_of(row: Row) -> Place:
    status = row.status
    return Place(
        row.outlet,
        row.due_at,
        row.deadline_at if row.mode is not Mode.SYNCHRONOUS else None,
        row.lease_until,
        row.last_attempt_at if status is Status.RETRYING else None,
        status if status in _RESTING else None,
    )


class Schedule:
    """Orders the rows by their next due time, lease end, deadline or age."""

    def __init__(self, kept: Mapping[str, Kept]) -> None:
        self._kept = kept
        self._lanes: dict[str, Lane] = {}
        self._leases = self._agenda(lambda row: row.lease_until)
        self._deadlines = self._agenda(lambda row: row.deadline_at)
        self._retrying: dict[str, Agenda] = {}
        self._ages = {status: self._agenda(_aged_as(status)) for status in Status if status in _RESTING}

    def moved(self, row: Row, was: Place) -> None:
        """Moves a changed row. `was` is its position before the change."""
        place = place_of(row)
        if place.due_at != was.due_at or place.outlet != was.outlet:
            if was.due_at is not None:
                self._lanes[row.lane].leave(row.tenant, was.outlet)
            if place.due_at is not None:
                self._lane(row.lane).enter(row.tenant, row.outlet, place.due_at, row.id)
        _shift(self._deadlines, was.deadline_at, place.deadline_at, row.id)
        _shift(self._leases, was.lease_until, place.lease_until, row.id)
        if place.retrying_from != was.retrying_from:
            _shift(self._retries(row.tenant), was.retrying_from, place.retrying_from, row.id)
        if was.resting is not None:
            self._ages[was.resting].leave()
        if place.resting is not None:
            self._ages[place.resting].add(row.updated_at, row.id)

    def removed(self, was: Place) -> None:
        """Removes a deleted final row."""
        assert was.resting in FINAL, "only rows in a final status are removed"
        self._ages[was.resting].leave()

    def deal(self, request: ClaimRequest, now: int, take: Taker) -> int | None:
        """Calls `take` for each row that the claim gets and returns the next due time."""
        outlets = OutletCapacity(request.outlet_capacity, request.outlet_slots, request.limit)
        lanes = [
            (self._lanes[name], capacity) for name, capacity in request.lanes.items() if name in self._lanes
        ]
        for lane, capacity in lanes:
            lane.deal(capacity, outlets, now, take)
        times = [lane.next_due_at(outlets, now) for lane, _ in lanes]
        return min((at for at in times if at is not None), default=None)

    def overdue(self, now: int) -> str | None:
        """Returns the id of the row whose lease or deadline expired first, or None if none has expired."""
        lease, deadline = self._leases.first(), self._deadlines.first()
        first = min(entry for entry in (lease, deadline) if entry) if lease or deadline else None
        return first[1] if first and first[0] <= now else None

    def oldest_retry_at(self, tenant: str | None) -> int | None:
        """Returns the time of the oldest last attempt among a tenant's retries. None means all tenants."""
        if tenant is None:
            agendas = list(self._retrying.values())
        else:
            agendas = [self._retrying[tenant]] if tenant in self._retrying else []
        return min((first[0] for agenda in agendas if (first := agenda.first())), default=None)

    def silent(self, status: Status, after: int, until: int) -> Iterator[str]:
        """Yields the ids of rows with this status that last changed in (`after`, `until`], oldest first."""
        if status in self._ages:
            yield from (id for _, id in self._ages[status].within(after, until))

    def past_retention(self, retention: Retention, now: int) -> Iterator[str]:
        """Yields the ids of final rows past their retention, status by status, the oldest first.

        The caller must remove each row before it requests the next one.
        """
        for status, agenda in self._ages.items():
            if status is Status.IN_DOUBT:
                continue  # only a receipt, a status lookup or an operator ends this status
            while (first := agenda.first()) and first[0] <= now - retention.age_ms(status):
                yield first[1]

    def _lane(self, name: str) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(self._waits_at)
        return lane

    def _waits_at(self, outlet: str) -> Callable[[int, str], bool]:
        find = self._kept.get

        def holds(at: int, id: str) -> bool:
            kept = find(id)
            return kept is not None and kept.row.due_at == at and kept.row.outlet == outlet

        return holds

    def _retries(self, tenant: str) -> Agenda:
        agenda = self._retrying.get(tenant)
        if agenda is None:
            agenda = self._agenda(lambda row: row.last_attempt_at if row.status is Status.RETRYING else None)
            self._retrying[tenant] = agenda
        return agenda

    def _agenda(self, time_of: Callable[[Row], int | None]) -> Agenda:
        def holds(at: int, id: str) -> bool:
            kept = self._kept.get(id)
            return kept is not None and time_of(kept.row) == at

        return Agenda(holds)


def _aged_as(status: Status) -> Callable[[Row], int | None]:
    return lambda row: row.updated_at if row.status is status else None


def _shift(agenda: Agenda, was: int | None, at: int | None, id: str) -> None:
    if at == was:
        return
    if was is not None:
        agenda.leave()
    if at is not None:
        agenda.add(at, id)
