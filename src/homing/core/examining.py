"""Checks that a store can run on itself."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from msgspec import Struct


class Finding(Struct, frozen=True, kw_only=True):
    """Result of one check. `advice` says how to fix a failed one; it is empty if the check passed."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


@runtime_checkable
class Examines(Protocol):
    """A store that can check its server, schema and permissions."""

    async def examine(self, *, now_ms: int) -> tuple[Finding, ...]:
        """Checks server, schema, grants and clock, without changes. `now_ms` is the caller's own time."""
