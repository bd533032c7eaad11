"""Measures delivery: accepts a backlog, delivers it to the sink, and checks that nothing is missing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from homing.benching import InvalidMeasurement, bare_loop
from homing.benching.http_sink import HttpSink
from homing.benching.report import Figure
from homing.benching.scratch_store import IN_FLIGHT, open_scratch_store
from homing.benching.worker_processes import WorkerProcesses, run_homing_worker
from homing.benching.workload import BenchContext, BenchPlan, accept_all, build_requests, check_store
from homing.library import Homing

SETTLED_WITHIN_S = 600.0

REFUSED_SHARE = 0.1

QUICK_RETRIES = {"name": "quick", "max_attempts": 5, "base_ms": 50, "cap_ms": 200}
"""Retry rule with short delays, so that retries are due while other notifications are being delivered."""


class DeliveryRound(Struct, frozen=True, kw_only=True):
    """Result of one round."""

    notifications: int
    processes: int
    seconds: float
    attempts: int
    cpu_us: float | None
    """CPU time of the worker processes per notification, in µs. None without /proc."""
    accepted_per_second: float = 0.0
    """Rate at which the backlog was accepted, in notifications per second. 0 for the bare loop."""

    @property
    def per_second(self) -> float:
        return self.notifications / self.seconds


BARE_LOOP, ONE_PROCESS, TWO_PROCESSES = "bare loop, one process", "one process", "two processes"

ONE_PROCESS_WITH_RETRIES = "one process, 10 % refused once"


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return plan.rounds * 4


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures delivery by the bare loop, one process, one process with 10 % retries, and two processes."""
    server, sink, count = stage.server, stage.sink, stage.plan.deliveries
    found = await stage.run_alternating(
        "deliver",
        {
            BARE_LOOP: lambda: measure_bare_delivery(server, sink, count),
            ONE_PROCESS: lambda: measure_delivery(server, sink, count),
            ONE_PROCESS_WITH_RETRIES: lambda: measure_delivery(server, sink, count, failing=REFUSED_SHARE),
            TWO_PROCESSES: lambda: measure_delivery(server, sink, count, processes=2),
        },
    )
    against = {
        ONE_PROCESS: (BARE_LOOP, 0.6),
        ONE_PROCESS_WITH_RETRIES: (ONE_PROCESS, 0.75),
        TWO_PROCESSES: (ONE_PROCESS, None),
    }
    for name, rounds in found.items():
        beside, at_least = against.get(name, ("", None))
        yield Figure(
            part="deliver",
            name=name,
            store=stage.store,
            unit="/s",
            rounds=tuple(one.per_second for one in rounds),
            beside=beside,
            at_least=at_least,
        )
    for name in (BARE_LOOP, ONE_PROCESS, ONE_PROCESS_WITH_RETRIES):
        spent = tuple(one.cpu_us for one in found[name] if one.cpu_us is not None)
        if spent:
            yield Figure(
                part="deliver",
                name=f"{name}: CPU time per notification",
                store=stage.store,
                unit="µs",
                rounds=spent,
                beside="" if name == BARE_LOOP else f"{BARE_LOOP}: CPU time per notification",
            )


async def measure_delivery(
    server: str,
    sink: HttpSink,
    count: int,
    *,
    processes: int = 1,
    failing: float = 0.0,
    in_flight: int = IN_FLIGHT,
    on_ready: Callable[[list[int]], None] | None = None,
) -> DeliveryRound:
    """Accepts `count` notifications with Homing and measures their delivery, until the last is settled.

    The sink refuses the share `failing` of the notifications once with 503, and they are retried soon.
    `on_ready` is called with the workers' process ids before they start.
    """
    sink.reset(failing=failing)
    async with open_scratch_store(server, in_flight=in_flight) as place:
        settings = place.settings(rules=[QUICK_RETRIES])
        async with Homing(loaded_settings=settings) as homing:
            began = time.perf_counter()
            await accept_all(homing, build_requests(count, sink.url))
            accepting_s = time.perf_counter() - began
            await place.rested()
            with WorkerProcesses(run_homing_worker, settings, processes) as workers:
                if on_ready is not None:
                    on_ready(workers.pids)
                seconds, cpu_us = await _timed(workers, count)
                attempts = workers.attempts
            await check_store(homing, place, delivered=count)
            check_sink(sink, count)
    return DeliveryRound(
        notifications=count,
        processes=processes,
        seconds=seconds,
        attempts=attempts,
        cpu_us=cpu_us,
        accepted_per_second=count / accepting_s,
    )


async def measure_bare_delivery(
    server: str,
    sink: HttpSink,
    count: int,
    *,
    processes: int = 1,
    in_flight: int = IN_FLIGHT,
    on_ready: Callable[[list[int]], None] | None = None,
) -> DeliveryRound:
    """Measures delivery by the bare loop, with the same kind of store and the same transport."""
    sink.reset()
    async with open_scratch_store(server) as place:
        rows = bare_loop.build_bare_queue(place.store)
        await rows.open()
        try:
            await rows.load([0.0] * count)
            await place.rested()
            with WorkerProcesses(
                bare_loop.run_bare_worker, bare_loop.build_bare_task(place, sink.url, in_flight), processes
            ) as workers:
                if on_ready is not None:
                    on_ready(workers.pids)
                seconds, cpu_us = await _timed(workers, count)
            check_bare(await rows.sent(), count)
            check_sink(sink, count)
        finally:
            await rows.close()
    return DeliveryRound(
        notifications=count, processes=processes, seconds=seconds, attempts=count, cpu_us=cpu_us
    )


async def _timed(workers: WorkerProcesses, count: int) -> tuple[float, float | None]:
    """Returns the seconds until the last settlement, and the CPU time per notification in µs."""
    before = workers.cpu_s
    start = workers.begin()
    end = await workers.finish(count, SETTLED_WITHIN_S)
    after = workers.cpu_s
    return end - start, None if before is None or after is None else 1e6 * (after - before) / count


def check_sink(sink: HttpSink, count: int) -> None:
    """Raises `InvalidMeasurement` unless `count` notifications have arrived exactly once each."""
    seen = sink.report()
    if seen.taken != count or seen.repeated:
        raise InvalidMeasurement(
            f"{count:,} were sent, {seen.taken:,} arrived, and {seen.repeated:,} arrived again"
        )


def check_bare(sent: int, count: int) -> None:
    """Raises `InvalidMeasurement` unless the bare queue has settled all rows as sent."""
    if sent != count:
        raise InvalidMeasurement(f"the bare queue had {count:,} rows, but {sent:,} are settled as sent")
