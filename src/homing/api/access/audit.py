"""The route that reads the audit trail. No route changes or deletes entries."""

from __future__ import annotations

from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.audit import AuditPage
from homing.core.access.scopes import Scope
from homing.engine.operations.policies import EVERY_TENANT
from homing.wire.access import AuditQuery

routes = Routes("Audit")


@routes.get("/audit", scope=Scope.ADMIN)
async def list_audit(call: ApiCall, query: AuditQuery) -> AuditPage:
    """List the audit trail of the caller's tenant, or the shared one, newest first.

    Each entry is written before its action is executed, and contains the hash of the previous entry.
    `homing audit verify` checks the whole chain.
    """
    chain = EVERY_TENANT if query.shared else call.caller.tenant
    return await call.service.engine.audit.list(chain, cursor=query.cursor, limit=query.limit)
