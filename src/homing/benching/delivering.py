"""Rounds of delivery: a backlog is accepted, processes deliver it to the sink, the books are checked."""

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
"""The full life: what was refused is due again while the rest is still being delivered."""


class Round(Struct, frozen=True, kw_only=True):
    """One measured delivery."""

    notifications: int
    processes: int
    seconds: float
    attempts: int
    cpu_us: float | None
    """Processor time of the worker processes for each; what else the machine does blurs it least."""
    accepted_per_second: float = 0.0

    @property
    def per_second(self) -> float:
        return self.notifications / self.seconds


BARE, ONE, TWO = "bare loop, one process", "one process", "two processes"
LIFE = "one process, 10 % refused once"


def steps(plan: Plan, postgres: bool) -> int:
    return plan.rounds * 4


async def measure(stage: Stage) -> AsyncIterator[Figure]:
    """Deliveries to the sink: the limit, one process, two, and with a tenth refused at first."""
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
                name=f"{name}: processor time of the worker, each",
                store=stage.store,
                unit="µs",
                rounds=spent,
                beside="" if name == BARE else f"{BARE}: processor time of the worker, each",
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
    """Homing: accepts `count`, then delivers them; from the word to the last that is settled.

    `failing` of them are refused with 503 once and retried soon. `on_ready` is told the workers' process ids
    before they begin.
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
    """The bare loop over the same store and the same transport."""
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
    """Seconds from the word to the last that is settled, and microseconds of processor time for each."""
    before = crew.cpu_s
    start = crew.begin()
    end = await crew.finish(count, SETTLED_WITHIN_S)
    after = crew.cpu_s
    return end - start, None if before is None or after is None else 1e6 * (after - before) / count


def check_sink(sink: Sink, count: int) -> None:
    """Each of them has arrived exactly once."""
    seen = sink.report()
    if seen.taken != count or seen.repeated:
        raise Unsound(f"{count:,} were sent; {seen.taken:,} arrived, {seen.repeated:,} of them again")


def check_bare(sent: int, count: int) -> None:
    """The bare queue accounts for all of them."""
    if sent != count:
        raise Unsound(f"{count:,} were in the bare queue; {sent:,} of them are settled as sent")
