"""Group commit: calls that come while a transaction is under way share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

P = TypeVar("P")
R = TypeVar("R")

_GROUP = 64
"""Calls in one transaction at most: bounds how long the first of them waits for the last."""


class Together(Generic[P, R]):
    """Does the same for the parts of several callers; a caller that goes away has no effect on the others."""

    def __init__(self, action: Callable[[Sequence[P]], Awaitable[Sequence[R]]]) -> None:
        """`action` gives one result for each part, in their order, from one transaction."""
        self._action = action
        self._waiting: list[tuple[P, asyncio.Future[R]]] = []
        self._working: asyncio.Task[None] | None = None

    async def do(self, part: P) -> R:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((part, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="homing-group-commit")
        return await answer

    async def finish(self) -> None:
        """Waits for what is under way."""
        if self._working is not None:
            await self._working

    async def _work(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting[:_GROUP], self._waiting[_GROUP:]
            if not await self._try(calls, alone=len(calls) == 1):
                for call in calls:  # one of them is at fault: each on its own
                    await self._try([call], alone=True)

    async def _try(self, calls: Sequence[tuple[P, asyncio.Future[R]]], *, alone: bool) -> bool:
        try:
            results = await self._action([part for part, _ in calls])
        except Exception as error:
            if not alone:
                return False
            _resolve(calls[0][1], None, error)
            return True
        for (_, answer), result in zip(calls, results, strict=True):
            _resolve(answer, result, None)
        return True


def _resolve(answer: asyncio.Future[R], result: R | None, error: Exception | None) -> None:
    if answer.done():  # whoever asked has gone
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type]
