"""Routes for providers: list, check, send a test message, control the breaker and the split."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from homing.api.http.bodies import ApiError
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.notifications import Channel
from homing.core.overview import ProviderOverview
from homing.core.routing.breaker import Phase
from homing.core.routing.provider_views import Health, ProviderView, Tried
from homing.core.routing.splits import SplitView
from homing.core.send_request import find_provider_id
from homing.wire.common import ItemList
from homing.wire.policies import WhyQuery
from homing.wire.providers import BreakerBody, BreakerPhase, SplitBody, TestMessageBody

routes = Routes("Providers")


ProviderName = Annotated[str, Meta(min_length=1, max_length=100, examples=["twilio"])]


_FORCED = {BreakerPhase.OPEN: Phase.OPEN, BreakerPhase.CLOSED: Phase.CLOSED, BreakerPhase.AUTO: None}


@routes.get("/providers", scope=Scope.READ)
async def list_providers(call: ApiCall) -> ItemList[ProviderView]:
    """List providers, with their routes and the current state of their breakers."""
    return ItemList(await call.service.engine.providers())


@routes.get("/providers/overview", scope=Scope.READ)
async def get_provider_overview(call: ApiCall) -> ProviderOverview:
    """Retrieve each provider with its breaker, and what it did for the tenant in the last hour."""
    return await call.tenant_api.provider_overview()


@routes.get("/providers/splits", scope=Scope.READ)
async def list_splits(call: ApiCall) -> ItemList[SplitView]:
    """List how first attempts are split, for each channel with several providers."""
    return ItemList(await call.service.engine.splits.list())


@routes.put("/providers/splits/{channel}", scope=Scope.ADMIN)
async def set_split(call: ApiCall, channel: Channel, body: SplitBody) -> SplitView:
    """Override the split of a channel for a time.

    Applies to notifications that are accepted from now on, in all processes within five seconds. Those
    accepted before keep the start of their route.
    """
    splits, lasting = call.service.engine.splits, timedelta(milliseconds=body.for_ms)
    _, shares, _ = splits.check(channel, body.shares, why=body.why, lasting=lasting)
    await call.note("split.set", channel.value, shares=shares, why=body.why, forMs=body.for_ms)
    return await splits.set(channel, shares, who=call.caller.who, why=body.why, lasting=lasting)


@routes.delete("/providers/splits/{channel}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def reset_split(call: ApiCall, channel: Channel, query: WhyQuery) -> SplitView:
    """End the override of a channel's split before its time."""
    await call.note("split.reset", channel.value, why=query.why)
    return await call.service.engine.splits.reset(channel, who=call.caller.who)


@routes.get("/providers/{id}", scope=Scope.READ, errors=("NOT_FOUND",))
async def get_provider(call: ApiCall, id: ProviderName) -> ProviderView:
    """Retrieve a provider."""
    return await _view(call, id)


@routes.post("/providers/check", scope=Scope.ADMIN)
async def check_providers(call: ApiCall) -> ItemList[Health]:
    """Check for each provider whether it is usable. Nothing is changed."""
    return ItemList(await call.service.engine.check_providers())


@routes.post("/providers/{id}/check", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def check_provider(call: ApiCall, id: ProviderName) -> Health:
    """Check whether a provider is usable. Nothing is changed."""
    name = (await _view(call, id)).id
    (health,) = await call.service.engine.check_providers(name)
    return health


@routes.post("/providers/{id}/test", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def test_provider(call: ApiCall, id: ProviderName, body: TestMessageBody) -> Tried:
    """Send a real test message through a provider.

    The message is sent at once, without failover. Nothing is stored and nothing is retried. Breaker, rate
    limit and preferences are ignored.
    """
    name = (await _view(call, id)).id
    channel = body.channel.value if body.channel else None
    await call.note("provider.test", name, channel=channel)
    return await call.service.engine.try_provider(name, body.address, body.channel)


@routes.post("/providers/{id}/breaker", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def set_breaker(call: ApiCall, id: ProviderName, body: BreakerBody) -> ProviderView:
    """Open or close a provider's breaker by hand, or return it to automatic control."""
    name = (await _view(call, id)).id
    await call.note("breaker.set", name, phase=body.phase.value, why=body.why)
    await call.service.engine.force_breaker(
        name,
        _FORCED[body.phase],
        who=call.caller.who,
        why=body.why,
        lasting=None if body.for_ms is None else timedelta(milliseconds=body.for_ms),
    )
    return await _view(call, name)


async def _view(call: ApiCall, id: str) -> ProviderView:
    views = {view.id: view for view in await call.service.engine.providers()}
    if (view := views.get(find_provider_id(id, views))) is not None:
        return view
    raise ApiError("NOT_FOUND", f"there is no provider {id!r}; /api/v1/providers lists all providers")
