"""Writes batches so that one item that the store refuses for good does not harm the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from homing.core.errors import StoreError, StoreRejected

T = TypeVar("T")

R = TypeVar("R")


def is_rejection(error: Exception) -> bool:
    """Returns True if the store refuses the data."""
    return isinstance(error, StoreRejected)


def may_concern_item(error: Exception) -> bool:
    """Returns True if the store refuses the data, or if the error is not about the store at all."""
    return is_rejection(error) or not isinstance(error, StoreError)


async def write_isolated(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    refuse: Callable[[T, StoreRejected], Awaitable[R]],
) -> list[R]:
    """Writes all items in one call, or in halves if the store refuses them, and returns one result for each.

    `write` returns one result per item, in the same order. An item that the store refuses although it is
    alone gets the result of `refuse`. With one refused item among n, about 2 log₂ n calls are made.
    """

    async def refuse_one(item: T, error: Exception) -> Sequence[R]:
        if not isinstance(error, StoreRejected):
            raise error
        return [await refuse(item, error)]

    return [one for part in await write_in_parts(items, write, refuse_one) for one in part]


async def write_in_parts(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[R]],
    refuse: Callable[[T, Exception], Awaitable[R]],
    isolates: Callable[[Exception], bool] = is_rejection,
) -> list[R]:
    """Works like `write_isolated`, but returns one result per call of `write` that succeeded.

    The results are in the order of the items, and include that of `refuse` for each refused item. `isolates`
    decides which errors may be the fault of single items. Other errors are raised.
    """
    try:
        return [await write(items)]
    except Exception as error:
        if not isolates(error):
            raise
        if len(items) == 1:
            return [await refuse(items[0], error)]
    middle = len(items) // 2
    return [
        *await write_in_parts(items[:middle], write, refuse, isolates),
        *await write_in_parts(items[middle:], write, refuse, isolates),
    ]
