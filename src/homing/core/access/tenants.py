"""A tenant, as operators and the API see it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Tenant(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A tenant, as returned by the API."""

    name: str
    enabled: bool
    created_at: datetime | None = None
    """Time of creation. None for the default tenant, and for a tenant that was never created explicitly."""
    created_by: str = ""
    disabled_at: datetime | None = None
    disabled_by: str = ""
    key_count: int | None = None
    """Number of keys created for the tenant, including expired and revoked ones. None in a list."""
