"""The memory store passes the store suite."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys

import pytest
from msgspec import json

from homing.core.errors import StoreError
from homing.core.ports.stores import Backend
from homing.stores.memory import MemoryStore
from homing.testing.builders import a_submission
from homing.testing.manual_clock import ManualClock
from homing.testing.store_suite import StoreSuite
from homing.testing.store_suite.random_walk import RandomWalker


class MemoryHarness:
    """A memory store on a manual clock. A second instance on the same data is the store itself."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.store: Backend = MemoryStore(self._clock)

    async def advance(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms)

    async def second(self) -> Backend:
        return self.store


class TestMemoryStore(StoreSuite):
    """Runs the suite on the memory store."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


async def test_a_foreign_transaction_is_refused() -> None:
    store = MemoryStore(ManualClock())
    with pytest.raises(StoreError):
        await store.accept([a_submission()], tx=object())
    assert await store.tallies(None) == ()


def test_the_same_steps_give_the_same_events_in_every_process() -> None:
    """A simulation must depend only on its seed, not on the order of sets or on hashes."""
    walks = [
        subprocess.run(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=240,
        ).stdout
        for seed in ("1", "2")
    ]
    assert walks[0].count(b"StatusChanged") > 100
    assert walks[0] == walks[1]


async def _walk() -> bytes:
    harness = MemoryHarness()
    walker = RandomWalker(harness, harness.store, random.Random(7))
    for _ in range(300):
        await walker.step()
    return json.encode(await harness.store.outbox("sink", "relay", 100_000, 1))


if __name__ == "__main__":
    sys.stdout.buffer.write(asyncio.run(_walk()))
