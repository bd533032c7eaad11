"""What a store's test file supplies so that the suite can run against it."""

from __future__ import annotations

from typing import Protocol

from homing.core.ports import Backend


class Harness(Protocol):
    """An empty store, its time under control, and a second way in.

    The suite lets real time pass between calls too, so a store whose clock only has an offset will do:
    no test depends on less than several seconds.
    """

    @property
    def store(self) -> Backend:
        """Opened, migrated and empty."""

    async def advance(self, duration_ms: int) -> None:
        """Lets that much time pass by the clock of the store (and of all that `second` gave)."""

    async def second(self) -> Backend:
        """Another instance over the same data, opened, as a second process would have it.

        The harness closes it when the test is over.
        """
