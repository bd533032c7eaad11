"""Bugs planted on purpose. A simulator that finds nothing proves little: it must find each of these.

Every bug is switched on alone, by patching the engine, the core or the store for as long as a world runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from msgspec import Struct
from msgspec.structs import replace

from homing.core.limits import RateLimit
from homing.core.policy import Backoff, Jitter, OnTimeout, Rule
from homing.sim.scene import Violation
from homing.sim.weather import CALM, NAP, PACED, Weather, WorldPlan, plan_of
from homing.sim.world import run_world

SEEDS = 8
"""A bug that hides in so many worlds has got away."""
REQUESTS = 90
"""Small worlds: most bugs show within a few of them."""


Make = Callable[[Any], Any]
"""From what was there to what is put in its place."""

Plan = Callable[[int], WorldPlan]


class Planted(Struct, frozen=True, kw_only=True):
    """A bug, where it shows, and what it must be caught by."""

    name: str
    what: str
    patches: tuple[tuple[Any, str, Make], ...]
    """(owner, attribute, what takes its place)."""
    plan: Plan
    invariants: tuple[str, ...]


class Caught(Struct, frozen=True):
    """A bug that was found."""

    bug: str
    seed: int
    worlds: int
    """How many worlds it took."""
    violation: Violation


class Bugs:
    """A collection of planted bugs: each is a function that makes the broken part from the good one."""

    def __init__(self) -> None:
        self.all: list[Planted] = []

    def plant(
        self,
        what: str,
        *invariants: str,
        on: tuple[Any, str],
        plan: Plan,
        also: tuple[Any, str, Make] | None = None,
    ) -> Callable[[Make], Make]:
        """Registers a bug: `what` it does, where it goes, and which invariants may catch it."""

        def register(make: Make) -> Make:
            patches = ((*on, make),) if also is None else ((*on, make), also)
            name = make.__name__.replace("_", " ")
            self.all.append(Planted(name=name, what=what, patches=patches, plan=plan, invariants=invariants))
            return make

        return register


def all_bugs() -> tuple[Planted, ...]:
    """Those of the core, the engine and the store."""
    from homing.sim import planted_core, planted_engine, planted_store  # they are made with this module

    return (*planted_core.BUGS.all, *planted_engine.BUGS.all, *planted_store.BUGS.all)


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """The bug is there inside the `with` block, and gone after it."""
    with ExitStack() as stack:
        for owner, name, make in bug.patches:
            stack.enter_context(patch.object(owner, name, make(vars(owner)[name])))
        yield


def hunt(bug: Planted, seeds: Iterable[int]) -> Caught | None:
    """Runs worlds with the bug until one of them breaks; None: it got away."""
    for number, seed in enumerate(seeds, 1):
        try:
            with planted(bug):
                run_world(bug.plan(seed))
        except Violation as violation:
            return Caught(bug.name, seed, number, violation)
    return None


# Worlds in which something shows sooner -------------------------------------------------------------

_STEADY = Weather(trouble=0.5, operator_every_ms=4_000)
_ROUGH = Weather(
    crash_every_ms=15_000,
    crash_per_call=0.001,
    pause_every_ms=20_000,
    error_per_call=0.04,
    slow_per_call=0.01,
    sink_error=0.3,
    trouble=0.4,
    outage_every_ms=60_000,
    operator_every_ms=2_000,
)


def rough(seed: int) -> WorldPlan:
    """Everything but clock jumps."""
    return replace(plan_of(seed, REQUESTS), weather=_ROUGH, processes=2)


def steady(seed: int) -> WorldPlan:
    """The processes and the store work; only the providers have their troubles."""
    return replace(_patient(plan_of(seed, REQUESTS)), weather=_STEADY)


def quiet(seed: int) -> WorldPlan:
    """No faults, but an operator."""
    return replace(plan_of(seed, REQUESTS), weather=replace(CALM, operator_every_ms=1_500))


def split(seed: int) -> WorldPlan:
    """Where a channel has two providers, the first one is only there to fail over to."""
    plan = quiet(seed)
    firsts = {plan.carriers[0].id, *(b.id for a, b in pairwise(plan.carriers) if a.channels != b.channels)}
    carriers = tuple(replace(c, weight=0 if c.id in firsts else 1) for c in plan.carriers)
    alone = Counter(carrier.channels for carrier in carriers)
    return replace(
        plan, carriers=tuple(c if alone[c.channels] > 1 else replace(c, weight=None) for c in carriers)
    )


def paced(seed: int) -> WorldPlan:
    """Recipients and tenants with limits, and a nap in the middle."""
    plan = replace(plan_of(seed, 2 * REQUESTS), weather=CALM, paces=PACED, quiet_hours=NAP)
    return replace(
        plan,
        spread_ms=180_000,
        faults_ms=200_000,
        carriers=tuple(replace(c, rate=None) for c in plan.carriers),
    )


def outages(seed: int) -> WorldPlan:
    """Providers that are away for a while, again and again."""
    weather = Weather(trouble=0.1, outage_every_ms=15_000)
    plan = replace(plan_of(seed, 2 * REQUESTS), weather=weather, tenants=("t0",))
    return replace(_patient(plan), carriers=tuple(replace(c, rate=None) for c in plan.carriers))


def unsure(seed: int) -> WorldPlan:
    """Crashes and answers that never come, under policies that say what to do then."""
    plan = replace(plan_of(seed, REQUESTS), weather=replace(_ROUGH, pause_every_ms=0, trouble=0.6))
    return _patient(plan)


def contested(seed: int) -> WorldPlan:
    """Processes that come back from a long pause to find that others have gone on without them."""
    weather = Weather(pause_every_ms=4_000, longest_pause_ms=60_000, slow_per_call=0.2, trouble=0.7)
    plan = replace(_patient(plan_of(seed, REQUESTS)), weather=weather, processes=3, lease_ms=9_000)
    fields = {"base_ms": 200, "cap_ms": 400, "jitter": Jitter.NONE, "timeout_ms": 12_000}
    carriers = tuple(replace(c, breaker=replace(c.breaker, failures=1_000)) for c in plan.carriers)
    return replace(plan, rules=tuple(_with(rule, **fields) for rule in plan.rules), carriers=carriers)


def flaky(seed: int) -> WorldPlan:
    """The store fails now and then, and processes live long enough to try again."""
    return replace(plan_of(seed, REQUESTS), weather=Weather(error_per_call=0.15, sink_error=0.3, trouble=0.3))


def crowded(seed: int) -> WorldPlan:
    """More to send at once than the providers take."""
    plan = plan_of(seed, 2 * REQUESTS)
    carriers = tuple(replace(c, max_in_flight=2) for c in plan.carriers)
    return replace(plan, weather=CALM, carriers=carriers, spread_ms=5_000, faults_ms=30_000)


def limited(seed: int) -> WorldPlan:
    """Every provider has a rate limit, and the traffic is above it."""
    plan = plan_of(seed, 2 * REQUESTS)
    carriers = tuple(replace(c, rate=RateLimit(2.0, 2), max_in_flight=16) for c in plan.carriers)
    return replace(plan, weather=CALM, carriers=carriers, spread_ms=20_000, faults_ms=30_000)


def short_leases(seed: int) -> WorldPlan:
    """Leases shorter than the timeouts: they have to be prolonged before each send."""
    return replace(plan_of(seed, REQUESTS), weather=_STEADY, lease_ms=3_000)


def refusing(seed: int) -> WorldPlan:
    """Every provider refuses every third message with an error that no table lists."""
    return replace(_patient(plan_of(seed, REQUESTS)), weather=Weather(unlisted=0.35, trouble=0.2))


def impatient(seed: int) -> WorldPlan:
    """What waits for a provider grows too old soon."""
    plan = outages(seed)
    return replace(plan, rules=tuple(_with(rule, max_age_ms=20_000) for rule in plan.rules))


def _patient(plan: WorldPlan) -> WorldPlan:
    """Enough attempts to see what follows a failure."""
    return replace(plan, rules=tuple(_with(rule, max_attempts=5) for rule in plan.rules))


def _with(rule: Rule, **fields: Any) -> Rule:
    return replace(rule, policy=replace(rule.policy, **fields))


def holding(seed: int) -> WorldPlan:
    """What may have been taken waits for somebody to say so."""
    plan = unsure(seed)
    return replace(plan, rules=tuple(_with(rule, on_timeout=OnTimeout.HOLD) for rule in plan.rules))


def capped(seed: int) -> WorldPlan:
    """Delays that are at their cap from the second attempt on, with jitter."""
    plan = steady(seed)
    fields = {
        "backoff": Backoff.EXPONENTIAL,
        "base_ms": 2_000,
        "cap_ms": 3_000,
        "factor": 2.0,
        "jitter": Jitter.PROPORTIONAL,
        "jitter_ratio": 0.3,
        "failover_after": 3,
    }
    return replace(plan, rules=tuple(_with(rule, **fields) for rule in plan.rules))
