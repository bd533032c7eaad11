"""Injects faults at random times: crashes, pauses, store outages, clock jumps and provider outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any

from homing.core.clock_steps import MAX_BELIEVED_STEP_MS, VOID_AFTER_MS
from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop
from simulation.process import SimProcess
from simulation.shadow_state import SimulationState
from simulation.simulated_providers import SimulatedProvider

_BELIEVED_MS = MAX_BELIEVED_STEP_MS

_JUMPS_MS = (
    *(-60_000, -_BELIEVED_MS - 1, -_BELIEVED_MS, -2_000, -500),
    *(500, 2_000, _BELIEVED_MS, _BELIEVED_MS + 1, 45_000, 120_000),
)
"""Jumps of the clock: small ones, both sides of the largest that is believed at once, and larger ones."""

_HOUR_MS = 3_600_000

_LONG_JUMPS_MS = (-24 * _HOUR_MS, -_HOUR_MS, _HOUR_MS, 24 * _HOUR_MS)

_LONGEST_ACCEPTED_BACK_MS = 2 * _HOUR_MS
"""If the clock is set back further, it is set right again. What waits would otherwise wait as long."""


FaultTask = Callable[[], Coroutine[Any, Any, None]]


class FaultInjector:
    """Injects each kind of fault in its own task, at random intervals, until the task is cancelled."""

    def __init__(
        self,
        state: SimulationState,
        loop: VirtualLoop,
        clock: VirtualClock,
        processes: Sequence[SimProcess],
        providers: Sequence[SimulatedProvider],
        on_jump: Callable[[int], Awaitable[None]],
        forget_clock: Callable[[], None],
    ) -> None:
        """Calls `on_jump` after a jump, and `forget_clock` if no process may remember the time before."""
        self._state = state
        self._loop = loop
        self._clock = clock
        self._processes = processes
        self._providers = providers
        self._on_jump = on_jump
        self._forget_clock = forget_clock
        self._fault_plan = state.plan.fault_plan
        self._rng = Random(f"{state.plan.seed}/faults")
        self._away_until_ms = 0
        self._unwritable_until_ms = 0
        self._stops: set[asyncio.Task[None]] = set()
        self.pauses = 0

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Returns a coroutine for each kind of fault that the plan has turned on."""
        fault_plan = self._fault_plan
        wanted: tuple[tuple[int, FaultTask], ...] = (
            (fault_plan.crash_every_ms, self._crashes),
            (fault_plan.pause_every_ms, self._pauses),
            (fault_plan.away_every_ms, self._absences),
            (fault_plan.unwritable_every_ms, self._unwritable_periods),
            (fault_plan.jump_every_ms, self._jumps),
            (fault_plan.long_jump_every_ms, self._long_jumps),
            (fault_plan.restart_jump_ms, self._restart),
            (fault_plan.outage_every_ms, self._outages),
        )
        return [work() for every_ms, work in wanted if every_ms]

    def store_is_away(self, operation: str) -> bool:
        """Returns True if this operation of the store fails now."""
        is_unwritable = operation == "settle" and self._state.ms < self._unwritable_until_ms
        return is_unwritable or self._state.ms < self._away_until_ms

    def over(self) -> None:
        """Ends a store outage."""
        self._away_until_ms = self._unwritable_until_ms = 0

    async def _crashes(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.crash_every_ms)
            alive = [process for process in self._processes if not process.dead]
            if not alive:
                continue
            process = self._rng.choice(alive)
            if self._rng.random() < 0.25 and process.awake:
                self._stop(process)
            else:
                process.crash("all at once")

    async def _pauses(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.pause_every_ms)
            awake = [process for process in self._processes if process.awake]
            if awake:
                process = self._rng.choice(awake)
                process.pause()
                self.pauses += 1
                pause_ms = self._rng.randrange(500, self._fault_plan.longest_pause_ms)
                self._loop.call_later(pause_ms / 1000, process.resume)

    async def _absences(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.away_every_ms)
            self._away_until_ms = self._state.ms + self._rng.randrange(500, 15_000)
            self._state.note("sim", "store outage")

    async def _unwritable_periods(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.unwritable_every_ms)
            self._unwritable_until_ms = self._state.ms + self._rng.randrange(500, 40_000)
            self._state.note("sim", "no result can be written")

    async def _jumps(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.jump_every_ms)
            by_ms = self._rng.choice(_JUMPS_MS)
            # A process that is idle for up to a minute sees the sum of all jumps. Next to the bound, it would
            # decide differently from the others.
            apart_s = VOID_AFTER_MS / 1000 if _BELIEVED_MS <= abs(by_ms) <= _BELIEVED_MS + 1 else 0
            await asyncio.sleep(apart_s)
            await self._jump(by_ms)
            await asyncio.sleep(apart_s)

    async def _long_jumps(self) -> None:
        """Sets the clock by hours or a day. Half of the time, it is set right again after a while."""
        rng = Random(f"{self._state.plan.seed}/long jumps")
        while True:
            await asyncio.sleep(round(rng.expovariate(1 / self._fault_plan.long_jump_every_ms)) / 1000)
            by_ms, returns = rng.choice(_LONG_JUMPS_MS), rng.random() < 0.5
            alive = [process for process in self._processes if process.awake]
            await self._jump(by_ms)
            if len(alive) > 1 and rng.random() < 0.4:
                rng.choice(alive).crash("when the clock jumps")
            if returns or by_ms < -_LONGEST_ACCEPTED_BACK_MS:
                try:
                    await asyncio.sleep(rng.choice((500, 20_000, 240_000)) / 1000)
                finally:  # also if the faults stop meanwhile
                    await self._jump(-by_ms)

    async def _restart(self) -> None:
        """Lets all processes crash, and sets the clock before others start."""
        await asyncio.sleep(self._state.plan.faults_ms / 2000)
        for process in list(self._processes):
            process.crash("with all others")
        self._clock.jump(self._fault_plan.restart_jump_ms)
        self._state.jumps += 1
        self._state.last_jump_ms = self._state.ms
        self._state.note("sim", f"the clock was set by {self._fault_plan.restart_jump_ms} ms")
        self._forget_clock()

    async def _jump(self, by_ms: int) -> None:
        state = self._state
        self._clock.jump(by_ms)
        if abs(by_ms) > MAX_BELIEVED_STEP_MS:
            state.shift_ms -= by_ms  # no process may believe it at once
        state.jumps += 1
        state.last_jump_ms = state.ms
        state.note("sim", f"clock jumps by {by_ms} ms")
        await self._on_jump(by_ms)

    async def _outages(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.outage_every_ms)
            self._rng.choice(self._providers).begin_outage(self._rng)

    async def _random_wait(self, mean_ms: int) -> None:
        await asyncio.sleep(round(self._rng.expovariate(1 / mean_ms)) / 1000)

    def _stop(self, process: SimProcess) -> None:
        """Stops a process gracefully in the background. An error is reported as an unhandled exception."""
        task = asyncio.create_task(process.stop())
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
