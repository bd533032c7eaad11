"""Tenants: whose keys are let in."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.api.answers import Answer
from homing.api.filters import Cursor, Limit, Text
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import TENANT_PATTERN, Scope
from homing.engine.tenants import Tenant

routes = Routes("Tenants")

TenantName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern=TENANT_PATTERN,
        examples=["acme"],
        description="Small letters, digits, `.`, `_` and `-`.",
    ),
]
AnyTenantName = Annotated[Text, Meta(examples=["acme"])]
"""Tenants of the library may be called otherwise."""


class NewTenant(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A tenant to be made."""

    name: TenantName


class TenantPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """By name; `cursor` asks for what follows, null is the end."""

    items: tuple[Tenant, ...]
    cursor: str | None = None


class TenantQuery(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which page."""

    limit: Limit = 50
    cursor: Cursor | None = None


@routes.get("/tenants", scope=Scope.ADMIN)
async def list_tenants(call: Call, query: TenantQuery) -> TenantPage:
    """All tenants, by name.

    Also those that nobody made: the default one, and those that have sent something by the library.
    """
    found = await call.service.engine.tenants.list(after=query.cursor or "", limit=query.limit + 1)
    items = found[: query.limit]
    return TenantPage(items=items, cursor=items[-1].name if len(found) > query.limit else None)


@routes.post("/tenants", scope=Scope.ADMIN, status=201, errors=("VERSION_CONFLICT",))
async def create_tenant(call: Call, body: NewTenant) -> Answer[Tenant]:
    """Make a tenant. It can do nothing before it has a key."""
    await call.note("tenant.create", body.name)
    return Answer(await call.service.engine.tenants.create(body.name, who=call.caller.who), 201)


@routes.get("/tenants/{name}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def get_tenant(call: Call, name: AnyTenantName) -> Tenant:
    """One tenant, and how many keys were made for it."""
    return await call.service.engine.tenants.get(name)


@routes.post("/tenants/{name}/disable", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def disable_tenant(call: Call, name: AnyTenantName) -> Tenant:
    """Refuse a tenant's keys and tokens.

    At once in the process that answers this, within five seconds in all others. What was accepted before is
    delivered all the same.
    """
    await call.note("tenant.disable", name)
    return await call.service.engine.tenants.disable(name, who=call.caller.who)


@routes.post("/tenants/{name}/enable", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def enable_tenant(call: Call, name: AnyTenantName) -> Tenant:
    """Let a tenant's keys in again."""
    await call.note("tenant.enable", name)
    return await call.service.engine.tenants.enable(name, who=call.caller.who)
