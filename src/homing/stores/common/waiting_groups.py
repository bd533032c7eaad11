"""Builds the groups of waiting notifications, for both stores."""

from __future__ import annotations

from collections.abc import Sequence

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
