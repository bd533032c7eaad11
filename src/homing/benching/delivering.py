"""Measures delivery: accepts a backlog, delivers it to the sink, and checks that nothing is missing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from homing.benching import Unsound, bare
from homing.benching.arena import IN_FLIGHT, arena
from homing.benching.crew import Crew, homing_worker
from homing.benching.figures import Figure
from homing.benching.loads import accept, holds, requests
from homing.benching.plan import Plan, Stage
from homing.benching.sink import Sink
from homing.library import Homing

SETTLED_WITHIN_S = 600.0
FAILING = 0.1
QUICK_RETRIES = {"name": "quick", "max_attempts": 5, "base_ms": 50, "cap_ms": 200}
"""Retry rule with short delays, so that retries are due while the rest is still being delivered."""


class Round(Struct, frozen=True, kw_only=True):
    """Result of one round."""

    notifications: int
    processes: int
    seconds: float
    attempts: int
    cpu_us: float | None
    """CPU time of the worker processes per notification. None without /proc."""
    accepted_per_second: float = 0.0
    """Rate at which the backlog was accepted. 0 for the bare loop."""

    @property
    def per_second(self) -> float:
        return self.notifications / self.seconds


BARE, ONE, TWO = "bare loop, one process", "one process", "two processes"
LIFE = "one process, 10 % refused once"


def steps(plan: Plan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return plan.rounds * 4


async def measure(stage: Stage) -> AsyncIterator[Figure]:
    """Measures delivery by the bare loop, one process, one process with 10 % retries, and two processes."""
    server, sink, count = stage.server, stage.sink, stage.plan.deliveries
    found = await stage.in_turns(
        "deliver",
        {
            BARE: lambda: deliver_bare(server, sink, count),
            ONE: lambda: deliver(server, sink, count),
            LIFE: lambda: deliver(server, sink, count, failing=FAILING),
            TWO: lambda: deliver(server, sink, count, processes=2),
        },
    )
    against = {ONE: (BARE, 0.6), LIFE: (ONE, 0.75), TWO: (ONE, None)}
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
    for name in (BARE, ONE, LIFE):
        spent = tuple(one.cpu_us for one in found[name] if one.cpu_us is not None)
        if spent:
            yield Figure(
                part="deliver",
                name=f"{name}: CPU time per notification",
                store=stage.store,
                unit="µs",
                rounds=spent,
                beside="" if name == BARE else f"{BARE}: CPU time per notification",
            )


async def deliver(
    server: str,
    sink: Sink,
    count: int,
    *,
    processes: int = 1,
    failing: float = 0.0,
    in_flight: int = IN_FLIGHT,
    on_ready: Callable[[list[int]], None] | None = None,
) -> Round:
    """Accepts `count` notifications with Homing and measures their delivery, until the last is settled.

    The sink refuses a share of `failing` once with 503; these are retried soon. `on_ready` is called with the
    workers' process ids before they start.
    """
    sink.reset(failing=failing)
    async with arena(server, in_flight=in_flight) as place:
        settings = place.settings(rules=[QUICK_RETRIES])
        async with Homing(loaded_settings=settings) as homing:
            began = time.perf_counter()
            await accept(homing, requests(count, sink.url))
            accepting_s = time.perf_counter() - began
            await place.rested()
            with Crew(homing_worker, settings, processes) as crew:
                if on_ready is not None:
                    on_ready(crew.pids)
                seconds, cpu_us = await _timed(crew, count)
                attempts = crew.attempts
            await holds(homing, place, delivered=count)
            check_sink(sink, count)
    return Round(
        notifications=count,
        processes=processes,
        seconds=seconds,
        attempts=attempts,
        cpu_us=cpu_us,
        accepted_per_second=count / accepting_s,
    )


async def deliver_bare(
    server: str,
    sink: Sink,
    count: int,
    *,
    processes: int = 1,
    in_flight: int = IN_FLIGHT,
    on_ready: Callable[[list[int]], None] | None = None,
) -> Round:
    """Measures delivery by the bare loop, with the same kind of store and the same transport."""
    sink.reset()
    async with arena(server) as place:
        rows = bare.queue(place.store, place.postgres)
        await rows.open()
        try:
            await rows.load([0.0] * count)
            await place.rested()
            with Crew(bare.bare_worker, bare.task(place, sink.url, in_flight), processes) as crew:
                if on_ready is not None:
                    on_ready(crew.pids)
                seconds, cpu_us = await _timed(crew, count)
            check_bare(await rows.sent(), count)
            check_sink(sink, count)
        finally:
            await rows.close()
    return Round(notifications=count, processes=processes, seconds=seconds, attempts=count, cpu_us=cpu_us)


async def _timed(crew: Crew, count: int) -> tuple[float, float | None]:
    """Returns the seconds until the last settlement, and the CPU time per notification in µs."""
    before = crew.cpu_s
    start = crew.begin()
    end = await crew.finish(count, SETTLED_WITHIN_S)
    after = crew.cpu_s
    return end - start, None if before is None or after is None else 1e6 * (after - before) / count


def check_sink(sink: Sink, count: int) -> None:
    """Raises Unsound unless `count` notifications have arrived exactly once each."""
    seen = sink.report()
    if seen.taken != count or seen.repeated:
        raise Unsound(f"{count:,} were sent, {seen.taken:,} arrived, and {seen.repeated:,} arrived again")


def check_bare(sent: int, count: int) -> None:
    """Raises Unsound unless the bare queue has settled all rows as sent."""
    if sent != count:
        raise Unsound(f"the bare queue had {count:,} rows, but {sent:,} are settled as sent")
