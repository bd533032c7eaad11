"""Writes batches so that one item that the store refuses for good does not harm the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from homing.core.errors import StoreRejected

T = TypeVar("T")

R = TypeVar("R")


async def write_isolated(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    refuse: Callable[[T, StoreRejected], Awaitable[R]],
) -> list[R]:
    """Writes all items in one call, or in halves if the store refuses them, and returns one result for each.

    `write` returns one result per item, in the same order. An item that the store refuses although it is
    alone gets the result of `refuse`. With one refused item among n, about 2 log₂ n calls are made.
    """
    try:
        return list(await write(items))
    except StoreRejected as error:
        if len(items) == 1:
            return [await refuse(items[0], error)]
    middle = len(items) // 2
    return [
        *await write_isolated(items[:middle], write, refuse),
        *await write_isolated(items[middle:], write, refuse),
    ]
