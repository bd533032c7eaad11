"""Recipients with their devices and preferences, and the addresses to which nothing is sent."""

from __future__ import annotations

from contextlib import suppress as suppress_error

from starlette.responses import Response

from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest, NotFound
from homing.core.notifications import Channel
from homing.core.recipients.profiles import Preference, Suppression
from homing.dashboard.visits import Screens, Visit, explain_problem

screens = Screens()

_SUPPRESSIONS = 50
"""Maximum number of suppressed addresses on a page."""


@screens.get("recipients", Scope.READ)
async def show_recipients(visit: Visit) -> Response:
    """Lists recipients and suppressions, or shows one recipient."""
    id, after = visit.query.get("id", "").strip(), visit.query.get("after", "")
    chosen, problem = None, ""
    preferences: tuple[Preference, ...] = ()
    if id:
        try:
            chosen = await visit.api.recipients.get(id)
            preferences = await visit.api.recipients.preferences(id)
        except (NotFound, InvalidRequest) as error:
            problem = explain_problem(error)
    found = await visit.api.recipients.list(after=after, limit=50)
    channel, address = visit.query.get("channel", ""), visit.query.get("address", "").strip()
    if address and not channel:
        suppressed = await _suppressed_anywhere(visit, address)
    else:
        suppressed = await visit.api.recipients.suppressions(
            channel or None,
            address or None,
            after=visit.query.get("suppressed_after", ""),
            limit=_SUPPRESSIONS + 1,
        )
    return visit.page(
        "recipients.html",
        id=id,
        chosen=chosen,
        preferences=preferences,
        problem=problem,
        found=found,
        after=found[-1].id if len(found) == 50 else "",
        suppressions=suppressed[:_SUPPRESSIONS],
        more_suppressions=suppressed[_SUPPRESSIONS - 1].place if len(suppressed) > _SUPPRESSIONS else "",
        channels=list(Channel),
        channel=channel,
        address=address,
    )


async def _suppressed_anywhere(visit: Visit, address: str) -> tuple[Suppression, ...]:
    """Returns the suppressions of an address on all channels on which it can be an address."""
    found = list[Suppression]()
    for channel in Channel:
        with suppress_error(InvalidRequest):
            found += await visit.api.recipients.suppressions(channel, address, limit=_SUPPRESSIONS)
    return tuple(found)


@screens.post("recipients/suppress", Scope.MANAGE)
async def suppress(visit: Visit, form: dict[str, str]) -> Response:
    """Suppresses an address."""
    channel, address, why = form.get("channel", ""), form.get("address", ""), form.get("why", "")
    await visit.note("suppression.add", category="*", channel=channel, why=why)
    await visit.api.recipients.suppress(channel, address, why=why, who=visit.caller.who)
    return visit.go("recipients", done="saved")


@screens.post("recipients/lift", Scope.MANAGE)
async def lift(visit: Visit, form: dict[str, str]) -> Response:
    """Deletes a suppression."""
    channel, category = form.get("channel", ""), form.get("category") or "*"
    await visit.note("suppression.lift", category=category, channel=channel)
    await visit.api.recipients.lift(channel, form.get("address", ""), category=category)
    return visit.go("recipients", done="removed")
