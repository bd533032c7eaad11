"""Injects faults at random times: crashes, pauses, store outages, clock jumps and provider outages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop
from simulation.process import SimProcess
from simulation.shadow_state import SimulationState
from simulation.simulated_providers import SimulatedProvider

_JUMPS_MS = (-60_000, -5_000, -500, 500, 5_000, 45_000, 120_000)


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
    ) -> None:
        self._state = state
        self._loop = loop
        self._clock = clock
        self._processes = processes
        self._providers = providers
        self._fault_plan = state.plan.fault_plan
        self._rng = Random(f"{state.plan.seed}/faults")
        self._away_until_ms = 0
        self._stops: set[asyncio.Task[None]] = set()
        self.pauses = 0

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Returns a coroutine for each kind of fault that the plan has turned on."""
        fault_plan = self._fault_plan
        wanted: tuple[tuple[int, FaultTask], ...] = (
            (fault_plan.crash_every_ms, self._crashes),
            (fault_plan.pause_every_ms, self._pauses),
            (fault_plan.away_every_ms, self._absences),
            (fault_plan.jump_every_ms, self._jumps),
            (fault_plan.outage_every_ms, self._outages),
        )
        return [work() for every_ms, work in wanted if every_ms]

    def store_is_away(self) -> bool:
        return self._state.ms < self._away_until_ms

    def over(self) -> None:
        """Ends a store outage."""
        self._away_until_ms = 0

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

    async def _jumps(self) -> None:
        while True:
            await self._random_wait(self._fault_plan.jump_every_ms)
            by_ms = self._rng.choice(_JUMPS_MS)
            self._clock.jump(by_ms)
            self._state.jumps += 1
            self._state.last_jump_ms = self._state.ms
            self._state.note("sim", f"clock jumps by {by_ms} ms")

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
