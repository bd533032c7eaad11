"""What the service takes and answers with: audit.

Written by tools/make_client.py.
"""

from __future__ import annotations

from msgspec import Struct

from homing.core.audit import Audited


class AuditQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which chain, and which page of it."""

    shared: bool = False
    """What was done to what is no tenant's own: policies, providers, tenants, purges."""
    limit: int = 50
    cursor: str | None = None


class AuditPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Newest first; `cursor` asks for what follows, None is the end."""

    items: tuple[Audited, ...]
    cursor: str | None = None
