"""Builds the groups of waiting notifications, for both stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from homing.core.lifecycle import views
from homing.core.notifications import Channel, Reason
from homing.core.statistics import WaitingGroup, WaitingGroups


class WaitingRow(Struct, array_like=True, frozen=True):
    """One group as both stores read it. Times are epoch milliseconds."""

    lane: str
    provider: str
    reason: str | None
    slot: int | None
    """Start of the step in which they are due. None if they are due, or if there are no steps."""
    number: int
    late: int
    oldest: int | None


def merge_steps(rows: Iterable[WaitingRow]) -> list[WaitingRow]:
    """Returns one row for each lane, provider, reason and step, in order. Queues may share a provider."""
    cells: dict[tuple[str, str, str | None, int | None], WaitingRow] = {}
    for row in rows:
        key = (row.lane, row.provider, row.reason, row.slot)
        known = cells.get(key)
        if known is not None:
            oldest = min((at for at in (row.oldest, known.oldest) if at is not None), default=None)
            cells[key] = WaitingRow(*key, row.number + known.number, row.late + known.late, oldest)
        else:
            cells[key] = row
    return sorted(cells.values(), key=lambda row: (row.slot or 0, row.lane, row.provider, row.reason or ""))


def build_waiting_groups(rows: Sequence[WaitingRow], limit: int) -> WaitingGroups:
    """Builds the groups. If more than `limit` wait, the stores have counted one more than that."""
    groups = tuple(
        WaitingGroup(
            lane=row.lane,
            channel=Channel(row.lane.rpartition(".")[2]),
            provider=row.provider,
            reason=None if row.reason is None else Reason(row.reason),
            due_from=views.optional_moment(row.slot),
            count=row.number,
            late=row.late,
            oldest_at=views.optional_moment(row.oldest),
        )
        for row in rows
    )
    return WaitingGroups(groups=groups, complete=sum(row.number for row in rows) <= limit)
