"""How many a provider takes at once: who comes too many waits in line."""

from __future__ import annotations

import asyncio
from collections import deque


class Seats:
    """A semaphore that costs nothing while there is a free seat."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Takes a seat if one is free and nobody waits for it."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Takes the next seat that comes free."""
        if self.take():
            return
        seat: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(seat)
        try:
            await seat
        except asyncio.CancelledError:
            if seat.done() and not seat.cancelled():  # it was given one at that very moment
                self.release()
            raise

    def release(self) -> None:
        """Gives the seat to who waits longest, or leaves it free."""
        while self._waiting:
            seat = self._waiting.popleft()
            if not seat.done():
                seat.set_result(None)
                return
        self._free += 1
