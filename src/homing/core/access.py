"""Who may do what: the scopes of a key, and the caller that a request turns out to be."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Scope(StrEnum):
    """What a key may be used for. Each stands for itself; `admin` includes all others."""

    SEND = "send"
    """Accept notifications, and look up and cancel what was accepted."""
    READ = "read"
    """Look at everything that the tenant has."""
    OPERATE = "operate"
    """Retry, resend, acknowledge, cancel, reschedule and resolve."""
    MANAGE = "manage"
    """Recipients, devices, preferences, suppressions and templates."""
    ADMIN = "admin"
    """Policies, providers, tenants, keys, purges and the audit trail: all that is not one tenant's own."""


class Caller(Struct, frozen=True, kw_only=True):
    """Who makes a request: nothing in the request itself can change the tenant."""

    tenant: str
    who: str
    """As the audit trail and every command record it: `key:ID`, or `jwt:SUBJECT`."""
    scopes: frozenset[Scope]
    rate_per_second: float | None = None
    """Of the key, where it has a limit of its own."""
    rate_key: str = ""
    """Whose bucket its requests are counted in."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes
