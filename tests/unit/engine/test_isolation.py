"""One item that the store refuses does not harm the others of its batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from homing.core.errors import StoreRejected, StoreUnavailable
from homing.engine.isolation import may_concern_item, write_in_parts, write_isolated


class Target:
    """Takes numbers, apart from those that it refuses, and keeps the calls that succeeded."""

    def __init__(self, refused: dict[int, Exception]) -> None:
        self.refused = refused
        self.taken: list[list[int]] = []

    async def write(self, part: Sequence[int]) -> list[str]:
        for number in part:
            if number in self.refused:
                raise self.refused[number]
        self.taken.append(list(part))
        return [f"{number} written" for number in part]

    async def count(self, part: Sequence[int]) -> int:
        return len(await self.write(part))


async def refuse(number: int, error: Exception) -> str:
    return f"{number} refused"


async def none(number: int, error: Exception) -> int:
    return 0


async def test_every_item_has_its_result_in_order() -> None:
    target = Target({2: StoreRejected(), 5: StoreRejected()})
    found = await write_isolated(range(8), target.write, refuse)
    assert found == [f"{n} {'refused' if n in (2, 5) else 'written'}" for n in range(8)]


async def test_parts_have_one_result_per_call() -> None:
    target = Target({2: StoreRejected()})
    assert await write_in_parts(range(8), target.count, none) == [2, 0, 1, 4]
    assert target.taken == [[0, 1], [3], [4, 5, 6, 7]]
    assert await write_in_parts(range(8), Target({}).count, none) == [8]


async def test_an_outage_is_raised_and_an_unexpected_error_only_if_it_may_concern_an_item() -> None:
    for error in (StoreUnavailable(), KeyError("a bug")):
        with pytest.raises(type(error)):
            await write_in_parts(range(4), Target({1: error}).count, none)
    with pytest.raises(StoreUnavailable):
        await write_in_parts(range(4), Target({1: StoreUnavailable()}).count, none, may_concern_item)
    isolated = await write_in_parts(range(4), Target({1: KeyError("a bug")}).count, none, may_concern_item)
    assert isolated == [1, 0, 2]
