"""What waits: by due time, so that a wave of retries is visible before it arrives, and by lane and error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from markupsafe import Markup
from msgspec import Struct
from starlette.responses import Response

from homing.charts.small import Bar, draw_bars, draw_sparkline
from homing.core.notifications import Status
from homing.core.statistics import WaitingGroup, WaitingGroups
from homing.dashboard.rendering import trust
from homing.dashboard.visits import Screens, Visit

screens = Screens()

_STEP = timedelta(minutes=30)

_SPAN = timedelta(hours=24)

_COUNT_WITHIN_S = 0.2
"""Time in which all that waits must be counted. After it, only `_COUNTED` notifications are."""

_COUNTED = 10_000

_GROUPED = 10_000
"""Maximum number of notifications whose errors are grouped, the newest ones."""

_ROWS = 20
"""Maximum number of rows by lane, provider and reason."""


class LaneRow(Struct, frozen=True):
    """What waits in one lane for one provider and reason."""

    lane: str
    provider: str
    reason: str
    """Why the engine holds them. Empty if they only wait for their time."""
    count: int
    due_now: int
    line: Markup
    """How many are due in each half hour of the next day, as a sparkline. Empty if none is."""


@screens.get("waiting")
async def show_waiting(visit: Visit) -> Response:
    """Shows what waits."""
    return visit.page("waiting.html", part=await read_waiting(visit))


@screens.live("waiting")
async def read_waiting(visit: Visit) -> str:
    """Returns the part of the screen that changes."""
    found = await _count(visit)
    return visit.html(
        "waiting_part.html",
        counts=await visit.api.queue_counts(),
        retrying=await visit.api.waiting(limit=50, by="last-attempt"),
        due=await visit.api.select_pending(50),
        errors=await visit.api.error_groups(20, status=Status.RETRYING, newest=_GROUPED),
        grouped=_GROUPED,
        lanes=_by_lane(found.groups, visit.now),
        complete=found.complete,
        chart=trust(_draw(found.groups, visit.now)) if found.groups else None,
    )


async def _count(visit: Visit) -> WaitingGroups:
    """Counts what waits. If that takes too long, counts only what is due first."""
    try:
        async with asyncio.timeout(_COUNT_WITHIN_S):
            return await visit.api.waiting_histogram(_STEP, _SPAN)
    except TimeoutError:
        return await visit.api.waiting_histogram(_STEP, _SPAN, most=_COUNTED)


def _steps(now: datetime) -> list[datetime]:
    """Returns the starts of the half hours of the next day."""
    step_s = _STEP.total_seconds()
    start = datetime.fromtimestamp(now.timestamp() // step_s * step_s, now.tzinfo)
    return [start + _STEP * number for number in range(int(_SPAN / _STEP) + 1)]


def _by_lane(groups: Iterable[WaitingGroup], now: datetime) -> list[LaneRow]:
    """Returns what waits by lane, provider and reason, the most first."""
    counted: dict[tuple[str, str, str], Counter[datetime | None]] = {}
    for one in groups:
        key = (one.lane, one.provider, one.reason.value if one.reason else "")
        counted.setdefault(key, Counter())[one.due_from] += one.count
    steps, rows = _steps(now), list[LaneRow]()
    for (lane, provider, reason), due in counted.items():
        values = [float(due[at]) for at in steps]
        title = f"{sum(values):,.0f} due in the next 24 hours"
        if any(values):
            most = max(range(len(steps)), key=values.__getitem__)
            title += f", most of them at {steps[most]:%H:%M} UTC: {values[most]:,.0f}"
        line = trust(draw_sparkline(values, title=title, width=240)) if any(values) else Markup()
        rows.append(LaneRow(lane, provider, reason, due.total(), due[None], line))
    return sorted(rows, key=lambda row: -row.count)[:_ROWS]


def _draw(groups: Iterable[WaitingGroup], now: datetime) -> str:
    """Draws a bar per half hour: first what is due now, then the next day, then all that is later."""
    free: Counter[datetime | None] = Counter()
    held: Counter[datetime | None] = Counter()
    for one in groups:
        (free if one.reason is None else held)[one.due_from] += one.count
    steps = _steps(now)
    known: set[datetime | None] = {None, *steps}
    later = sum(count for at, count in (*free.items(), *held.items()) if at not in known)
    bars = [Bar(f"due now: {free[None] + held[None]:,}", (free[None], held[None]), "now", late=True)]
    for number, at in enumerate(steps):
        tick = number > 2 and at.minute == 0 and at.hour % 4 == 0
        total = free[at] + held[at]
        label = f"{at:%H:%M} to {at + _STEP:%H:%M} UTC: {total:,}"
        bars.append(Bar(label, (free[at], held[at]), f"{at:%H:%M}" if tick else ""))
    bars.append(Bar(f"later: {later:,}", (later, 0), "later"))
    return draw_bars(bars, title="notifications that wait, by due time in the next 24 hours", width=1200)
