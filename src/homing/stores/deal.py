"""Who gets the room of a claim: the tenants of a lane in turn, the one served longest ago first.

Dealing one row at a time is what makes the shares equal and lets those who have more share what the others
leave. Rows are fetched in bulk ahead of the dealing, so that it costs few statements: the dealing asks for
them (it yields what it wants), and whoever drives it fetches, from whichever database, and goes on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct, field

from homing.core.model import LaneRoom
from homing.core.outlets import OutletRoom

Due = tuple[int, str, int]
"""(due_at, id, seq) of a row."""
START: Due = (-1, "", 0)
_LEAST = 8
_MOST = 4096
"""Rows fetched of one queue at once: bounds the memory, not the claim."""


class DueQueue(Struct):
    """A tenant's rows at one outlet of a lane, as far as they are due."""

    lane: str
    tenant: str
    outlet: str
    served: int
    after: Due = START
    """The last row that was fetched."""
    rows: deque[Due] = field(default_factory=deque)
    looked: bool = False
    more: bool = True
    """There may be rows beyond those that were fetched."""

    def fill(self, rows: Sequence[Due], limit: int) -> None:
        """Takes what a fetch of at most `limit` rows has found."""
        self.rows.extend(rows)
        self.looked = True
        self.more = len(rows) == limit
        if rows:
            self.after = rows[-1]


class _Turns(Struct):
    """One tenant of a lane, with its queues by (served, outlet)."""

    tenant: str
    served: int
    room: int
    queues: list[tuple[int, str]]
    took: bool = False


Wanted = tuple[Sequence[DueQueue], int]
"""Queues, and how many further rows are to be fetched into each of them (`DueQueue.fill`)."""


class Deal:
    """The dealing of one lane."""

    def __init__(
        self,
        room: LaneRoom,
        outlets: OutletRoom,
        queues: Sequence[DueQueue],
        turns: Mapping[str, int],
        serial: int,
    ) -> None:
        self._left = room.slots
        self._outlets = outlets
        self._queues = {(queue.tenant, queue.outlet): queue for queue in queues}
        self._tenants: dict[str, _Turns] = {}
        self.serial = serial
        """Counts what was dealt since the store was made: the higher, the later."""
        for queue in queues:
            if outlets.left(queue.outlet) > 0:
                self._line_up(queue, turns, room)

    def run(self) -> Generator[Wanted, None, list[Due]]:
        """Yields what it wants fetched; returns the rows dealt, in their order."""
        line = [(turns.served, turns.tenant) for turns in self._tenants.values()]
        heapify(line)
        yield from self._look_ahead(line)
        dealt: list[Due] = []
        singly = 0
        while self._left > 0 and line:
            if not singly:
                rounds = self._whole_rounds(sorted(line))
                if rounds:
                    dealt += rounds
                    line = self._still_in_line()
                    continue
                singly = len(line)
            singly -= 1
            turns = self._tenants[heappop(line)[1]]
            row = yield from self._serve(turns)
            if row is None:
                continue
            dealt.append(row)
            self._left -= 1
            turns.room -= 1
            if turns.room > 0 and turns.queues:
                heappush(line, (turns.served, turns.tenant))
        return dealt

    def looked(self) -> list[DueQueue]:
        """Queues whose rows were looked at: what is known of them may have changed."""
        return [queue for queue in self._queues.values() if queue.looked]

    def served(self) -> list[tuple[str, int]]:
        """Tenants that got something, and when."""
        return [(turns.tenant, turns.served) for turns in self._tenants.values() if turns.took]

    def _line_up(self, queue: DueQueue, served: Mapping[str, int], room: LaneRoom) -> None:
        turns = self._tenants.get(queue.tenant)
        if turns is None:
            room_here = room.tenant_room.get(queue.tenant, room.tenant_slots)
            if room_here <= 0:
                return
            turns = _Turns(queue.tenant, served.get(queue.tenant, 0), room_here, [])
            self._tenants[queue.tenant] = turns
        heappush(turns.queues, (queue.served, queue.outlet))

    def _whole_rounds(self, line: Sequence[tuple[int, str]]) -> list[Due]:
        """As many rounds at once as nobody drops out of: the same as dealing one by one, but faster."""
        tenants = [self._tenants[tenant] for _, tenant in line]
        if any(len(turns.queues) != 1 for turns in tenants):
            return []
        queues = [self._queues[turns.tenant, turns.queues[0][1]] for turns in tenants]
        sharing = Counter(_provider(queue.outlet) for queue in queues)
        rounds = min(
            self._left // len(tenants),
            min(turns.room for turns in tenants),
            min(len(queue.rows) for queue in queues),
            min(self._outlets.left(queue.outlet) // sharing[_provider(queue.outlet)] for queue in queues),
        )
        if rounds <= 0:
            return []
        last_round = self.serial + (rounds - 1) * len(tenants)
        for position, (turns, queue) in enumerate(zip(tenants, queues, strict=True), 1):
            turns.served = queue.served = last_round + position
            turns.took = True
            turns.room -= rounds
            turns.queues[0] = (queue.served, queue.outlet)
            self._outlets.use(queue.outlet, rounds)
        self.serial += rounds * len(tenants)
        self._left -= rounds * len(tenants)
        return [queue.rows.popleft() for _ in range(rounds) for queue in queues]

    def _still_in_line(self) -> list[tuple[int, str]]:
        line = [
            (turns.served, turns.tenant)
            for turns in self._tenants.values()
            if turns.room > 0 and turns.queues
        ]
        heapify(line)
        return line

    def _serve(self, turns: _Turns) -> Generator[Wanted, None, Due | None]:
        """The oldest due row of the tenant's outlet that was served longest ago."""
        while turns.queues:
            outlet = turns.queues[0][1]
            queue = self._queues[turns.tenant, outlet]
            if self._outlets.left(outlet) <= 0 or not (yield from self._has_row(queue, turns.room)):
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

    def _has_row(self, queue: DueQueue, room: int) -> Generator[Wanted, None, bool]:
        if not queue.rows and queue.more:
            tenants = max(1, len(self._tenants))
            share = max(_LEAST, -(-self._left // tenants), self._left // 4)
            yield (queue,), min(share, self._left, room, self._outlets.left(queue.outlet), _MOST)
        return bool(queue.rows)

    def _look_ahead(self, line: Sequence[tuple[int, str]]) -> Generator[Wanted, None, None]:
        """Wants, in one statement, about what the tenants that come first will get."""
        if self._left <= 0 or not line:
            return
        first = [self._tenants[tenant] for _, tenant in sorted(line)[: self._left]]
        queues = [self._queues[turns.tenant, outlet] for turns in first for _, outlet in turns.queues]
        queues = queues[: max(self._left, 1)]
        share = -(-self._left // len(queues))
        if len(queues) > 1:
            share = min(self._left, max(_LEAST, share + share // 4))
        yield queues, min(share, _MOST)


def _provider(outlet: str) -> str:
    """Whose room the outlet draws on besides its own."""
    return outlet.partition("@")[0]
