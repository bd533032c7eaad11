"""A simulated timer, which loses, delays and repeats what it is given, and fails. Checks invariant 18."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from random import Random

from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import Wake
from simulation.plan import TimerPlan
from simulation.shadow_state import SimulationState

_IGNORES_FOR_S = 3_600
"""Time for which a listener goes on after its cancellation. A process must stop much sooner."""


class SimulatedTimerServer:
    """The server that the timers of all processes use. It outlives every process."""

    def __init__(
        self, plan: TimerPlan, state: SimulationState, is_known: Callable[[str], bool], rng: Random
    ) -> None:
        """Creates a server. `is_known` returns True if a notification is or was stored."""
        self._plan = plan
        self._state = state
        self._is_known = is_known
        self._rng = rng
        self._context = copy_context()  # not that of a process, whose crash would cancel the wake-ups
        self._listeners: list[asyncio.Queue[int]] = []

    def fails(self) -> bool:
        return self._rng.random() < self._plan.fail

    @property
    def ignores_cancellation(self) -> bool:
        return self._plan.ignores_cancellation

    def schedule(self, batch: Sequence[DueTime]) -> None:
        """Takes due times. Checks that each notification was committed before."""
        for one in batch:
            if not self._is_known(one.id):
                self._state.violate("18", "a timer got its due time before it was committed", one.id)
            if self._rng.random() < self._plan.lose:
                continue
            for _ in range(2 if self._rng.random() < self._plan.repeat else 1):
                early_ms = one.due_at - self._state.now if self._rng.random() < 0.5 else 0
                wait_ms = max(0, one.due_at - self._state.now - early_ms) + self._late_ms()
                asyncio.get_running_loop().call_later(
                    wait_ms / 1000, self._ring, one.due_at, context=self._context
                )

    def listen(self) -> asyncio.Queue[int]:
        """Returns a queue that gets the due times from now on."""
        queue: asyncio.Queue[int] = asyncio.Queue()
        self._listeners.append(queue)
        return queue

    def leave(self, queue: asyncio.Queue[int]) -> None:
        self._listeners.remove(queue)

    def _ring(self, due_at: int) -> None:
        for queue in self._listeners:
            queue.put_nowait(due_at)

    def _late_ms(self) -> int:
        return self._rng.randrange(self._plan.longest_delay_ms + 1)


class SimTimer:
    """The timer of one process."""

    def __init__(self, server: SimulatedTimerServer) -> None:
        self._server = server

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        """Fails now and then."""
        self._maybe_fail()

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        """Gives due times to the server. Fails now and then, before or after that."""
        self._maybe_fail()
        await asyncio.sleep(0.005)
        self._server.schedule(batch)
        self._maybe_fail()

    async def listen(self, wake: Wake) -> None:
        """Wakes the worker, and loses the connection now and then."""
        wake()
        queue = self._server.listen()
        try:
            while True:
                wake(await queue.get())
                self._maybe_fail()
        except asyncio.CancelledError:
            if self._server.ignores_cancellation:
                await asyncio.sleep(_IGNORES_FOR_S)
            raise
        finally:
            self._server.leave(queue)

    def _maybe_fail(self) -> None:
        if self._server.fails():
            raise ConnectionError("the timer is unavailable")
