"""Workers, sinks, bridges and timers, and the newest notifications as they are accepted."""

from __future__ import annotations

from starlette.responses import Response

from homing.core.access.scopes import Scope
from homing.core.times import moment
from homing.dashboard.visits import Screens, Visit

screens = Screens()

_TAIL = 40


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
        workers=await visit.engine.workers(),
        sinks=await visit.engine.sinks(),
        here=here,
        in_flight=sum(here.in_flight.values()),
        seen=moment,
    )


@screens.get("tail")
async def show_tail(visit: Visit) -> Response:
    """Shows the newest notifications, and adds others as they are accepted."""
    return visit.page("tail.html", part=await read_tail(visit))


@screens.live("tail")
async def read_tail(visit: Visit) -> str:
    """Returns the newest notifications."""
    return visit.html("tail_part.html", page=await visit.api.list(limit=_TAIL))
