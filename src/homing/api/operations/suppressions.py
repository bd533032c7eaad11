"""Routes for suppressions: addresses to which nothing may be sent."""

from __future__ import annotations

from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import NotFound
from homing.core.recipients.profiles import Suppression
from homing.wire.recipients import SuppressionBody, SuppressionKeyQuery, SuppressionPage, SuppressionQuery

routes = Routes("Suppressions")


@routes.get("/suppressions", scope=(Scope.READ, Scope.MANAGE))
async def list_suppressions(call: ApiCall, query: SuppressionQuery) -> SuppressionPage:
    """List suppressed addresses."""
    found = await call.tenant_api.recipients.suppressions(
        query.channel, query.address, after=query.cursor or "", limit=query.limit
    )
    full = len(found) == query.limit
    return SuppressionPage(items=found, cursor=found[-1].place if full else None)


@routes.post("/suppressions", scope=Scope.MANAGE, status=201)
async def add_suppression(call: ApiCall, body: SuppressionBody) -> ApiResponse[Suppression]:
    """Suppress an address on a channel, in one category or in all of them (`*`).

    Suppressions are checked before every attempt, so notifications that were already accepted are skipped
    too.
    """
    await call.note("suppression.add", category=body.category, channel=body.channel.value, why=body.why)
    suppression = await call.tenant_api.recipients.suppress(
        body.channel, body.address, category=body.category, why=body.why, who=call.caller.who
    )
    return ApiResponse(suppression, 201)


@routes.delete("/suppressions", scope=Scope.MANAGE, status=204, errors=("NOT_FOUND",))
async def lift_suppression(call: ApiCall, query: SuppressionKeyQuery) -> None:
    """Remove a suppression."""
    await call.note("suppression.lift", category=query.category, channel=query.channel.value)
    if not await call.tenant_api.recipients.lift(query.channel, query.address, category=query.category):
        raise NotFound("this address is not suppressed on this channel in this category")
