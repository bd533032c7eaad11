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
        scene: SimulationState,
        loop: VirtualLoop,
        clock: VirtualClock,
        processes: Sequence[SimProcess],
        carriers: Sequence[SimulatedProvider],
    ) -> None:
        self._scene = scene
        self._loop = loop
        self._clock = clock
        self._processes = processes
        self._carriers = carriers
        self._weather = scene.plan.weather
        self._rng = Random(f"{scene.plan.seed}/faults")
        self._away_until_ms = 0
        self._stops: set[asyncio.Task[None]] = set()
        self.pauses = 0

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Returns a coroutine for each kind of fault that the plan has turned on."""
        weather = self._weather
        wanted: tuple[tuple[int, FaultTask], ...] = (
            (weather.crash_every_ms, self._crashes),
            (weather.pause_every_ms, self._pauses),
            (weather.away_every_ms, self._absences),
            (weather.jump_every_ms, self._jumps),
            (weather.outage_every_ms, self._outages),
        )
        return [work() for every_ms, work in wanted if every_ms]

    def store_is_away(self) -> bool:
        return self._scene.ms < self._away_until_ms

    def over(self) -> None:
        """Ends a store outage."""
        self._away_until_ms = 0

    async def _crashes(self) -> None:
        while True:
            await self._random_wait(self._weather.crash_every_ms)
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
            await self._random_wait(self._weather.pause_every_ms)
            awake = [process for process in self._processes if process.awake]
            if awake:
                process = self._rng.choice(awake)
                process.pause()
                self.pauses += 1
                pause_ms = self._rng.randrange(500, self._weather.longest_pause_ms)
                self._loop.call_later(pause_ms / 1000, process.resume)

    async def _absences(self) -> None:
        while True:
            await self._random_wait(self._weather.away_every_ms)
            self._away_until_ms = self._scene.ms + self._rng.randrange(500, 15_000)
            self._scene.note("sim", "store outage")

    async def _jumps(self) -> None:
        while True:
            await self._random_wait(self._weather.jump_every_ms)
            by_ms = self._rng.choice(_JUMPS_MS)
            self._clock.jump(by_ms)
            self._scene.jumps += 1
            self._scene.last_jump_ms = self._scene.ms
            self._scene.note("sim", f"clock jumps by {by_ms} ms")

    async def _outages(self) -> None:
        while True:
            await self._random_wait(self._weather.outage_every_ms)
            self._rng.choice(self._carriers).begin_outage(self._rng)

    async def _random_wait(self, mean_ms: int) -> None:
        await asyncio.sleep(round(self._rng.expovariate(1 / mean_ms)) / 1000)

    def _stop(self, process: SimProcess) -> None:
        """Stops a process gracefully in the background. An error is reported as an unhandled exception."""
        task = asyncio.create_task(process.stop())
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
