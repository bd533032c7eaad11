"""Tenants, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from homing.client.asking import part
from homing.client.calling import Calling
from homing.client.structs.tenants import NewTenant, Tenant, TenantPage, TenantQuery


class Tenants(Calling):
    """The operations on tenants."""

    def list_tenants(self, *, limit: int = 50) -> Iterator[Tenant]:
        """All tenants, by name.

        Also those that nobody made: the default one, and those that have sent something by the library.
        """
        return self._pages(TenantPage, "/api/v1/tenants", TenantQuery(limit=limit))

    def create_tenant(self, *, name: str) -> Tenant:
        """Make a tenant. It can do nothing before it has a key."""
        return self._ask(Tenant, "POST", "/api/v1/tenants", body=NewTenant(name=name))

    def get_tenant(self, name: str) -> Tenant:
        """One tenant, and how many keys were made for it."""
        return self._ask(Tenant, "GET", f"/api/v1/tenants/{part(name)}")

    def disable_tenant(self, name: str) -> Tenant:
        """Refuse a tenant's keys and tokens.

        At once in the process that answers this, within five seconds in all others. What was accepted
        before is delivered all the same.
        """
        return self._ask(Tenant, "POST", f"/api/v1/tenants/{part(name)}/disable")

    def enable_tenant(self, name: str) -> Tenant:
        """Let a tenant's keys in again."""
        return self._ask(Tenant, "POST", f"/api/v1/tenants/{part(name)}/enable")
