"""Tenants, keys and the audit trail."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest
from homing.dashboard.visits import Screens, Visit
from homing.engine.access.audit import VerificationStep
from homing.engine.operations.policies import EVERY_TENANT

screens = Screens()

_VERIFY_S = 5.0


@screens.get("keys", Scope.ADMIN)
async def show_keys(visit: Visit) -> Response:
    """Lists the tenants, and the keys of the own tenant."""
    return await _keys(visit)


@screens.post("keys", Scope.ADMIN)
async def create_key(visit: Visit, form: dict[str, str]) -> Response:
    """Creates a key and shows it once."""
    scopes = [scope.value for scope in Scope if form.get(f"scope_{scope.value}")]
    name = form.get("name", "")
    if not name or not scopes:
        raise InvalidRequest("scopes" if name else "name", "is missing")
    await visit.note("key.create", name, scopes=scopes)
    made = await visit.engine.keys.create(visit.caller.tenant, name, scopes, who=visit.caller.who)
    return await _keys(visit, made.text)


@screens.post("keys/{id}/revoke", Scope.ADMIN)
async def revoke_key(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Revokes a key of the own tenant. Its sessions end at once."""
    key = await visit.engine.keys.get(id)
    if key.tenant != visit.caller.tenant:
        raise InvalidRequest("id", "is not a key of this tenant")
    await visit.note("key.revoke", id)
    await visit.engine.keys.revoke(id, who=visit.caller.who)
    return visit.go("keys", done="revoked")


async def _keys(visit: Visit, made: str = "") -> Response:
    own = visit.caller.tenant == visit.engine.tenant
    return visit.page(
        "keys.html",
        keys=await visit.engine.keys.list(visit.caller.tenant, limit=200),
        tenants=await visit.engine.tenants.list(limit=200) if own else (),
        scopes=list(Scope),
        made=made,
    )


@screens.get("audit", Scope.ADMIN)
async def show_audit(visit: Visit) -> Response:
    """Shows who did what, newest first, and verifies the chain if asked."""
    shared = visit.query.get("chain") == "shared"
    chain = EVERY_TENANT if shared else visit.caller.tenant
    page = await visit.engine.audit.list(chain, cursor=visit.query.get("cursor") or None, limit=100)
    step = await _verify(visit, chain) if visit.query.get("verify") else None
    return visit.page("audit.html", page=page, shared=shared, step=step)


async def _verify(visit: Visit, chain: str) -> tuple[VerificationStep | None, list[str]]:
    last, faults = None, list[str]()
    try:
        async with asyncio.timeout(_VERIFY_S):
            async for step in visit.engine.audit.verify(chain):
                last = step
                faults += [f"entry {fault.number}: {fault.kind.value}, {fault.what}" for fault in step.faults]
    except TimeoutError:
        pass
    return last, faults[:50]
