"""Routes for tenants: create, list, read, disable and enable."""

from __future__ import annotations

from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.access.tenants import Tenant
from homing.wire.access import AnyTenantName, CreateTenantBody, TenantPage, TenantQuery

routes = Routes("Tenants")


@routes.get("/tenants", scope=Scope.ADMIN)
async def list_tenants(call: ApiCall, query: TenantQuery) -> TenantPage:
    """List all tenants, ordered by name.

    Includes the default tenant, and tenants that exist only because the library sent notifications for them.
    """
    found = await call.service.engine.tenants.list(after=query.cursor or "", limit=query.limit + 1)
    items = found[: query.limit]
    return TenantPage(items=items, cursor=items[-1].name if len(found) > query.limit else None)


@routes.post("/tenants", scope=Scope.ADMIN, status=201, errors=("VERSION_CONFLICT",))
async def create_tenant(call: ApiCall, body: CreateTenantBody) -> ApiResponse[Tenant]:
    """Create a tenant. To let it use the service, create an API key for it."""
    await call.note("tenant.create", body.name)
    return ApiResponse(await call.service.engine.tenants.create(body.name, who=call.caller.who), 201)


@routes.get("/tenants/{name}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def get_tenant(call: ApiCall, name: AnyTenantName) -> Tenant:
    """Retrieve a tenant, including the number of its API keys."""
    return await call.service.engine.tenants.get(name)


@routes.post("/tenants/{name}/disable", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def disable_tenant(call: ApiCall, name: AnyTenantName) -> Tenant:
    """Disable a tenant: reject its API keys and tokens.

    The process that handles this request rejects them at once, all other processes within five seconds.
    Notifications that were already accepted are still delivered.
    """
    await call.service.engine.tenants.get(name)
    await call.note("tenant.disable", name)
    return await call.service.engine.tenants.disable(name, who=call.caller.who)


@routes.post("/tenants/{name}/enable", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def enable_tenant(call: ApiCall, name: AnyTenantName) -> Tenant:
    """Enable a disabled tenant: accept its API keys and tokens again."""
    await call.service.engine.tenants.get(name)
    await call.note("tenant.enable", name)
    return await call.service.engine.tenants.enable(name, who=call.caller.who)
