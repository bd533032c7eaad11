"""The first screen: what is wrong, since when, how many are affected, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from markupsafe import Markup
from starlette.responses import Response

from homing.charts.small import draw_sparkline
from homing.core.access.scopes import Scope
from homing.core.errors import NotFound
from homing.core.lifecycle.jobs import JobStatus
from homing.core.overview import ChannelNow, OpenAlert, Overview, OverviewPoint, time_of_day
from homing.core.routing.breaker import Phase
from homing.dashboard.rendering import mark_clock_times, show_duration, trust
from homing.dashboard.visits import Screens, Visit

screens = Screens()

_LINKS = {
    "RetryBacklog": "waiting",
    "OldestRetry": "waiting",
    "LatencyGoal": "waiting",
    "BreakerChanged": "providers",
    "BreakerForced": "providers",
    "NoProviderLeft": "providers",
    "ProviderFault": "providers",
    "NoLiveWorker": "system",
    "SinkEventsParked": "system",
    "SinkLag": "system",
    "SinkUnseen": "system",
    "FailureRate": "dead-letters",
    "DeadLettersGrowing": "dead-letters",
    "UnacknowledgedDeadLetters": "dead-letters",
    "OldestDeadLetter": "dead-letters",
}
"""Name of an alert → screen on which something can be done about it."""

_LEVELS = {"ok": ("good", "All well"), "warning": ("warn", "Attention"), "problem": ("bad", "Trouble")}


@screens.get("now")
async def show_now(visit: Visit) -> Response:
    """Shows the state of the tenant's delivery."""
    return visit.page("now.html", part=await read_now(visit))


@screens.live("now")
async def read_now(visit: Visit) -> str:
    """Returns the part of the screen that changes."""
    overview = await visit.api.overview()
    health = await visit.api.health()
    jobs = await visit.engine.jobs.list(visit.caller.tenant)
    workers = await visit.engine.workers()
    alerts = [check for check in health.thresholds if check.exceeded]
    operator = visit.may(Scope.ADMIN) and visit.caller.tenant == visit.engine.tenant
    raised = await visit.engine.open_alerts() if operator else ()
    return visit.html(
        "now_part.html",
        overview=overview,
        verdict=_verdict(overview),
        level=_LEVELS[overview.level.value],
        lines={one.channel: _draw(one) for one in overview.channels},
        failed={one.channel: sum(point.failed for point in one.last_day) for one in overview.channels},
        late_ms={one.channel: _oldest_ms(one, overview.now) for one in overview.channels},
        links=_LINKS,
        alerts=alerts,
        operator=operator,
        since={one.name: one.since for one in raised},
        raised=[
            one
            for one in raised
            if one.name not in {check.name for check in alerts} and _is_current(one, overview)
        ],
        idle=[one.channel for one in overview.channels if _is_idle(one)],
        plain=_plain,
        counts=await visit.api.queue_counts(),
        providers=await visit.engine.providers(),
        workers=sorted(workers, key=lambda one: (one.state.value != "live", one.name)),
        jobs=[job for job in jobs if job.status is JobStatus.RUNNING],
    )


@screens.post("demo/{name}", Scope.ADMIN)
async def start_demo_event(visit: Visit, name: str, form: dict[str, str]) -> Response:
    """Starts an event of the demo, such as the outage."""
    events = visit.tools.demo or {}
    if name not in events:
        raise NotFound(f"there is no event {name!r} in this process")
    await events[name]()
    return visit.go("now", done=name)


def _verdict(overview: Overview) -> Markup:
    """Returns the verdict with times that can be shown as local time."""
    troubles = (trouble for one in overview.channels for trouble in one.troubles)
    since = {time_of_day(one.since, overview.now): one.since for one in troubles if one.since is not None}
    return mark_clock_times(overview.verdict, since)


def _is_current(alert: OpenAlert, overview: Overview) -> bool:
    """Returns False for the alert that a channel has no provider if it has one again, or is not used."""
    if alert.name != "NoProviderLeft":
        return True
    return any(
        one.channel == alert.details.get("channel") and one.is_used and one.has_no_provider(overview.now)
        for one in overview.channels
    )


def _is_idle(one: ChannelNow) -> bool:
    """Returns True if a channel has nothing to report. A breaker that is forced closed is no trouble."""
    troubled = any(trouble.phase is not Phase.CLOSED for trouble in one.troubles)
    return not (one.waiting or troubled or any(point.accepted or point.sent for point in one.last_day))


def _plain(message: str) -> str:
    """Returns a message without the command that it names. The screen has a link instead."""
    for end in ("; see `", ": `", "; check the workers"):
        message = message.partition(end)[0]
    return message


def _oldest_ms(one: ChannelNow, now: datetime) -> float | None:
    """Returns for how long the oldest late notification has been due, in whole seconds."""
    return None if one.oldest_at is None else (now - one.oldest_at) // timedelta(seconds=1) * 1000


def _draw(one: ChannelNow) -> dict[str, Markup]:
    """Returns the lines of the last hour and day: what was sent, its success, and how late it was."""
    found = {}
    for span, points in (("hour", one.last_hour), ("day", one.last_day)):
        sent, failed = sum(point.sent for point in points), sum(point.failed for point in points)
        late = max((point.p99_late_ms or 0 for point in points), default=0)
        found[f"sent_{span}"] = _line(
            [point.sent for point in points], f"sent in the last {span}: {sent:,} in all"
        )
        found[f"success_{span}"] = (
            _line(
                _success(points),
                f"success in the last {span}: {sent:,} sent, {failed:,} dead letters",
                scale=100,
            )
            if sent or failed
            else Markup()
        )
        found[f"late_{span}"] = _line(
            [point.p99_late_ms or 0 for point in points],
            f"p99 of the lateness in the last {span}: {show_duration(late)} at most",
        )
    return found


def _line(values: Sequence[float], title: str, *, scale: float = 0) -> Markup:
    return trust(draw_sparkline(values, title=title, width=56, scale=scale, filled=not scale))


def _success(points: Iterable[OverviewPoint]) -> list[float]:
    """Returns the percentage that was sent of what ended in each step. A step in which nothing ended repeats
    the one before."""
    values, last = list[float](), 100.0
    for point in points:
        ended = point.sent + point.failed
        last = 100 * point.sent / ended if ended else last
        values.append(last)
    return values
