"""Maps queues (lane, tenant, outlet) to their numbers in the database and back, with a cache per process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from homing.stores.postgres.statements import PostgresTransaction

QueueKey = tuple[str, str, str]
"""Key of a queue: (lane, tenant, outlet)."""

_MAX_CACHED_QUEUES = 100_000
"""When the cache reaches this size, it is emptied."""
_FIND = """
SELECT q.id, q.lane, q.tenant, q.outlet
FROM unnest($1::text[], $2::text[], $3::text[]) AS w(lane, tenant, outlet)
JOIN homing.queues AS q ON q.lane = w.lane AND q.tenant = w.tenant AND q.outlet = w.outlet
"""
_ADD = """
INSERT INTO homing.queues (lane, tenant, outlet)
SELECT w.lane, w.tenant, w.outlet FROM unnest($1::text[], $2::text[], $3::text[]) AS w(lane, tenant, outlet)
ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
"""
_NAMED = "SELECT id, lane, tenant, outlet FROM homing.queues WHERE id = ANY($1::integer[])"


class QueueNumbers:
    """The numbers of queues. A number is never changed or reused, unless the database's history goes back.

    So every statement that writes a number compares it with the database (see `BatchStatement`). If it is
    another one there, the cache is emptied and the transaction begun again.

    A queue created by a transaction is not valid elsewhere until the commit. `PostgresTransaction.made` holds
    it until then, and it is added to the cache afterwards.
    """

    def __init__(self) -> None:
        self._numbers: dict[QueueKey, int] = {}
        self._names: dict[int, QueueKey] = {}

    def unknown(self, queues: Iterable[QueueKey]) -> list[QueueKey]:
        """Returns those of the queues that are not cached, sorted and each once."""
        return sorted({queue for queue in queues if queue not in self._numbers})

    def number(self, queue: QueueKey) -> int:
        return self._numbers[queue]

    def name(self, number: int) -> QueueKey:
        return self._names[number]

    def clear(self) -> None:
        """Empties the cache."""
        self._numbers.clear()
        self._names.clear()

    def learn(self, number: int, queue: QueueKey) -> None:
        """Adds a committed queue to the cache."""
        known_number, known_name = self._numbers.get(queue), self._names.get(number)
        if known_number == number and known_name == queue:
            return
        is_new = known_number is None and known_name is None
        if len(self._names) >= _MAX_CACHED_QUEUES or not is_new:
            self.clear()
        self._numbers[queue] = number
        self._names[number] = queue

    async def find(self, tx: PostgresTransaction, queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Returns the numbers of these queues, to be written. Creates those that do not exist yet."""
        wanted = list(queues)
        found = {queue: self._numbers[queue] for queue in wanted if queue in self._numbers}
        found |= {queue: tx.made[queue] for queue in wanted if queue in tx.made}
        missing = [queue for queue in self.unknown(wanted) if queue not in found]
        if missing:
            found |= await self._look_up(tx, missing)
            new = [queue for queue in missing if queue not in found]
            if new:
                await tx.rows(_ADD, *split_into_columns(new))
                added = await tx.rows(_FIND, *split_into_columns(new))
                tx.made |= {(lane, tenant, outlet): number for number, lane, tenant, outlet in added}
                found |= {queue: tx.made[queue] for queue in new}
        if tx.checks_queues:
            tx.used_queues |= {number: queue for queue, number in found.items()}
        return found

    async def names(self, tx: PostgresTransaction, numbers: Iterable[int]) -> dict[int, QueueKey]:
        """Returns the queues with these numbers, by number."""
        wanted = set(numbers)
        missing = sorted(number for number in wanted if number not in self._names)
        found = {number: self._names[number] for number in wanted if number in self._names}
        if missing:
            for number, lane, tenant, outlet in await tx.rows(_NAMED, missing):
                self.learn(number, (lane, tenant, outlet))
                found[number] = (lane, tenant, outlet)
        return found

    async def _look_up(self, tx: PostgresTransaction, missing: list[QueueKey]) -> dict[QueueKey, int]:
        found = {}
        for number, lane, tenant, outlet in await tx.rows(_FIND, *split_into_columns(missing)):
            self.learn(number, (lane, tenant, outlet))
            found[lane, tenant, outlet] = number
        return found


def split_into_columns(queues: list[QueueKey]) -> tuple[list[str], list[str], list[str]]:
    """Returns the lanes, the tenants and the outlets of these queues."""
    return [q[0] for q in queues], [q[1] for q in queues], [q[2] for q in queues]
