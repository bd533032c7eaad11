"""Providers as operators see them: how each is doing, a way to try one out, and its breaker by hand."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from homing.api.answers import ApiError, Items
from homing.api.notifications import Why
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.breaker import Phase
from homing.core.model import Channel
from homing.core.request import provider_id
from homing.engine.desk import Health, ProviderView, Tried

routes = Routes("Providers")

ProviderName = Annotated[str, Meta(min_length=1, max_length=100, examples=["twilio"])]


class TestMessage(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where a test message goes."""

    address: Annotated[str, Meta(min_length=1, max_length=2000, examples=["ada@example.org"])]
    channel: Channel | None = None
    """Needed where the provider serves several."""


class BreakerPhase(StrEnum):
    """What a breaker is to do: an operator's choice, or its own."""

    OPEN = "open"
    CLOSED = "closed"
    AUTO = "auto"
    """Gives it back to what the outcomes of sends say."""


class BreakerOrder(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An operator's word on a breaker. It wins until it is taken back with `auto`."""

    phase: BreakerPhase
    why: Why = ""


_FORCED = {BreakerPhase.OPEN: Phase.OPEN, BreakerPhase.CLOSED: Phase.CLOSED, BreakerPhase.AUTO: None}


@routes.get("/providers", scope=Scope.READ)
async def list_providers(call: Call) -> Items[ProviderView]:
    """The providers, the routes they are on, and their breakers as they are now."""
    return Items(await call.service.engine.providers())


@routes.get("/providers/{id}", scope=Scope.READ, errors=("NOT_FOUND",))
async def get_provider(call: Call, id: ProviderName) -> ProviderView:
    """One provider."""
    return await _view(call, id)


@routes.post("/providers/check", scope=Scope.ADMIN)
async def check_providers(call: Call) -> Items[Health]:
    """Ask every provider whether it is usable. Changes nothing."""
    return Items(await call.service.engine.check_providers())


@routes.post("/providers/{id}/check", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def check_provider(call: Call, id: ProviderName) -> Health:
    """Ask one provider whether it is usable. Changes nothing."""
    name = (await _view(call, id)).id
    (health,) = await call.service.engine.check_providers(name)
    return health


@routes.post("/providers/{id}/test", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def test_provider(call: Call, id: ProviderName, body: TestMessage) -> Tried:
    """Really send a test message, now, through this provider alone.

    Nothing is stored and nothing is tried again; breaker, rate limit and preferences are not asked.
    """
    name = (await _view(call, id)).id
    channel = body.channel.value if body.channel else None
    await call.note("provider.test", name, channel=channel)
    return await call.service.engine.try_provider(name, body.address, body.channel)


@routes.post("/providers/{id}/breaker", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def set_breaker(call: Call, id: ProviderName, body: BreakerOrder) -> ProviderView:
    """Open or close a provider's breaker by hand, or give it back."""
    name = (await _view(call, id)).id
    await call.note("breaker.set", name, phase=body.phase.value, why=body.why)
    await call.service.engine.force_breaker(name, _FORCED[body.phase], who=call.caller.who, why=body.why)
    return await _view(call, name)


async def _view(call: Call, id: str) -> ProviderView:
    for view in await call.service.engine.providers():
        if view.id == provider_id(id):
            return view
    raise ApiError("NOT_FOUND", f"there is no provider {id!r}; /api/v1/providers lists them")
