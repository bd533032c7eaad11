"""Audit, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from homing.client.calling import Calling
from homing.client.structs.audit import AuditPage, AuditQuery
from homing.core.audit import Audited


class Audit(Calling):
    """The operations on audit."""

    def list_audit(self, *, shared: bool = False, limit: int = 50) -> Iterator[Audited]:
        """What was done in the caller's tenant, newest first.

        Each entry was written before what it tells of was done, and carries the hash of the one before
        it: `homing audit verify` checks them all.
        """
        return self._pages(AuditPage, "/api/v1/audit", AuditQuery(shared=shared, limit=limit))
