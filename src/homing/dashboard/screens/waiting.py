"""What waits: by due time, so that a wave of retries is visible before it arrives, and by lane and error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from starlette.responses import Response

from homing.charts.small import Bar, draw_bars
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


@screens.get("waiting")
async def show_waiting(visit: Visit) -> Response:
    """Shows what waits."""
    return visit.page("waiting.html", part=await read_waiting(visit))


@screens.live("waiting")
async def read_waiting(visit: Visit) -> str:
    """Returns the part of the screen that changes."""
    found = await _count(visit)
    counted: Counter[tuple[str, str, str]] = Counter()
    for one in found.groups:
        counted[one.lane, one.provider, one.reason.value if one.reason else "–"] += one.count
    return visit.html(
        "waiting_part.html",
        counts=await visit.api.queue_counts(),
        retrying=await visit.api.waiting(limit=50, by="last-attempt"),
        due=await visit.api.select_pending(50),
        errors=await visit.api.error_groups(20, status=Status.RETRYING, newest=_GROUPED),
        grouped=_GROUPED,
        lanes=counted.most_common(20),
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


def _draw(groups: Iterable[WaitingGroup], now: datetime) -> str:
    """Draws a bar per half hour: first what is due now, then the next day, then all that is later."""
    first: Counter[datetime | None] = Counter()
    retries: Counter[datetime | None] = Counter()
    for one in groups:
        start = one.due_from
        (first if one.reason is None else retries)[start] += one.count
    start = datetime.fromtimestamp(
        now.timestamp() // _STEP.total_seconds() * _STEP.total_seconds(), now.tzinfo
    )
    steps = [start + _STEP * number for number in range(int(_SPAN / _STEP) + 1)]
    known: set[datetime | None] = {None, *steps}
    later = sum(count for at, count in (*first.items(), *retries.items()) if at not in known)
    bars = [Bar(f"due now: {first[None] + retries[None]:,}", (first[None], retries[None]), "now", late=True)]
    for number, at in enumerate(steps):
        total = first[at] + retries[at]
        label = f"{at:%H:%M} to {at + _STEP:%H:%M} UTC: {total:,}"
        bars.append(Bar(label, (first[at], retries[at]), f"{at:%H:%M}" if number % 8 == 4 else ""))
    bars.append(Bar(f"later: {later:,}", (later, 0), "later"))
    return draw_bars(bars, title="notifications that wait, by due time in the next 24 hours", width=1200)
