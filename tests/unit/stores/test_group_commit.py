"""Group commit while the store is away: a group fails together, after one more try."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from homing.core.errors import StoreBusy, StoreRejected, StoreUnavailable
from homing.stores.common.group_commit import GroupCommit


class Action:
    """Doubles numbers, unless it raises one of the given errors first."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.groups: list[list[int]] = []

    async def __call__(self, parts: Sequence[int], patient: bool) -> list[int]:
        self.groups.append(list(parts))
        await asyncio.sleep(0)
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return [2 * part for part in parts]


async def _do_all(action: Action, number: int) -> list[int | BaseException]:
    commit = GroupCommit(action)
    return await asyncio.gather(*(commit.do(part) for part in range(number)), return_exceptions=True)


async def test_no_call_of_a_group_tries_alone_while_the_store_is_away() -> None:
    action = Action(*(StoreUnavailable("away") for _ in range(100)))
    results = await _do_all(action, 50)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert action.groups == [list(range(50))] * 2


async def test_a_group_is_repeated_once_if_its_connection_was_lost() -> None:
    action = Action(StoreUnavailable("the connection was lost"))
    assert await _do_all(action, 3) == [0, 2, 4]
    assert action.groups == [[0, 1, 2]] * 2


@pytest.mark.parametrize("error", [StoreRejected("bad data"), StoreBusy("locked")])
async def test_any_other_error_of_a_group_is_met_by_each_call_alone(error: Exception) -> None:
    action = Action(error, None, StoreRejected("bad data"))
    results = await _do_all(action, 3)
    assert [results[0], results[2]] == [0, 4]
    assert isinstance(results[1], StoreRejected)
    assert action.groups == [[0, 1, 2], [0], [1], [2]]
