"""Decides when a worker makes its next claim: soon after work may exist, but not once per notification."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from homing.core.ports.runtime import Clock
from homing.engine.system_runtime import LocalWaker

_NEVER_MS = 2**62

_BATCHING_WINDOW_MS = 10
"""Minimum time between claims of a busy worker.

A claim of a hundred notifications costs little more than a claim of one.
"""


class WakeTimer:
    """Sleeps between the claims of one worker.

    `is_busy` returns True while the worker has enough attempts in flight. The next claim then waits until
    the batching window has ended.
    """

    def __init__(self, waker: LocalWaker, clock: Clock, is_busy: Callable[[], bool]) -> None:
        self._waker = waker
        self._clock = clock
        self._is_busy = is_busy
        self._next_claim_ms = _NEVER_MS
        """Monotonic time of the earliest claim requested since the last one started."""
        self._window_ends_ms = 0
        self._batch_requested = False
        """True if `claim_soon` was called since the last claim started."""
        self._sleeping = False
        self._alarm: asyncio.TimerHandle | None = None
        self.last_claim_ms: int | None = None
        """Monotonic time at which the last claim started. None before the first claim."""

    def claim_started(self) -> None:
        """Clears all requests for a claim, because the claim that starts now serves them."""
        self.close()
        self._batch_requested = False
        self.last_claim_ms = self._clock.monotonic_ms()
        self._window_ends_ms, self._next_claim_ms = self.last_claim_ms + _BATCHING_WINDOW_MS, _NEVER_MS

    def claim_soon(self) -> None:
        """Requests a claim after 10 ms, so that one claim can fill all slots that become free until then."""
        if not self._batch_requested:
            self._batch_requested = True
            self.claim_in(_BATCHING_WINDOW_MS)

    def claim_in(self, wait_ms: int) -> None:
        """Requests a claim in `wait_ms`, unless one is requested for an earlier time."""
        at_ms = self._clock.monotonic_ms() + wait_ms
        if at_ms >= self._next_claim_ms:
            return
        self._next_claim_ms = at_ms
        if self._sleeping:
            self.close()
            self._alarm = asyncio.get_running_loop().call_later(wait_ms / 1000, self._waker.wake)

    async def sleep(self, wait_ms: int) -> None:
        """Sleeps until `wait_ms` has elapsed, the waker is woken, or a requested claim is due.

        A busy worker sleeps at least until the batching window has ended.
        """
        self._sleeping = True
        await self._waker.wait(max(1, min(wait_ms, self._next_claim_ms - self._clock.monotonic_ms())))
        while self._is_busy() and (left_ms := self._window_ends_ms - self._clock.monotonic_ms()) > 0:
            await self._waker.wait(left_ms)
        self._sleeping = False

    def close(self) -> None:
        """Cancels the pending alarm, if any."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
