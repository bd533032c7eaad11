"""Limits how many attempts run at one provider at the same time."""

from __future__ import annotations

import asyncio
from collections import deque


class ConcurrencyLimit:
    """A first-come, first-served semaphore whose fast path needs no await."""

    def __init__(self, slots: int) -> None:
        self._free_slots = slots
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Takes a slot and returns True, or returns False if none is free."""
        if self._free_slots <= 0:
            return False
        self._free_slots -= 1
        return True

    async def wait(self) -> None:
        """Takes a slot, waiting in line until one is free."""
        if self.take():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # The slot was handed over just before the cancellation: pass it on.
            raise

    def release(self) -> None:
        """Hands the slot to the longest-waiting caller, or frees it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free_slots += 1
