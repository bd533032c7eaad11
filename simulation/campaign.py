"""Runs many simulations on several cores. This is what `make simulate` runs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import date
from itertools import count
from multiprocessing import get_context

from msgspec import Struct, field

from simulation.plan import build_plan
from simulation.run import SimulationReport, run_simulation
from simulation.shadow_state import Violation
from simulation.trace import Trace

DAILY_SEEDS = 100
"""Number of seeds that belong to one day. No two days share a seed."""

REQUESTS = 250
"""Default number of requests per run. More requests interact more, fewer allow more different fault plans."""


class FailedRun(Struct, frozen=True, kw_only=True):
    """A simulation run with a violation."""

    seed: int
    requests: int
    invariant: str
    text: str
    """Full text of the violation, with the last lines of the trace."""

    @property
    def replay(self) -> str:
        return f"python -m simulation --replay {self.seed} --requests {self.requests}"


class CampaignTotals(Struct, kw_only=True):
    """Sums over all runs without a violation, and a list of the failed runs."""

    worlds: int = 0
    lifetimes: int = 0
    attempts: int = 0
    leases: int = 0
    stale: int = 0
    crashes: int = 0
    pauses: int = 0
    jumps: int = 0
    rollbacks: int = 0
    breaker_changes: int = 0
    commands: int = 0
    receipts: int = 0
    events: int = 0
    virtual_ms: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[FailedRun] = field(default_factory=list)

    def add(self, report: SimulationReport) -> None:
        self.worlds += 1
        for name in (
            "lifetimes",
            "attempts",
            "leases",
            "stale",
            "crashes",
            "pauses",
            "jumps",
            "rollbacks",
            "breaker_changes",
            "commands",
            "receipts",
            "events",
            "virtual_ms",
        ):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        self.outcomes.update(_counted(report.outcomes))
        self.statuses.update(_counted(report.statuses))


def first_seed_of_day(day: date) -> int:
    """Returns the first of the seeds of a day, for example 2026111700 for 17 November 2026.

    Runs with these seeds are new every day and the same on every machine.
    """
    return int(day.strftime("%Y%m%d")) * DAILY_SEEDS


def try_simulation(seed: int, requests: int, trace: Trace | None = None) -> SimulationReport | FailedRun:
    """Runs one simulation. Returns a `FailedRun` instead of raising `Violation`."""
    try:
        return run_simulation(build_plan(seed, requests), trace)
    except Violation as violation:
        return FailedRun(seed=seed, requests=requests, invariant=violation.invariant, text=str(violation))


def run_campaign(
    lifetimes: int,
    *,
    seed: int = 1,
    processes: int = 1,
    requests: int = REQUESTS,
    most_failures: int = 1,
    on_world: Callable[[CampaignTotals], None] = lambda totals: None,
) -> CampaignTotals:
    """Runs simulations with consecutive seeds, until there are enough lifetimes or failures.

    It stops at `lifetimes` accepted notifications in total, or at `most_failures` failed runs. With several
    processes the runs end in a different order, but the result of each run is the same.
    """
    totals = CampaignTotals()
    for answer in _answers(seed, requests, processes):
        if isinstance(answer, FailedRun):
            totals.failures.append(answer)
        else:
            totals.add(answer)
        on_world(totals)
        if totals.lifetimes >= lifetimes or len(totals.failures) >= most_failures:
            break
    return totals


def _answers(seed: int, requests: int, processes: int) -> Iterator[SimulationReport | FailedRun]:
    seeds = count(seed)
    if processes <= 1:
        for one in seeds:
            yield _run_uncollected(one, requests)
        return
    # Spawned, not forked, so that a run does not depend on its parent's state.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[SimulationReport | FailedRun]] = set()
        try:
            while True:
                while len(running) < 2 * processes:
                    running.add(pool.submit(_run_uncollected, next(seeds), requests))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()


def _run_uncollected(seed: int, requests: int) -> SimulationReport | FailedRun:
    """Runs one simulation without the garbage collector, and collects its garbage afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return try_simulation(seed, requests)
    finally:
        if was_enabled:
            gc.enable()
        gc.collect()


def _counted(counts: Mapping[str, int]) -> Counter[str]:
    return Counter(dict(counts))
