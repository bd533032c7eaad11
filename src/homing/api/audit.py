"""The audit trail: who did what. It can be read; nothing here or elsewhere changes or deletes it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.api.filters import Limit
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.engine.audit import AuditPage
from homing.engine.policies import EVERY_TENANT

routes = Routes("Audit")


class AuditQuery(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which chain, and which page of it."""

    shared: bool = False
    """What was done to what is no tenant's own: policies, providers, tenants, purges."""
    limit: Limit = 50
    cursor: (
        Annotated[str, Meta(pattern="^[0-9]{12}$", description="Of the page before: what follows it.")] | None
    ) = None


@routes.get("/audit", scope=Scope.ADMIN)
async def list_audit(call: Call, query: AuditQuery) -> AuditPage:
    """What was done in the caller's tenant, newest first.

    Each entry was written before what it tells of was done, and carries the hash of the one before it:
    `homing audit verify` checks them all.
    """
    chain = EVERY_TENANT if query.shared else call.caller.tenant
    return await call.service.engine.audit.list(chain, cursor=query.cursor, limit=query.limit)
