"""The result of each settlement in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import attrgetter

from homing.core.model import Settlement, SettleResult


class Fate(Enum):
    """The result of one settlement."""

    APPLIED = 0
    STALE = 1
    """Not applied, because the row has a newer token or has changed."""
    MISSING = 2
    """Not applied, because the notification does not exist."""


_id = attrgetter("id")
# Module-level names, because an enum member lookup is slow and this code runs for every settlement.
APPLIED, STALE, MISSING = Fate.APPLIED, Fate.STALE, Fate.MISSING


def result_of(batch: Sequence[Settlement], fates: Sequence[Fate]) -> SettleResult:
    """Groups the ids of a batch by their result. `fates` has one element per settlement."""
    if fates.count(APPLIED) == len(batch):
        return SettleResult(tuple(map(_id, batch)))

    def those(wanted: Fate) -> tuple[str, ...]:
        return tuple(one.id for one, fate in zip(batch, fates, strict=True) if fate is wanted)

    return SettleResult(those(APPLIED), those(STALE), those(MISSING))
