"""What the service takes and answers with: tenants.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class TenantQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which page."""

    limit: int = 50
    cursor: str | None = None


class Tenant(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A tenant as people and programs read it."""

    name: str
    enabled: bool
    created_at: datetime | None = None
    """None: it came to be by its first notification, or is the default one."""
    created_by: str = ""
    disabled_at: datetime | None = None
    disabled_by: str = ""
    key_count: int | None = None
    """How many keys were made for it, also those that have ended; None in a list."""


class TenantPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By name; `cursor` asks for what follows, null is the end."""

    items: tuple[Tenant, ...]
    cursor: str | None = None


class NewTenant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant to be made."""

    name: str
