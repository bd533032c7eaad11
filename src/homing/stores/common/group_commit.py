"""Group commit: calls that arrive while a transaction is in progress share the next transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from homing.core.errors import StoreBusy, StoreFull, StoreUnavailable

P = TypeVar("P")

R = TypeVar("R")


_MAX_GROUPED_CALLS = 64
"""Maximum number of calls per transaction. It bounds how long the first call waits for the last."""


class GroupCommit(Generic[P, R]):
    """Runs the same action for several callers in one transaction.

    A cancelled caller does not affect others. Its call is left out, unless its transaction has begun.
    """

    def __init__(self, action: Callable[[Sequence[P], bool], Awaitable[Sequence[R]]]) -> None:
        """`action` runs one transaction and returns one result per part, in the same order.

        Its second argument is True if the transaction may wait for locks that another one holds.
        """
        self._action = action
        self._waiting: list[tuple[P, asyncio.Future[R]]] = []
        self._working: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

    async def do(self, part: P) -> R:
        """Runs the action for this part, together with the parts of other callers, and returns its result."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((part, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="homing-group-commit")
        return await answer

    async def finish(self) -> None:
        """Waits for the calls in progress."""
        if self._working is not None:
            await self._working
        while self._alone:
            await asyncio.wait(self._alone)

    async def _work(self) -> None:
        """Runs the waiting calls in groups.

        If a group fails or would have to wait for a lock, each of its calls is run alone, so that no call
        makes the others fail or wait. If the store is away, all calls of the group fail: hundreds of callers
        that each try to connect would take seconds even after the store is back.
        """
        while self._waiting:
            calls, self._waiting = self._waiting[:_MAX_GROUPED_CALLS], self._waiting[_MAX_GROUPED_CALLS:]
            calls = [call for call in calls if not call[1].done()]  # the callers of the others are gone
            if not calls:
                continue
            try:
                results = await self._run([part for part, _ in calls])
            except Exception as error:
                if _is_away(error) or (len(calls) == 1 and not isinstance(error, StoreBusy)):
                    for _, answer in calls:
                        _resolve(answer, None, error)
                    continue
                for call in calls:
                    alone = asyncio.create_task(self._do_alone(*call), name="homing-alone")
                    self._alone.add(alone)
                    alone.add_done_callback(self._alone.discard)
                continue
            for (_, answer), result in zip(calls, results, strict=True):
                _resolve(answer, result, None)

    async def _run(self, parts: Sequence[P]) -> Sequence[R]:
        """Runs one transaction for a group, and again if only its connection may have been lost."""
        try:
            return await self._action(parts, False)
        except StoreUnavailable as error:
            if len(parts) == 1 or not _is_away(error):
                raise
        return await self._action(parts, False)

    async def _do_alone(self, part: P, answer: asyncio.Future[R]) -> None:
        try:
            [result] = await self._action([part], True)
        except Exception as error:
            _resolve(answer, None, error)
        else:
            _resolve(answer, result, None)


def _is_away(error: Exception) -> bool:
    """Returns True if the store cannot be reached, whatever the call is."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, (StoreBusy, StoreFull))


def _resolve(answer: asyncio.Future[R], result: R | None, error: Exception | None) -> None:
    if answer.done():  # the caller was cancelled
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)  # type: ignore[arg-type]
