"""The keychain's cache of the store's answers: how long, how many, and what is not cached."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from homing.core.errors import StoreUnavailable
from homing.engine.access.key_cache import ReadThroughCache
from homing.testing.manual_clock import ManualClock


class SlowReader:
    """Answers when the test lets it."""

    def __init__(self, **values: str) -> None:
        self.values = values
        self.asked: list[tuple[str, ...]] = []
        self.away = False
        self._may = asyncio.Event()
        self._may.set()

    def hold(self) -> None:
        self._may.clear()

    def let_go(self) -> None:
        self._may.set()

    async def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        self.asked.append(tuple(keys))
        found = {key: self.values[key] for key in keys if key in self.values}
        await self._may.wait()
        if self.away:
            raise StoreUnavailable
        return found


def remembered(shelf: SlowReader, clock: ManualClock, most: int = 100) -> ReadThroughCache[str]:
    return ReadThroughCache(shelf.read, clock, for_ms=5_000, most=most)


async def test_a_value_read_before_a_local_change_is_returned_but_not_cached() -> None:
    shelf, clock = SlowReader(a="old"), ManualClock()
    memory = remembered(shelf, clock)
    shelf.hold()
    early = asyncio.create_task(memory.get("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert shelf.asked == [("a",)]
    shelf.values["a"] = "new"
    memory.forget("a")
    shelf.let_go()
    assert await early == "old"
    assert await memory.get("a") == "new"


async def test_its_size_is_limited_and_the_oldest_entry_leaves_first() -> None:
    shelf, clock = SlowReader(**{f"k{n}": "v" for n in range(5)}), ManualClock()
    memory = remembered(shelf, clock, most=3)
    for n in range(5):
        await memory.get(f"k{n}")
        await memory.get(f"no{n}")
    kept = [key for n in range(5) for key in (f"k{n}", f"no{n}") if key in memory]
    assert kept == ["k2", "no2", "k3", "no3", "k4", "no4"]
    clock.advance(5_000)
    await memory.get("k2")
    await memory.get("k0")
    assert [key for key in shelf.values if key in memory] == ["k0", "k2", "k4"], "k2 was read again"


async def test_callers_that_arrive_during_a_read_share_the_next_one() -> None:
    shelf, clock = SlowReader(a="1", b="2", c="3"), ManualClock()
    memory = remembered(shelf, clock)
    shelf.hold()
    asking = [asyncio.create_task(memory.get(key)) for key in ("a", "b", "b", "c", "x")]
    for _ in range(3):
        await asyncio.sleep(0)
    late = [asyncio.create_task(memory.get(key)) for key in ("d", "e")]
    await asyncio.sleep(0)
    shelf.let_go()
    assert await asyncio.gather(*asking, *late) == ["1", "2", "2", "3", None, None, None]
    assert sum(map(len, shelf.asked)) == 6
    assert len(shelf.asked) <= 2


async def test_an_entry_is_read_again_after_its_time_and_dropped_if_it_was_deleted() -> None:
    shelf, clock = SlowReader(a="1"), ManualClock()
    memory = remembered(shelf, clock)
    assert await memory.get("a") == "1"
    del shelf.values["a"]
    shelf.values["b"] = "2"
    assert await memory.get("a") == "1"
    clock.advance(5_000)
    assert await memory.get("a") is None
    assert await memory.get("b") == "2"


async def test_an_error_reaches_all_waiting_callers_and_is_not_cached() -> None:
    shelf, clock = SlowReader(a="1"), ManualClock()
    memory = remembered(shelf, clock)
    shelf.away = True
    answers = await asyncio.gather(memory.get("a"), memory.get("b"), return_exceptions=True)
    assert [type(one) for one in answers] == [StoreUnavailable] * 2
    shelf.away = False
    assert await memory.get("a") == "1"


async def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    shelf, clock = SlowReader(a="1"), ManualClock()
    memory = remembered(shelf, clock)
    shelf.hold()
    one, other = asyncio.create_task(memory.get("a")), asyncio.create_task(memory.get("a"))
    await asyncio.sleep(0)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    shelf.let_go()
    assert await other == "1"
