"""Providers: their breakers, figures and routes, and what an operator can do about them."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from homing.charts.small import draw_sparkline
from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest, NotFound
from homing.core.notifications import Channel
from homing.core.routing.breaker import Phase
from homing.core.routing.provider_views import Tried
from homing.dashboard.rendering import trust
from homing.dashboard.visits import Screens, Visit, read_span

screens = Screens()

_FORCED = {"open": Phase.OPEN, "closed": Phase.CLOSED, "auto": None}


@screens.get("providers", Scope.READ)
async def show_providers(visit: Visit) -> Response:
    """Shows all providers."""
    return await _page(visit)


@screens.live("providers", Scope.READ)
async def read_providers(visit: Visit) -> str:
    """Returns the part of the screen that changes."""
    found = await visit.api.provider_overview()
    return visit.html(
        "providers_part.html",
        found=found,
        overrides={channel: one for each in found.items for channel, one in each.provider.splits.items()},
        lines={
            one.provider.id: trust(
                draw_sparkline(
                    [point.sent for point in one.last_hour],
                    title=f"sent per minute in the last hour, {one.sent:,} in all",
                    width=96,
                )
            )
            for one in found.items
        },
    )


@screens.post("providers/{id}/breaker", Scope.ADMIN)
async def set_breaker(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Forces a breaker open or closed, or returns it to automatic control."""
    await _find(visit, id)
    if form.get("phase") not in _FORCED:
        raise InvalidRequest("phase", "must be open, closed or auto")
    phase, why = _FORCED[form["phase"]], form.get("why", "")
    if phase is not None and not why:
        raise InvalidRequest("why", "is missing; say why, for the audit trail")
    lasting = None if phase is None else read_span(form, "lasting", "30m or 2h")
    lasting_ms = None if lasting is None else lasting // timedelta(milliseconds=1)
    await visit.note("breaker.set", id, phase=form["phase"], why=why, lasting_ms=lasting_ms)
    await visit.engine.force_breaker(id, phase, who=visit.caller.who, why=why, lasting=lasting)
    return visit.go("providers", done="released" if phase is None else "forced")


@screens.post("providers/splits/{channel}", Scope.ADMIN)
async def set_split(visit: Visit, channel: str, form: dict[str, str]) -> Response:
    """Overrides how a channel is split between its providers, for a time."""
    splits, lasting = visit.engine.splits, read_span(form, "lasting", "30m or 2h")
    if lasting is None:
        raise InvalidRequest("lasting", "is missing; say when the settings decide again, like 2h")
    shares = {
        name.removeprefix("share."): _share(name, value)
        for name, value in form.items()
        if name.startswith("share.") and value
    }
    over, given, for_ms = splits.check(channel, shares, why=form.get("why", ""), lasting=lasting)
    await visit.note("split.set", over.value, shares=given, why=form["why"], forMs=for_ms)
    await splits.set(over, given, who=visit.caller.who, why=form["why"], lasting=lasting)
    return visit.go("providers", done="split")


@screens.post("providers/splits/{channel}/reset", Scope.ADMIN)
async def reset_split(visit: Visit, channel: str, form: dict[str, str]) -> Response:
    """Ends the override of a channel's split before its time."""
    await visit.note("split.reset", channel, why=form.get("why", ""))
    await visit.engine.splits.reset(channel, who=visit.caller.who)
    return visit.go("providers", done="unsplit")


@screens.post("providers/{id}/test", Scope.ADMIN)
async def send_test(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Sends a real test message through a provider and shows the result."""
    await _find(visit, id)
    await visit.note("provider.test", id, channel=form.get("channel") or None)
    tried = await visit.engine.try_provider(id, form.get("address", ""), form.get("channel") or None)
    return await _page(visit, tried)


async def _page(visit: Visit, tried: Tried | None = None) -> Response:
    return visit.page(
        "providers.html",
        part=await read_providers(visit),
        tried=tried,
        providers=await visit.engine.providers(),
        splits=await visit.engine.splits.list(),
        channels=list(Channel),
    )


def _share(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 9:
        raise InvalidRequest(name, "is not a share; write a whole number like 80")
    return int(value)


async def _find(visit: Visit, id: str) -> None:
    if id not in {one.id for one in await visit.engine.providers()}:
        raise NotFound(f"there is no provider {id!r}")
