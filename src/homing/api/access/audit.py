"""The route that reads the audit trail. No route changes or deletes entries."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.api.http.routing import Routes
from homing.api.operations.filters import Limit
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.engine.access.audit import AuditPage
from homing.engine.operations.policies import EVERY_TENANT

routes = Routes("Audit")


class AuditQuery(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects the tenant's audit trail or the one that all tenants share, and a page of it."""

    shared: bool = False
    """If true, lists actions that concern all tenants: on policies, providers and tenants, and purges."""
    limit: Limit = 50
    cursor: (
        Annotated[
            str,
            Meta(
                pattern="^[0-9]{12}$",
                description="Cursor from the previous page. If omitted, the first page is returned.",
            ),
        ]
        | None
    ) = None


@routes.get("/audit", scope=Scope.ADMIN)
async def list_audit(call: ApiCall, query: AuditQuery) -> AuditPage:
    """List the audit trail of the caller's tenant, or the shared one, newest first.

    Each entry is written before its action is executed, and contains the hash of the previous entry.
    `homing audit verify` checks the whole chain.
    """
    chain = EVERY_TENANT if query.shared else call.caller.tenant
    return await call.service.engine.audit.list(chain, cursor=query.cursor, limit=query.limit)
