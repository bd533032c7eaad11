"""Requests and answers about tenants, API keys and the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from homing.core.access.api_keys import DEFAULT_OVERLAP_MS, MAX_OVERLAP_MS, MAX_RATE_PER_SECOND, ApiKey
from homing.core.access.scopes import TENANT_PATTERN, Scope
from homing.core.access.tenants import Tenant
from homing.wire.common import Cursor, Limit, Text

TenantName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern=TENANT_PATTERN,
        extra={"form": "letters, digits and . _ -, starting with a letter or digit"},
        examples=["acme"],
        description="Name of the tenant: letters, digits, `.`, `_` and `-`. Capitals matter.",
    ),
]

AnyTenantName = Annotated[Text, Meta(examples=["acme"])]
"""Name of an existing tenant. Tenants created through the library can have other characters."""


class CreateTenantBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Properties of a new tenant."""

    name: TenantName


class TenantPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of tenants, ordered by name."""

    items: tuple[Tenant, ...]
    """Tenants of this page."""
    cursor: str | None = None
    """Cursor of the next page. Null on the last page."""


class TenantQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Selects a page of tenants."""

    limit: Limit = 50
    cursor: Cursor | None = None


KeyName = Annotated[
    str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$", examples=["web shop"])
]


class CreateKeyBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Properties of a new API key."""

    name: KeyName
    """Purpose of the key, for people who find it in a list."""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=20, examples=[["send", "read"]])]
    """Permissions of the key. `admin` includes all others."""
    tenant: AnyTenantName | None = None
    """Tenant that the key belongs to. If omitted, the caller's tenant."""
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    """Time at which the key expires. If omitted, it never expires."""
    rate_per_second: Annotated[float, Meta(ge=0, le=MAX_RATE_PER_SECOND)] | None = None
    """Average number of requests per second that are allowed, at least 0.001, or 0 for no limit.

    If omitted, the service's default applies.
    """


class RotateKeyBody(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Options for the rotation of an API key."""

    overlap_ms: Annotated[int, Meta(ge=0, le=MAX_OVERLAP_MS)] = DEFAULT_OVERLAP_MS
    """Time for which the old key stays valid beside the new one, in milliseconds."""


class KeyPage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of API keys, ordered by id."""

    items: tuple[ApiKey, ...]
    """Keys of this page."""
    cursor: str | None = None
    """Cursor of the next page. Null on the last page."""


class KeyQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Selects API keys and a page of them."""

    tenant: AnyTenantName | None = None
    """Tenant whose keys are listed. If omitted, the keys of all tenants are listed."""
    limit: Limit = 50
    cursor: Cursor | None = None


class AuditQuery(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Selects the tenant's audit trail or the one that all tenants share, and a page of it."""

    shared: bool = False
    """If true, lists actions that concern all tenants: on policies, providers, settings, sinks and tenants,
    and purges.
    """
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
