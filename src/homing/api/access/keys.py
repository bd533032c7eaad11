"""Routes for API keys: create, list, read, rotate and revoke.

A key's text is returned only when the key is created or rotated.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.api_keys import (
    ApiKey,
    NewKey,
)
from homing.core.access.scopes import Scope
from homing.wire.access import CreateKeyBody, KeyPage, KeyQuery, RotateKeyBody

routes = Routes("Keys")


KeyId = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[0-9a-z]+$", examples=["4p0x7k2m9q3d"])]


@routes.get("/keys", scope=Scope.ADMIN)
async def list_keys(call: ApiCall, query: KeyQuery) -> KeyPage:
    """List the API keys of one tenant or of all, including expired and revoked keys.

    The response does not contain the keys' texts.
    """
    keys = call.service.engine.keys
    found = await keys.list(query.tenant, after=query.cursor or "", limit=query.limit + 1)
    items = found[: query.limit]
    return KeyPage(items=items, cursor=items[-1].id if len(found) > query.limit else None)


@routes.post("/keys", scope=Scope.ADMIN, status=201, errors=("NOT_FOUND",))
async def create_key(call: ApiCall, body: CreateKeyBody) -> ApiResponse[NewKey]:
    """Create an API key.

    The response's `text` is the key that callers send as `Authorization: Bearer KEY`. It is never shown
    again.
    """
    tenant = body.tenant or call.caller.tenant
    await call.service.engine.tenants.get(tenant)
    await _note(call, tenant, "key.create", body.name, scopes=[scope.value for scope in body.scopes])
    new = await call.service.engine.keys.create(
        tenant,
        body.name,
        body.scopes,
        who=call.caller.who,
        expires_at=body.expires_at,
        rate_per_second=body.rate_per_second,
    )
    return ApiResponse(new, 201)


@routes.get("/keys/{id}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def get_key(call: ApiCall, id: KeyId) -> ApiKey:
    """Retrieve an API key, including the time of its last use."""
    return await call.service.engine.keys.get(id)


@routes.post("/keys/{id}/revoke", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def revoke_key(call: ApiCall, id: KeyId) -> ApiKey:
    """Revoke an API key.

    The process that handles this request rejects the key at once, all other processes within five seconds.
    """
    found = await call.service.engine.keys.get(id)
    await _note(call, found.tenant, "key.revoke", id, name=found.name)
    return await call.service.engine.keys.revoke(id, who=call.caller.who)


@routes.post(
    "/keys/{id}/rotate",
    scope=Scope.ADMIN,
    status=201,
    body_optional=True,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
)
async def rotate_key(call: ApiCall, id: KeyId, body: RotateKeyBody) -> ApiResponse[NewKey]:
    """Replace an API key with a new one. The old key stays valid for `overlapMs`.

    The new key has the same tenant, name, scopes, rate limit and lifetime as the old one.
    """
    found = await call.service.engine.keys.get(id)
    await _note(call, found.tenant, "key.rotate", id, name=found.name, overlapMs=body.overlap_ms)
    new = await call.service.engine.keys.rotate(id, who=call.caller.who, overlap_ms=body.overlap_ms)
    return ApiResponse(new, 201)


async def _note(call: ApiCall, tenant: str, action: str, target: str, **detail: object) -> None:
    """Writes an audit entry to the trail of the key's tenant, even if the caller belongs to another one."""
    await call.service.trail.note(replace(call.caller, tenant=tenant), action, target, detail)
