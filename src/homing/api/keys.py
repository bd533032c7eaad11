"""API keys: made, listed, rotated and revoked. A key itself is shown once, when it is made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.api.answers import Answer
from homing.api.filters import Cursor, Limit
from homing.api.routing import Routes
from homing.api.service import Call
from homing.api.tenants import AnyTenantName
from homing.core.access import Scope
from homing.core.keys import ApiKey
from homing.engine.keychain import LONGEST_OVERLAP_MS, MOST_PER_SECOND, OVERLAP_MS, NewKey

routes = Routes("Keys")

KeyId = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[0-9a-z]+$", examples=["4p0x7k2m9q3d"])]
KeyName = Annotated[
    str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$", examples=["web shop"])
]


class KeyOrder(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A key to be made."""

    name: KeyName
    """What it is for: whoever finds it in a list should know whom to ask."""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=20, examples=[["send", "read"]])]
    """What it may do; `admin` includes all others."""
    tenant: AnyTenantName | None = None
    """Whose it is; left out: the caller's own."""
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    """Left out: it does not end by itself."""
    rate_per_second: Annotated[float, Meta(ge=0, le=MOST_PER_SECOND)] | None = None
    """Requests on average, from 0.001; 0: no limit, left out: as the service is set."""


class RotateOrder(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How long the old key stays good beside the new one."""

    overlap_ms: Annotated[int, Meta(ge=0, le=LONGEST_OVERLAP_MS)] = OVERLAP_MS


class KeyPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """By id; `cursor` asks for what follows, null is the end."""

    items: tuple[ApiKey, ...]
    cursor: str | None = None


class KeyQuery(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whose keys, and which page."""

    tenant: AnyTenantName | None = None
    """Only of this tenant; left out: of all."""
    limit: Limit = 50
    cursor: Cursor | None = None


@routes.get("/keys", scope=Scope.ADMIN)
async def list_keys(call: Call, query: KeyQuery) -> KeyPage:
    """All keys, also those that have ended. What is shown of a key is not enough to use it."""
    keys = call.service.engine.keys
    found = await keys.list(query.tenant, after=query.cursor or "", limit=query.limit + 1)
    items = found[: query.limit]
    return KeyPage(items=items, cursor=items[-1].id if len(found) > query.limit else None)


@routes.post("/keys", scope=Scope.ADMIN, status=201, errors=("NOT_FOUND",))
async def create_key(call: Call, body: KeyOrder) -> Answer[NewKey]:
    """Make a key. Its `text` is what a caller sends as `Authorization: Bearer …`; it is never shown again."""
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
    return Answer(new, 201)


@routes.get("/keys/{id}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def get_key(call: Call, id: KeyId) -> ApiKey:
    """One key, and when it was last used."""
    return await call.service.engine.keys.get(id)


@routes.post("/keys/{id}/revoke", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def revoke_key(call: Call, id: KeyId) -> ApiKey:
    """Refuse a key: at once in the process that answers this, within five seconds in all others."""
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
async def rotate_key(call: Call, id: KeyId, body: RotateOrder) -> Answer[NewKey]:
    """Make a new key in the place of this one, which stays good for a while.

    The new one has the same tenant, name, scopes and rate, and lives as long as the old one was made to.
    """
    found = await call.service.engine.keys.get(id)
    await _note(call, found.tenant, "key.rotate", id, name=found.name, overlapMs=body.overlap_ms)
    new = await call.service.engine.keys.rotate(id, who=call.caller.who, overlap_ms=body.overlap_ms)
    return Answer(new, 201)


async def _note(call: Call, tenant: str, action: str, target: str, **detail: object) -> None:
    """In the trail of the tenant whose key it is, whoever does it."""
    await call.service.trail.note(replace(call.caller, tenant=tenant), action, target, detail)
