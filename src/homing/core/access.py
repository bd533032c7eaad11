"""Who may do what: the scopes of a key, and the caller that a request turns out to be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from homing.core.errors import InvalidRequest

TENANT_PATTERN = "^[a-z0-9][a-z0-9._-]{0,62}$"
_TENANT = re.compile(TENANT_PATTERN.removesuffix("$") + r"\Z")


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


def check_tenant(name: Any, where: str = "tenant") -> str:
    """A name that a new tenant may have: one that cannot be mistaken for another."""
    if not isinstance(name, str) or not _TENANT.match(name):
        raise InvalidRequest(where, "must have 1 to 63 of a-z, 0-9, . _ -, and begin with a letter or digit")
    return name


def scopes_from(names: Iterable[Any], where: str = "scopes") -> tuple[Scope, ...]:
    """Scopes by their names, each once, in the order of their rank; at least one."""
    given = list(names)
    for name in given:
        if not isinstance(name, str) or name not in tuple(Scope):
            allowed = ", ".join(scope.value for scope in Scope)
            raise InvalidRequest(where, f"has {name!r}; allowed are {allowed}")
    if not given:
        raise InvalidRequest(where, "is empty; a key without a scope is good for nothing")
    return tuple(scope for scope in Scope if scope in given)
