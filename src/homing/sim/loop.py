"""An event loop whose time jumps to the next timer as soon as nothing is left to do.

`asyncio.sleep`, `asyncio.timeout`, events and locks work on it unchanged; six hours of waiting take no
time. There are no sockets and no threads, and nothing depends on hashes or addresses: the same program
with the same seed does the same things in the same order.
"""

from __future__ import annotations

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, NoReturn, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

START_MS = 1_750_000_000_000
"""15 June 2025, 15:06:40 UTC: where virtual wall clocks begin."""

GROUP: ContextVar[str | None] = ContextVar("group", default=None)
"""The simulated process that a task belongs to; tasks that it starts inherit it."""


class NothingLeft(RuntimeError):
    """Every task waits for another one and no timer is set: nothing would ever happen again."""


class VirtualTask(asyncio.Task[_T]):
    """A task that hashes by its number, so that a set of tasks has the same order in every run."""

    def __init__(
        self, coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T], loop: VirtualLoop, **options: Any
    ) -> None:
        self.number = next(loop.task_numbers)
        context: Context | None = options.get("context")
        self.group = GROUP.get() if context is None else context.get(GROUP)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class _Selector:
    """Stands where a loop waits for I/O: there is none, so the wait is over at once and time has passed."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingLeft("every task waits for another one and no timer is set")
        if timeout > 0:
            self._loop.pass_time()
        return []


class VirtualLoop(BaseEventLoop):
    """The loop. A group of tasks can be frozen as a whole: time goes on, they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.task_numbers = count()
        self._time = 0.0
        self._clock_resolution = 1e-6
        self._selector = _Selector(self)
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        self.set_debug(False)
        self.set_task_factory(_new_task)

    def time(self) -> float:
        return self._time

    def pass_time(self) -> None:
        """On to the next timer, exactly: adding up differences would drift."""
        self._time = max(self._time, self._scheduled[0]._when)  # type: ignore[attr-defined]

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._frozen:
            group = GROUP.get() if context is None else context.get(GROUP)
            held = self._frozen.get(group) if group is not None else None
            if held is not None:
                handle = asyncio.Handle(callback, args, self, context)
                held.append(handle)
                return handle
        return super().call_soon(callback, *args, context=context)

    def freeze(self, group: str) -> None:
        """From now on nothing of the group runs. Its timers still go off; what they wake, waits."""
        self._frozen.setdefault(group, [])

    def thaw(self, group: str) -> None:
        """What piled up runs now, in the order in which it would have."""
        self._ready.extend(self._frozen.pop(group, ()))  # type: ignore[attr-defined]

    def cancel_group(self, group: str) -> int:
        """Cancels every task of the group, in the order in which they began; how many."""
        tasks = sorted(
            (t for t in asyncio.all_tasks(self) if isinstance(t, VirtualTask) and t.group == group),
            key=lambda task: task.number,
        )
        for task in tasks:
            task.cancel()
        return len(tasks)

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], _T], *args: *_Ts) -> NoReturn:
        raise RuntimeError("virtual time has no threads; whatever needs one cannot be simulated")

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """Nobody else could be waiting."""


class VirtualClock:
    """A `Clock` over a virtual loop. Its wall time can jump; its monotonic time never does."""

    def __init__(self, loop: VirtualLoop, *, wall_ms: int = START_MS, monotonic_from_ms: int = 0) -> None:
        self._loop = loop
        self._wall_ms = wall_ms
        self._monotonic_from_ms = monotonic_from_ms
        self.jumped_ms = 0
        """The sum of all jumps so far."""

    def now_ms(self) -> int:
        return self._wall_ms + self.jumped_ms + round(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return self._monotonic_from_ms + round(self._loop.time() * 1000)

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def jump(self, by_ms: int) -> None:
        """The wall clock is set, forward or back."""
        self.jumped_ms += by_ms


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, _T]]) -> _T:
    """Runs `main` on a virtual loop of its own, and ends whatever it left behind."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        _end_all(loop)
        loop.close()


def _end_all(loop: VirtualLoop) -> None:
    for group in list(loop._frozen):
        loop.thaw(group)
    left = sorted(asyncio.all_tasks(loop), key=hash)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _new_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> VirtualTask[Any]:
    assert isinstance(loop, VirtualLoop), "the factory of a virtual loop makes its tasks"
    return VirtualTask(coro, loop, **options)
