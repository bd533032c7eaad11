"""The rows that this process has leased, as its claims left them.

A settlement mostly comes from the process that claimed, and then nothing has to be read again to apply it:
the row is as it was, unless its `changes` say otherwise. Whoever uses a row from here makes sure of that when
it writes. What is not here, or no longer right, is read from the store, so forgetting costs time only. Rows
are kept only once their claim is committed: what was rolled back, another process may lease otherwise and
under the same token.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from homing.core.model import Settlement
from homing.stores.codec import StoredRow

Found = tuple[int, StoredRow]
"""(seq, row)."""

_MOST = 20_000
"""Rows kept: more than a process ever has under way, or what it never settled would add up."""


class Held:
    """Rows by id. A row is given out once: whoever applies a settlement changes it."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._rows: dict[str, Found] = {}

    def keep(self, rows: Iterable[Found]) -> None:
        self._rows.update({found[1].id: found for found in rows})
        if len(self._rows) > self._most:
            oldest = list(islice(self._rows, len(self._rows) - self._most // 2))
            for id in oldest:
                del self._rows[id]

    def take(self, batch: Iterable[Settlement]) -> dict[str, Found]:
        """The rows that these settlements are about, by id; only those leased with the same token."""
        taken, pop = {}, self._rows.pop
        for settlement in batch:
            id = settlement.id
            found = pop(id, None)
            if found is not None and found[1].token == settlement.token:
                taken[id] = found
        return taken
