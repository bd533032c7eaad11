"""An event loop on virtual time, which jumps to the next timer as soon as no task is ready.

`asyncio.sleep`, `asyncio.timeout`, events and locks work unchanged, but waiting takes no real time. There
are no sockets and no threads, and no order depends on hashes or memory addresses. So the same program with
the same seed does the same things in the same order.
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
"""Start of virtual wall clocks: 15 June 2025, 15:06:40 UTC."""


TASK_GROUP: ContextVar[str | None] = ContextVar("group", default=None)
"""Name of the simulated process that a task belongs to. The tasks that it starts inherit the name."""


class VirtualDeadlock(RuntimeError):
    """Raised if every task waits for another one and no timer is set, so the loop can never continue."""


class VirtualTask(asyncio.Task[_T]):
    """A task whose hash is its number, so that a set of tasks has the same order in every run."""

    def __init__(
        self, coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T], loop: VirtualLoop, **options: Any
    ) -> None:
        self.number = next(loop.task_numbers)
        context: Context | None = options.get("context")
        self.group = TASK_GROUP.get() if context is None else context.get(TASK_GROUP)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class _Selector:
    """Replaces the wait for I/O. There is no I/O, so it advances virtual time and returns at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise VirtualDeadlock("every task waits for another one and no timer is set")
        if timeout > 0:
            self._loop.pass_time()
        return []


class VirtualLoop(BaseEventLoop):
    """An event loop on virtual time. The tasks of a group can be frozen while time goes on for all others."""

    def __init__(self) -> None:
        super().__init__()
        self.task_numbers = count()
        self.ms = 0
        """Milliseconds since the loop was made: `time()`, rounded once per step of the time."""
        self._time = 0.0
        self._clock_resolution = 1e-6
        self._selector = _Selector(self)
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        self.set_debug(False)
        self.set_task_factory(_new_task)

    def time(self) -> float:
        return self._time

    def pass_time(self) -> None:
        """Sets the time to that of the next timer. Adding up differences instead would drift."""
        self._time = max(self._time, self._scheduled[0]._when)  # type: ignore[attr-defined]
        self.ms = round(self._time * 1000)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._frozen:
            group = TASK_GROUP.get() if context is None else context.get(TASK_GROUP)
            held = self._frozen.get(group) if group is not None else None
            if held is not None:
                handle = asyncio.Handle(callback, args, self, context)
                held.append(handle)
                return handle
        return super().call_soon(callback, *args, context=context)

    def freeze(self, group: str) -> None:
        """Stops all callbacks of the group. Its timers still fire, but their callbacks wait until `thaw`."""
        self._frozen.setdefault(group, [])

    def thaw(self, group: str) -> None:
        """Lets the group run again, first the callbacks held back since `freeze`, in their original order."""
        self._ready.extend(self._frozen.pop(group, ()))  # type: ignore[attr-defined]

    def cancel_group(self, group: str) -> int:
        """Cancels all tasks of the group in the order of their creation, and returns their number."""
        tasks = sorted(
            (t for t in asyncio.all_tasks(self) if isinstance(t, VirtualTask) and t.group == group),
            key=lambda task: task.number,
        )
        for task in tasks:
            task.cancel()
        return len(tasks)

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], _T], *args: *_Ts) -> NoReturn:
        raise RuntimeError("code that uses threads cannot run on virtual time")

    def _process_events(self, event_list: list[Any]) -> None:
        """Does nothing: there is no I/O."""

    def _write_to_self(self) -> None:
        """Does nothing: no other thread can wake this loop."""


class VirtualBlock:
    """Result of a simulated call that blocks its thread until `work` has ended and returns its result.

    `on_cancelled` is called if the caller is cancelled meanwhile.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, Any] | asyncio.Task[Any],
        on_cancelled: Callable[[], None] = lambda: None,
    ) -> None:
        self.work = work
        self.on_cancelled = on_cancelled


class VirtualBlockingCalls:
    """Runs blocking calls without threads.

    A call takes no virtual time, unless it returns a `VirtualBlock`. Like a call in a thread, it cannot be
    stopped: if its caller is cancelled, the caller waits for it and then raises.
    """

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Calls a function and returns its result."""
        await self._free.acquire()
        try:
            result: Any = function()
            return await _until_it_ends(result) if isinstance(result, VirtualBlock) else result
        finally:
            self._free.release()

    async def close(self, within_ms: int) -> None:
        """Does nothing: there are no threads."""


async def _until_it_ends(block: VirtualBlock) -> Any:
    task, cancelled = asyncio.ensure_future(block.work), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
            block.on_cancelled()
    if cancelled:
        _ = task.cancelled() or task.exception()  # no one else asks for it
        raise asyncio.CancelledError
    return task.result()


class VirtualClock:
    """A `Clock` on a virtual loop. Its wall time can jump, but its monotonic time cannot."""

    def __init__(self, loop: VirtualLoop, *, wall_ms: int = START_MS, monotonic_from_ms: int = 0) -> None:
        self._loop = loop
        self._wall_ms = wall_ms
        self._monotonic_from_ms = monotonic_from_ms
        self.jumped_ms = 0
        """Sum of all jumps so far, in milliseconds."""

    def now_ms(self) -> int:
        return self._wall_ms + self.jumped_ms + self._loop.ms

    def monotonic_ms(self) -> int:
        return self._monotonic_from_ms + self._loop.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def blocking_calls(self, name: str, most: int) -> VirtualBlockingCalls:
        """Returns an object that runs blocking calls on this loop, which has no threads."""
        return VirtualBlockingCalls(most)

    def jump(self, by_ms: int) -> None:
        """Sets the wall clock forward, or back if `by_ms` is negative."""
        self.jumped_ms += by_ms


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, _T]]) -> _T:
    """Runs `main` on a new virtual loop, then cancels the tasks that are still running."""
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
    assert isinstance(loop, VirtualLoop), "this task factory works only on a virtual loop"
    return VirtualTask(coro, loop, **options)
