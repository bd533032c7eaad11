"""Routes for API keys: create, list, read, rotate and revoke.

A key's text is returned only when the key is created or rotated.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.api.access.tenants import AnyTenantName
from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.operations.filters import Cursor, Limit
from homing.api.service import ApiCall
from homing.core.access.api_keys import ApiKey
from homing.core.access.scopes import Scope
from homing.engine.access.api_keys import DEFAULT_OVERLAP_MS, MAX_OVERLAP_MS, MAX_RATE_PER_SECOND, NewKey

routes = Routes("Keys")


KeyId = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[0-9a-z]+$", examples=["4p0x7k2m9q3d"])]

KeyName = Annotated[
    str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$", examples=["web shop"])
]


class CreateKeyBody(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Properties of a new API key."""

    name: KeyName
    """Purpose of the key, for people who find it in a list."""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=20, examples=[["send", "read"]])]
    """Permissions of the key. `admin` includes all others."""
    tenant: AnyTenantName | None = None
    """Tenant that the key belongs to. If omitted, the caller's tenant."""
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    """Time at which the key expires. If omitted, it never expires."""
    rate_per_second: Annotated[float, Meta(ge=0, le=MAX_RATE_PER_SECOND)] | None = None
    """Average number of requests per second that are allowed, at least 0.001, or 0 for no limit.

    If omitted, the service's default applies.
    """


class RotateKeyBody(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Options for the rotation of an API key."""

    overlap_ms: Annotated[int, Meta(ge=0, le=MAX_OVERLAP_MS)] = DEFAULT_OVERLAP_MS
    """Time for which the old key stays valid beside the new one, in milliseconds."""


class KeyPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of API keys, ordered by id."""

    items: tuple[ApiKey, ...]
    """Keys of this page."""
    cursor: str | None = None
    """Cursor of the next page. Null on the last page."""


class KeyQuery(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects API keys and a page of them."""

    tenant: AnyTenantName | None = None
    """Tenant whose keys are listed. If omitted, the keys of all tenants are listed."""
    limit: Limit = 50
    cursor: Cursor | None = None


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
