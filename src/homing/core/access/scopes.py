"""Access control: scopes, the authenticated caller of a request, and the names of tenants."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from homing.core.errors import InvalidRequest

TENANT_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

_TENANT = re.compile(TENANT_PATTERN.removesuffix("$") + r"\Z")


class Scope(StrEnum):
    """Permission of a caller. Scopes do not include each other, except that `admin` includes all."""

    SEND = "send"
    """Send notifications, and look up and cancel them."""
    READ = "read"
    """Read the tenant's data, except for keys and the audit trail."""
    OPERATE = "operate"
    """Retry, resend, acknowledge, cancel, reschedule and resolve existing notifications."""
    MANAGE = "manage"
    """Write recipients, devices, preferences, suppressions and templates."""
    ADMIN = "admin"
    """Change policies, providers, tenants and keys, purge data, and read the audit trail."""


class Caller(Struct, frozen=True, kw_only=True):
    """The authenticated author of a request. Nothing in the request itself can change the tenant."""

    tenant: str
    who: str
    """Identity as recorded in the audit trail and with every command: `key:ID` or `jwt:SUBJECT`."""
    scopes: frozenset[Scope]
    rate_per_second: float | None = None
    """Rate limit of the caller, in requests per second. 0 means no limit. If None, the service's default
    applies."""
    rate_key: str = ""
    """Key of the token bucket in which the caller's requests are counted."""

    def may(self, scope: Scope) -> bool:
        """Returns True if the caller has this scope or `admin`."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


def check_tenant(name: Any, where: str = "tenant") -> str:
    """Returns the name. Raises `InvalidRequest` unless it is a valid name for a new tenant."""
    if not isinstance(name, str) or not _TENANT.match(name):
        allowed = "1 to 63 letters a-z and A-Z, digits and . _ - and start with a letter or digit"
        raise InvalidRequest(where, f"must have {allowed}")
    return name


def read_scopes(names: Iterable[Any], where: str = "scopes") -> tuple[Scope, ...]:
    """Returns the named scopes without repetitions, in the order of `Scope`.

    Raises `InvalidRequest` if a name is unknown or none is given.
    """
    given = list(names)
    for name in given:
        if not isinstance(name, str) or name not in tuple(Scope):
            allowed = ", ".join(scope.value for scope in Scope)
            raise InvalidRequest(where, f"has {name!r}; each scope must be one of {allowed}")
    if not given:
        raise InvalidRequest(where, "is empty; name at least one scope")
    return tuple(scope for scope in Scope if scope in given)
