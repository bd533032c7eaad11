"""A short-lived cache of store reads, so that not every request reads the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from homing.core.ports.runtime import Clock

T = TypeVar("T")


_MAX_KEYS_PER_READ = 1_000


class ReadThroughCache(Generic[T]):
    """A read-through cache. Remembers for `for_ms` which value a key has, or that the key is absent.

    Only one read runs at a time and serves all waiting callers, so that requests for many unknown keys cannot
    flood the store. At most `most` present and `most` absent keys are cached, so that guessed keys displace
    only other guesses.
    """

    def __init__(
        self,
        read: Callable[[Sequence[str]], Awaitable[Mapping[str, T]]],
        clock: Clock,
        *,
        for_ms: int,
        most: int,
    ) -> None:
        self._read = read
        self._clock = clock
        self._for_ms = for_ms
        self._most = most
        self._present: dict[str, tuple[T, int]] = {}
        self._absent: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[T | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._changes = 0

    def __contains__(self, key: str) -> bool:
        """Returns True if the key is cached as present or absent, even if expired."""
        return key in self._present or key in self._absent

    async def get(self, key: str) -> T | None:
        """Returns the value of a key, at most `for_ms` old, or None if the key is absent."""
        now = self._clock.monotonic_ms()
        kept = self._present.get(key)
        if kept is not None and kept[1] > now:
            return kept[0]
        if self._absent.get(key, now) > now:
            return None
        return await asyncio.shield(self._request(key))

    def forget(self, key: str) -> None:
        """Removes a key from the cache after a change, so that the next `get` reads the store.

        The result of a read in progress is not cached either.
        """
        self._changes += 1
        self._present.pop(key, None)
        self._absent.pop(key, None)

    def _request(self, key: str) -> asyncio.Future[T | None]:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all(), name="homing-remembering")
        return waiting

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                keys = list(self._waiting)[:_MAX_KEYS_PER_READ]
                waiters = {key: self._waiting.pop(key) for key in keys}
                await self._read_batch(waiters)
        finally:
            self._reading = None

    async def _read_batch(self, waiters: Mapping[str, asyncio.Future[T | None]]) -> None:
        changes = self._changes
        try:
            found = await self._read(list(waiters))
        except Exception as error:
            for waiting in waiters.values():
                waiting.set_exception(error)
                waiting.exception()  # marks the error as retrieved, because the caller may be gone
            return
        until = self._clock.monotonic_ms() + self._for_ms
        for key, waiting in waiters.items():
            value = found.get(key)
            if changes == self._changes:
                self._store(key, value, until)
            waiting.set_result(value)

    def _store(self, key: str, value: T | None, until: int) -> None:
        if value is None:
            self._present.pop(key, None)
            _put_last(self._absent, key, until, self._most)
        else:
            self._absent.pop(key, None)
            _put_last(self._present, key, (value, until), self._most)


K = TypeVar("K")

V = TypeVar("V")


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Adds a key at the end, and removes the oldest key if there are `most` already."""
    kept.pop(key, None)
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
