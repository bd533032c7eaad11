"""Measures the CPU time of an idle worker and the startup time of `homing worker`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator

from homing.benching import InvalidMeasurement
from homing.benching.http_sink import HttpSink
from homing.benching.report import Figure
from homing.benching.scratch_store import ScratchStore, open_scratch_store
from homing.benching.worker_processes import WorkerProcesses, run_homing_worker
from homing.benching.workload import BenchContext, BenchPlan, accept_all, build_request
from homing.library import Homing

IDLE_PERCENT = 1.0

_STARTS_WITHIN_S = 60.0

_COMMAND = "import sys; from homing.cli import main; sys.exit(main())"


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return 1 + plan.starts


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures an idle worker's CPU share, and the time from its start to its first delivery."""
    stage.step("idle: one worker, nothing to do")
    share = await _idle_percent(stage)
    if share is None:
        stage.note("idle CPU time needs /proc, which this system does not have")
    else:
        yield Figure(
            part="idle",
            name="one worker, CPU share of one core",
            store=stage.store,
            unit="%",
            rounds=(share,),
            at_most=IDLE_PERCENT,
        )
    async with open_scratch_store(stage.server) as place:
        stage.sink.reset()
        rounds = [await _start_ms(stage, place, number) for number in range(stage.plan.starts)]
    yield Figure(
        part="start",
        name="homing worker, until its first delivery",
        store=stage.store,
        unit="ms",
        rounds=tuple(rounds),
    )


async def _idle_percent(stage: BenchContext) -> float | None:
    async with open_scratch_store(stage.server) as place:
        with WorkerProcesses(run_homing_worker, place.settings(), 1) as workers:
            workers.begin()
            await asyncio.sleep(stage.plan.idle_s / 4)
            before, began = workers.cpu_s, time.monotonic()
            await asyncio.sleep(stage.plan.idle_s)
            after, ended = workers.cpu_s, time.monotonic()
    if before is None or after is None:
        return None
    return 100 * (after - before) / (ended - began)


async def _start_ms(stage: BenchContext, place: ScratchStore, number: int) -> float:
    stage.step(f"start: homing worker, round {number + 1}")
    async with Homing(loaded_settings=place.settings()) as homing:
        await accept_all(homing, [build_request(number, stage.sink.url)])
    began = time.time()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _COMMAND, "worker", "--config", str(place.config)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await _arrived(stage.sink, number + 1)
    finally:
        process.terminate()
        await process.wait()
    return 1000 * (stage.sink.report().last_at - began)


async def _arrived(sink: HttpSink, count: int) -> None:
    until = time.monotonic() + _STARTS_WITHIN_S
    while sink.report().taken < count:
        if time.monotonic() > until:
            raise InvalidMeasurement(f"a new worker delivered nothing within {_STARTS_WITHIN_S:.0f} seconds")
        await asyncio.sleep(0.02)
