"""Group commit: calls that come while a transaction is under way share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from homing.core.errors import StoreBusy

P = TypeVar("P")
R = TypeVar("R")

_GROUP = 64
"""Calls in one transaction at most: bounds how long the first of them waits for the last."""


class Together(Generic[P, R]):
    """Does the same for the parts of several callers; a caller that goes away has no effect on the others."""

    def __init__(self, action: Callable[[Sequence[P], bool], Awaitable[Sequence[R]]]) -> None:
        """`action` gives one result for each part, in their order, from one transaction.

        Its second argument says whether it may wait for what another transaction holds.
        """
        self._action = action
        self._waiting: list[tuple[P, asyncio.Future[R]]] = []
        self._working: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

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
        while self._alone:
            await asyncio.wait(self._alone)

    async def _work(self) -> None:
        """One of a group may be at fault, or have to wait: then each goes on alone, and holds up nobody."""
        while self._waiting:
            calls, self._waiting = self._waiting[:_GROUP], self._waiting[_GROUP:]
            try:
                results = await self._action([part for part, _ in calls], False)
            except Exception as error:
                if len(calls) == 1 and not isinstance(error, StoreBusy):
                    _resolve(calls[0][1], None, error)
                    continue
                for call in calls:
                    alone = asyncio.create_task(self._do_alone(*call), name="homing-alone")
                    self._alone.add(alone)
                    alone.add_done_callback(self._alone.discard)
                continue
            for (_, answer), result in zip(calls, results, strict=True):
                _resolve(answer, result, None)

    async def _do_alone(self, part: P, answer: asyncio.Future[R]) -> None:
        try:
            [result] = await self._action([part], True)
        except Exception as error:
            _resolve(answer, None, error)
        else:
            _resolve(answer, result, None)


def _resolve(answer: asyncio.Future[R], result: R | None, error: Exception | None) -> None:
    if answer.done():  # whoever asked has gone
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type]
