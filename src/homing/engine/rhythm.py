"""When a worker looks for more: as soon as there may be something, but not for every little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from homing.core.ports import Clock, Waker

_NEVER_MS = 2**62
_GATHER_MS = 10
"""One claim for a hundred costs little more than one for one: who is busy gathers for this long."""


class Rhythm:
    """Sleeps between the looks of one worker. `is_busy` says whether it has enough to do meanwhile."""

    def __init__(self, waker: Waker, clock: Clock, is_busy: Callable[[], bool]) -> None:
        self._waker = waker
        self._clock = clock
        self._is_busy = is_busy
        self._due_ms = _NEVER_MS
        """When something is there that the last look could not know of."""
        self._gathered_ms = 0
        self._soon = False
        """It has been told to look soon, since it last looked."""
        self._sleeps = False
        self._alarm: asyncio.TimerHandle | None = None
        self.looked_ms: int | None = None

    def look(self) -> None:
        """It looks now: what was to be looked for until now is seen to."""
        self.close()
        self._soon = False
        self.looked_ms = self._clock.monotonic_ms()
        self._gathered_ms, self._due_ms = self.looked_ms + _GATHER_MS, _NEVER_MS

    def look_soon(self) -> None:
        """There is a little more room than there was."""
        if not self._soon:
            self._soon = True
            self.look_in(_GATHER_MS)

    def look_in(self, wait_ms: int) -> None:
        """There will be something then."""
        at_ms = self._clock.monotonic_ms() + wait_ms
        if at_ms >= self._due_ms:
            return
        self._due_ms = at_ms
        if self._sleeps:
            self.close()
            self._alarm = asyncio.get_running_loop().call_later(wait_ms / 1000, self._waker.wake)

    async def sleep(self, wait_ms: int) -> None:
        """Until it is woken, or the time has come."""
        self._sleeps = True
        await self._waker.wait(max(1, min(wait_ms, self._due_ms - self._clock.monotonic_ms())))
        while self._is_busy() and (left_ms := self._gathered_ms - self._clock.monotonic_ms()) > 0:
            await self._waker.wait(left_ms)
        self._sleeps = False

    def close(self) -> None:
        """No alarm is set any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
