"""The memory store keeps the promises of the port."""

from __future__ import annotations

import pytest

from homing.core.errors import StoreError
from homing.core.ports import Backend
from homing.stores.memory import MemoryStore
from homing.testing.builders import a_submission
from homing.testing.clock import ManualClock
from homing.testing.store_suite import StoreSuite


class MemoryHarness:
    """A memory store on a manual clock; a second instance over the same data is the store itself."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.store: Backend = MemoryStore(self._clock)

    async def advance(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms)

    async def second(self) -> Backend:
        return self.store


class TestMemoryStore(StoreSuite):
    """The suite, against the memory store."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


async def test_a_foreign_transaction_is_refused() -> None:
    store = MemoryStore(ManualClock())
    with pytest.raises(StoreError):
        await store.accept([a_submission()], tx=object())
    assert await store.tallies(None) == ()
