"""What a store can tell about itself before anybody relies on it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from msgspec import Struct


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `advice` says what to do where it is not as it should be."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


@runtime_checkable
class Examines(Protocol):
    """A store on a server: there is more to look at than a file."""

    async def examine(self, *, now_ms: int) -> tuple[Finding, ...]:
        """Server, schema, grants and clock; `now_ms` is the caller's own time. Changes nothing."""
