"""Tenants, keys and the audit trail."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace
from starlette.responses import Response

from homing.core.access.api_keys import ApiKey
from homing.core.access.scopes import Scope, check_tenant
from homing.core.errors import CommandRefused, InvalidRequest, NotFound
from homing.dashboard.visits import Screens, Visit, read_span
from homing.engine.access.audit import VerificationStep
from homing.engine.access.web_sessions import KEY_AUTHOR
from homing.engine.operations.policies import EVERY_TENANT

screens = Screens()

_VERIFY_S = 5.0

_LISTED = 200
"""Maximum number of keys and of tenants on a page."""


@screens.get("keys", Scope.ADMIN)
async def show_keys(visit: Visit) -> Response:
    """Lists the tenants, and the keys of one of them."""
    return await _keys(visit, _tenant(visit, visit.query.get("tenant", "")))


@screens.post("keys", Scope.ADMIN)
async def create_key(visit: Visit, form: dict[str, str]) -> Response:
    """Creates a key and shows it once."""
    tenant = _tenant(visit, form.get("tenant", ""))
    scopes = [scope.value for scope in Scope if form.get(f"scope_{scope.value}")]
    name, lasting = form.get("name", ""), read_span(form, "lasting", "90d or 12h")
    if not name or not scopes:
        raise InvalidRequest("scopes" if name else "name", "is missing")
    if lasting is not None and not lasting:
        raise InvalidRequest("lasting", "must be longer than 0")
    await visit.engine.tenants.get(tenant)
    await _note(visit, tenant, "key.create", name, scopes=scopes)
    expires_at = None if lasting is None else visit.now + lasting
    made = await visit.engine.keys.create(tenant, name, scopes, who=visit.caller.who, expires_at=expires_at)
    return await _keys(visit, tenant, made.text)


@screens.post("keys/{id}/revoke", Scope.ADMIN)
async def revoke_key(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Revokes a key. Its sessions end at once."""
    key = await _key(visit, id)
    await _note(visit, key.tenant, "key.revoke", id, name=key.name)
    await visit.engine.keys.revoke(id, who=visit.caller.who)
    return visit.go("keys", tenant=_named(visit, key.tenant), done="revoked")


@screens.post("keys/{id}/rotate", Scope.ADMIN)
async def rotate_key(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Replaces a key with a new one, which is shown once. The old one stays valid for a time."""
    key = await _key(visit, id)
    overlap_ms = (read_span(form, "overlap", "30m or 1d") or timedelta()) // timedelta(milliseconds=1)
    await _note(visit, key.tenant, "key.rotate", id, name=key.name, overlapMs=overlap_ms)
    made = await visit.engine.keys.rotate(id, who=visit.caller.who, overlap_ms=overlap_ms)
    return await _keys(visit, key.tenant, made.text)


@screens.post("tenants", Scope.ADMIN)
async def create_tenant(visit: Visit, form: dict[str, str]) -> Response:
    """Creates a tenant."""
    name = form.get("name", "")
    _require_operator(visit)
    check_tenant(name, "name")
    await visit.note("tenant.create", name)
    await visit.engine.tenants.create(name, who=visit.caller.who)
    return visit.go("keys", tenant=name, done="saved")


@screens.post("tenants/{action}", Scope.ADMIN)
async def change_tenant(visit: Visit, action: str, form: dict[str, str]) -> Response:
    """Disables or enables a tenant."""
    name = form.get("name", "")
    _require_operator(visit)
    if action not in ("disable", "enable"):
        raise NotFound(f"there is no action {action!r}")
    if name == visit.caller.tenant:
        raise CommandRefused("your own tenant cannot be disabled here: you could not sign in again")
    tenants = visit.engine.tenants
    await tenants.get(name)
    await visit.note(f"tenant.{action}", name)
    await (tenants.disable if action == "disable" else tenants.enable)(name, who=visit.caller.who)
    return visit.go("keys", done="disabled" if action == "disable" else "enabled")


def _is_operator(visit: Visit) -> bool:
    """Returns True for the tenant of the settings, whose administrators manage the other tenants too."""
    return visit.caller.tenant == visit.engine.tenant


def _require_operator(visit: Visit) -> None:
    if not _is_operator(visit):
        raise CommandRefused(f"only administrators of the tenant {visit.engine.tenant} manage tenants")


def _tenant(visit: Visit, wanted: str) -> str:
    """Returns the tenant whose keys are meant. Other tenants' keys are shown to operators only."""
    if not wanted or wanted == visit.caller.tenant:
        return visit.caller.tenant
    _require_operator(visit)
    return wanted


def _named(visit: Visit, tenant: str) -> str:
    """Returns the tenant for an address, or nothing for the own one."""
    return "" if tenant == visit.caller.tenant else tenant


async def _key(visit: Visit, id: str) -> ApiKey:
    """Returns a key that the person may change. Others are reported as missing."""
    key = await visit.engine.keys.get(id)
    if key.tenant != visit.caller.tenant and not _is_operator(visit):
        raise NotFound(f"there is no key {id!r}")
    return key


async def _note(visit: Visit, tenant: str, action: str, target: str, **detail: object) -> None:
    """Writes to the audit trail of the key's tenant, as the API does."""
    caller = replace(visit.caller, tenant=tenant)
    await visit.engine.audit.note(caller, action, target, {**detail, "from": "dashboard"})


async def _keys(visit: Visit, tenant: str, made: str = "") -> Response:
    if tenant != visit.caller.tenant:
        await visit.engine.tenants.get(tenant)
    keys, after = visit.engine.keys, visit.query.get("after", "")
    found = await keys.list(tenant, after=after, limit=_LISTED + 1)
    tenants = await visit.engine.tenants.list(limit=_LISTED + 1) if _is_operator(visit) else ()
    return visit.page(
        "keys.html",
        tenant=tenant,
        own=tenant == visit.caller.tenant,
        keys=found[:_LISTED],
        after=found[_LISTED - 1].id if len(found) > _LISTED else "",
        tenants=tenants[:_LISTED],
        complete=len(tenants) <= _LISTED,
        operator=_is_operator(visit),
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
    keys = await visit.engine.keys.list(visit.caller.tenant, limit=_LISTED)
    names = {f"{KEY_AUTHOR}{key.id}": key.name for key in keys}
    return visit.page("audit.html", page=page, shared=shared, step=step, names=names)


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
