"""What became of each settlement of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import attrgetter

from homing.core.model import Settlement, SettleResult


class Fate(Enum):
    """What became of a settlement."""

    APPLIED = 0
    STALE = 1
    MISSING = 2


_id = attrgetter("id")
# Looked up once, as in `core.rows`.
APPLIED, STALE, MISSING = Fate.APPLIED, Fate.STALE, Fate.MISSING


def result_of(batch: Sequence[Settlement], fates: Sequence[Fate]) -> SettleResult:
    """Ids by fate."""
    if fates.count(APPLIED) == len(batch):
        return SettleResult(tuple(map(_id, batch)))

    def those(wanted: Fate) -> tuple[str, ...]:
        return tuple(one.id for one, fate in zip(batch, fates, strict=True) if fate is wanted)

    return SettleResult(those(APPLIED), those(STALE), those(MISSING))
