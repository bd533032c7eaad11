"""Cache of the rows that this process has leased, as they were after the claim, and the results of settling.

Most settlements come from the process that claimed the row, so the row need not be read again to apply them.
The write checks the row's `changes` counter and has no effect if another process has changed the row. A row
that is not cached, or no longer current, is read from the store, so a cache miss only costs time.

Rows are cached only after their claim is committed. After a rollback, another process may lease the same row
under the same token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from operator import attrgetter

from homing.core.lifecycle.outcomes import FailureReport, Settlement, SettleResult
from homing.stores.common.codec import StoredRow

SeqAndRow = tuple[int, StoredRow]
"""A row with its seq: (seq, row)."""


_MAX_ROWS = 20_000
"""Maximum number of cached rows, far more than are in flight.

It keeps rows that are never settled from accumulating.
"""


class LeasedRows:
    """Leased rows by id. `take` removes a row, because applying a settlement modifies it."""

    def __init__(self, most: int = _MAX_ROWS) -> None:
        self._most = most
        self._rows: dict[str, SeqAndRow] = {}

    def keep(self, rows: Iterable[SeqAndRow]) -> None:
        """Adds rows. If the cache exceeds its limit, the oldest rows are dropped until it is half full."""
        self._rows.update({found[1].id: found for found in rows})
        if len(self._rows) > self._most:
            oldest = list(islice(self._rows, len(self._rows) - self._most // 2))
            for id in oldest:
                del self._rows[id]

    def clear(self) -> int:
        """Forgets all rows, and returns their highest seq, or 0 if there are none."""
        highest = max((seq for seq, _ in self._rows.values()), default=0)
        self._rows.clear()
        return highest

    def ids(self) -> frozenset[str]:
        """Returns the ids of the cached rows."""
        return frozenset(self._rows)

    def take(self, batch: Iterable[Settlement]) -> dict[str, SeqAndRow]:
        """Removes and returns the rows of these settlements, by id.

        A cached row with a different token is removed, but not returned.
        """
        taken, pop = {}, self._rows.pop
        for settlement in batch:
            id = settlement.id
            found = pop(id, None)
            if found is not None and found[1].token == settlement.token:
                taken[id] = found
        return taken


class SettleStatus(Enum):
    """The result of one settlement."""

    APPLIED = 0
    STALE = 1
    """Not applied, because the row has a newer token or has changed."""
    MISSING = 2
    """Not applied, because the notification does not exist."""


_id = attrgetter("id")

# Module-level names, because an enum member lookup is slow and this code runs for every settlement.
APPLIED, STALE, MISSING = SettleStatus.APPLIED, SettleStatus.STALE, SettleStatus.MISSING


def build_settle_result(
    batch: Sequence[Settlement], statuses: Sequence[SettleStatus], failures: Sequence[FailureReport]
) -> SettleResult:
    """Groups the ids of a batch by their result. `statuses` has one element per settlement.

    `failures` may also contain reports about notifications of other batches.
    """
    if failures:
        ids = set(map(_id, batch))
        failures = [failure for failure in failures if failure.id in ids]
    if statuses.count(APPLIED) == len(batch):
        return SettleResult(tuple(map(_id, batch)), failures=tuple(failures))

    def those(wanted: SettleStatus) -> tuple[str, ...]:
        return tuple(one.id for one, status in zip(batch, statuses, strict=True) if status is wanted)

    return SettleResult(those(APPLIED), those(STALE), those(MISSING), tuple(failures))
