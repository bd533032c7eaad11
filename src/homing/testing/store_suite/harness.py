"""The interface between a store's test file and the suite."""

from __future__ import annotations

from typing import Protocol

from homing.core.ports import Backend


class Harness(Protocol):
    """An empty store whose clock the suite can advance, and further instances over the same data.

    Real time may pass between calls too, because no test depends on differences of less than several seconds.
    So a
    clock with an adjustable offset is enough.
    """

    @property
    def store(self) -> Backend:
        """Returns the store: opened, migrated and empty."""

    async def advance(self, duration_ms: int) -> None:
        """Advances the clock of the store and of all instances that `second` returned."""

    async def second(self) -> Backend:
        """Returns another open instance over the same data, as a second process would have.

        The harness closes the instance after the test.
        """
