"""What the service takes and answers with: keys.

Written by tools/make_client.py.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from homing.core.access import Scope
from homing.core.keys import ApiKey


class KeyQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose keys, and which page."""

    tenant: str | None = None
    """Only of this tenant; left out: of all."""
    limit: int = 50
    cursor: str | None = None


class KeyPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By id; `cursor` asks for what follows, null is the end."""

    items: tuple[ApiKey, ...]
    cursor: str | None = None


class KeyOrder(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A key to be made."""

    name: str
    """What it is for: whoever finds it in a list should know whom to ask."""
    scopes: tuple[Scope, ...]
    """What it may do; `admin` includes all others."""
    tenant: str | None = None
    """Whose it is; left out: the caller's own."""
    expires_at: datetime | None = None
    """Left out: it does not end by itself."""
    rate_per_second: float | None = None
    """Requests on average, from 0.001; 0: no limit, left out: as the service is set."""


class NewKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key that was just made. `text` is shown this once: nobody can read it again."""

    key: ApiKey
    text: str


class RotateOrder(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How long the old key stays good beside the new one."""

    overlap_ms: int = 86400000
