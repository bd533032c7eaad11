"""What the store said a moment ago, so that not every request has to ask it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from homing.core.ports import Clock

T = TypeVar("T")

_MOST_AT_ONCE = 1_000


class Remembered(Generic[T]):
    """Values by key, read through and kept for `for_ms`; also that there is none.

    One read is under way at a time, for all who wait: however many keys are asked for that nobody has, the
    store is asked one question after the other. What is there and what is not are bounded apart, so that
    guesses push out nothing but other guesses.
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
        self._there: dict[str, tuple[T, int]] = {}
        self._missing: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[T | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._changes = 0

    def __contains__(self, key: str) -> bool:
        """Whether something is remembered of it, fresh or not."""
        return key in self._there or key in self._missing

    async def get(self, key: str) -> T | None:
        """The value as it was at most `for_ms` ago."""
        now = self._clock.monotonic_ms()
        kept = self._there.get(key)
        if kept is not None and kept[1] > now:
            return kept[0]
        if self._missing.get(key, now) > now:
            return None
        return await asyncio.shield(self._asked(key))

    def forget(self, key: str) -> None:
        """It was changed here: the next one asks. A read that is under way is not believed either."""
        self._changes += 1
        self._there.pop(key, None)
        self._missing.pop(key, None)

    def _asked(self, key: str) -> asyncio.Future[T | None]:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all(), name="homing-remembering")
        return waiting

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                keys = list(self._waiting)[:_MOST_AT_ONCE]
                asking = {key: self._waiting.pop(key) for key in keys}
                await self._answer(asking)
        finally:
            self._reading = None

    async def _answer(self, asking: Mapping[str, asyncio.Future[T | None]]) -> None:
        changes = self._changes
        try:
            found = await self._read(list(asking))
        except Exception as error:
            for waiting in asking.values():
                waiting.set_exception(error)
                waiting.exception()  # whoever asked may have gone
            return
        until = self._clock.monotonic_ms() + self._for_ms
        for key, waiting in asking.items():
            value = found.get(key)
            if changes == self._changes:
                self._keep(key, value, until)
            waiting.set_result(value)

    def _keep(self, key: str, value: T | None, until: int) -> None:
        if value is None:
            self._there.pop(key, None)
            _put_last(self._missing, key, until, self._most)
        else:
            self._missing.pop(key, None)
            _put_last(self._there, key, (value, until), self._most)


K = TypeVar("K")
V = TypeVar("V")


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Puts it at the end; the one that was put first leaves where there are too many."""
    kept.pop(key, None)
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
