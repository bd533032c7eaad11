"""A credential that expires: fetched once for all sends that wait for it, and refreshed in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from msgspec import Struct, structs

from homing.core.lifecycle.outcomes import Outcome
from homing.providers.common.http_provider import WallClock

_T = TypeVar("_T")

_NEVER = 1 << 62

_REJECTED = 0

_RETRY_PAUSE_MS = 10_000
"""Pause between two background refreshes, and how long before its expiry a credential is no longer used."""


class FetchedCredential(Struct, Generic[_T], frozen=True):
    """A credential and when, in epoch milliseconds, to refresh it and to stop using it."""

    value: _T
    refresh_at: int = _NEVER
    useless_at: int = _NEVER


def expiring_credential(
    value: _T, now_ms: int, lifetime_ms: int, refresh_early_ms: int
) -> FetchedCredential[_T]:
    """Returns a credential that expires `lifetime_ms` after `now_ms`.

    It is refreshed `refresh_early_ms` before, or earlier than that by at most a quarter of a short lifetime.
    """
    return FetchedCredential(
        value,
        refresh_at=now_ms + lifetime_ms - min(refresh_early_ms, lifetime_ms // 4),
        useless_at=now_ms + lifetime_ms - min(_RETRY_PAUSE_MS, lifetime_ms // 10),
    )


class SharedCredential(Generic[_T]):
    """Provides the current credential. It is fetched only once, however many sends wait for it.

    `fetch` returns a new credential, or the outcome of attempts while none is available. `unavailable`
    returns the outcome for an error text, which contains `name`.
    """

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Awaitable[FetchedCredential[_T] | Outcome]],
        unavailable: Callable[[str], Outcome],
        now_ms: WallClock,
    ) -> None:
        self._name = name
        self._fetch = fetch
        self._unavailable = unavailable
        self._now_ms = now_ms
        self._current: FetchedCredential[_T] | None = None
        self._fetching: asyncio.Task[Outcome | None] | None = None
        self._next_try_at = 0

    @property
    def value(self) -> _T | None:
        """The credential that was fetched last, even if it was rejected. None before the first fetch."""
        return None if self._current is None else self._current.value

    async def get(self, within_ms: int) -> _T | Outcome:
        """Returns a credential that is not about to expire, or the attempt's outcome if none is available.

        The outcome is never ambiguous, because no message was sent yet.
        """
        current, now = self._current, self._now_ms()
        if current is None or now >= current.useless_at:
            return await self._fetch_and_wait(within_ms)
        if now >= current.refresh_at and now >= self._next_try_at:
            self._next_try_at = now + _RETRY_PAUSE_MS
            self._fetch_once()
        return current.value

    async def replace(self, refused: _T, within_ms: int) -> _T | Outcome:
        """Returns a credential fetched after the rejected one. Another send may already have fetched it."""
        if self._current is not None and self._current.value is not refused:
            return self._current.value
        if self._current is not None:
            self._current = structs.replace(self._current, useless_at=_REJECTED)
        return await self._fetch_and_wait(within_ms)

    async def close(self) -> None:
        """Cancels the fetch in progress, if any."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch_and_wait(self, within_ms: int) -> _T | Outcome:
        task = self._fetch_once()
        # A send that stops waiting does not cancel the fetch, because others may wait for it.
        await asyncio.wait({task}, timeout=within_ms / 1000)
        if not task.done() or task.cancelled():
            return self._unavailable(f"no {self._name} within {within_ms} ms")
        failure = task.result()
        if failure is not None:
            return failure
        if self._current is None or self._current.useless_at == _REJECTED:
            return self._unavailable(f"no valid {self._name}")
        return self._current.value

    def _fetch_once(self) -> asyncio.Task[Outcome | None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_and_keep())
        return self._fetching

    async def _fetch_and_keep(self) -> Outcome | None:
        found = await self._fetch()
        if isinstance(found, Outcome):
            return found
        self._current = found
        return None
