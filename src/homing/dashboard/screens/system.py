"""Workers, sinks, bridges and timers, and the newest notifications as they are accepted."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from homing.core.access.scopes import Scope
from homing.core.system_status import find_sink
from homing.dashboard.visits import Screens, Visit

screens = Screens()

_TAIL = 40

_LATE = timedelta(minutes=1)
"""An event that waits for a sink for longer than this is marked."""


@screens.get("system", Scope.READ)
async def show_system(visit: Visit) -> Response:
    """Shows workers, sinks, bridges and timers."""
    return visit.page("system.html", part=await read_system(visit))


@screens.live("system", Scope.READ)
async def read_system(visit: Visit) -> str:
    """Returns the part of the screen that changes."""
    here = visit.engine.snapshot()
    return visit.html(
        "system_part.html",
        system=await visit.engine.system(),
        here=here,
        in_flight=sum(here.in_flight.values()),
        late_after=_LATE,
    )


@screens.post("sinks/retry", Scope.ADMIN)
async def retry_sink_events(visit: Visit, form: dict[str, str]) -> Response:
    """Publishes the parked events of a sink again."""
    name = form.get("name", "")
    find_sink(await visit.engine.sinks(), name)
    await visit.note("sink.retry", name)
    await visit.engine.release_sink_events(name)
    return visit.go("system", done="released-events")


@screens.get("tail")
async def show_tail(visit: Visit) -> Response:
    """Shows the newest notifications, and adds others as they are accepted."""
    return visit.page("tail.html", part=await read_tail(visit))


@screens.live("tail")
async def read_tail(visit: Visit) -> str:
    """Returns the newest notifications."""
    return visit.html("tail_part.html", page=await visit.api.list(limit=_TAIL))
