"""Planted bugs, which the simulator must find. They prove that its checks work.

Each bug is switched on alone, by patching the engine, the core or the store during a simulation run.
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

from homing.core.notifications import Channel
from homing.core.ports.stores import Retention
from homing.core.retry.policy import Backoff, FailoverWait, Jitter, OnTimeout, Rule
from homing.core.routing.breaker import BREAKER_OFF
from homing.core.routing.rate_limits import RateLimit
from simulation.plan import (
    NO_FAULTS,
    SAMPLE_RATE_LIMITS,
    SHORT_QUIET_HOURS,
    FaultPlan,
    SimulatedProviderPlan,
    SimulationPlan,
    build_crowded_plan,
    build_plan,
    losing_commits,
    plain_plan,
)
from simulation.run import run_simulation
from simulation.shadow_state import Violation

FIRST_SEED, SEEDS = 1_000, 8
"""The seeds that are tried if a bug is not found with its own seed, and their number."""

REQUESTS = 60
"""Number of requests per run. Most bugs show within a few small runs."""


PatchFactory = Callable[[Any], Any]
"""Makes the broken replacement from the original."""


PlanFactory = Callable[[int], SimulationPlan]
"""Makes the plan of a simulation run from a seed."""


class PlantedBug(Struct, frozen=True, kw_only=True):
    """A bug, the plan under which it shows, and the invariants that may catch it."""

    name: str
    what: str
    patches: tuple[tuple[Any, str, PatchFactory], ...]
    """Patches to apply, each as (owner, attribute, factory of the replacement)."""
    plan: PlanFactory
    invariants: tuple[str, ...]
    seed: int
    """The seed whose simulation finds the bug soonest. If the code changes, it may not find it any more."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds to try, in this order."""
        return tuple(dict.fromkeys((self.seed, *range(FIRST_SEED, FIRST_SEED + SEEDS))))


class CaughtBug(Struct, frozen=True):
    """A planted bug that was found."""

    bug: str
    seed: int
    runs: int
    """Number of runs until the bug was found."""
    violation: Violation


class BugList:
    """A list of planted bugs.

    Each bug is defined by a function that makes the broken replacement from the original.
    """

    def __init__(self) -> None:
        self.all: list[PlantedBug] = []

    def plant(
        self,
        what: str,
        *invariants: str,
        on: tuple[Any, str],
        plan: PlanFactory,
        seed: int = FIRST_SEED,
        also: tuple[Any, str, PatchFactory] | None = None,
    ) -> Callable[[PatchFactory], PatchFactory]:
        """Registers a bug.

        `what` describes it, `on` and `also` are the patched attributes, and `invariants` may catch it. A
        few seeds are used for many bugs, because each is also simulated without a bug.
        """

        def register(make: PatchFactory) -> PatchFactory:
            patches = ((*on, make),) if also is None else ((*on, make), also)
            name = make.__name__.replace("_", " ")
            self.all.append(
                PlantedBug(name=name, what=what, patches=patches, plan=plan, invariants=invariants, seed=seed)
            )
            return make

        return register


def load_all_bugs() -> tuple[PlantedBug, ...]:
    """Returns the planted bugs of the core, the engine, the store, timers, bridges and isolation."""
    from simulation.planted import core, engine, plug_ins, poison, store

    modules = (core, engine, store, plug_ins, poison)
    return tuple(bug for module in modules for bug in module.BUGS.all)


@contextmanager
def plant_bug(bug: PlantedBug) -> Iterator[None]:
    """Plants the bug for the duration of the `with` block."""
    with ExitStack() as stack:
        for owner, name, make in bug.patches:
            stack.enter_context(patch.object(owner, name, make(vars(owner)[name])))
        yield


def hunt_bug(bug: PlantedBug, seeds: Iterable[int]) -> CaughtBug | None:
    """Runs simulations with the bug until a run has a violation. Returns None if no run has one."""
    for number, seed in enumerate(seeds, 1):
        try:
            with plant_bug(bug):
                run_simulation(bug.plan(seed))
        except Violation as violation:
            return CaughtBug(bug.name, seed, number, violation)
    return None


# Plans under which certain bugs show sooner -----------------------------------------------------------

_STEADY = FaultPlan(trouble=0.5, operator_every_ms=4_000)

_ROUGH = FaultPlan(
    crash_every_ms=15_000,
    crash_per_call=0.001,
    pause_every_ms=20_000,
    error_per_call=0.04,
    statement_error_per_call=0.02,
    slow_per_call=0.01,
    sink_error=0.3,
    trouble=0.4,
    outage_every_ms=60_000,
    operator_every_ms=2_000,
)


def campaign(seed: int) -> SimulationPlan:
    """A run of a campaign, in which the bug was found."""
    return build_plan(seed, 250)


def rough(seed: int) -> SimulationPlan:
    """Returns a plan with most kinds of faults, but without clock jumps and store outages."""
    return replace(plain_plan(seed, REQUESTS), fault_plan=_ROUGH, processes=2)


def stopped_by_hand(seed: int) -> SimulationPlan:
    """Returns a plan without faults in which an operator often stops providers and repeats messages there."""
    plan = replace(plain_plan(seed, 2 * REQUESTS), spread_ms=120_000, faults_ms=240_000, cron=False)
    return replace(plan, fault_plan=replace(NO_FAULTS, operator_every_ms=300))


def odd_rules(seed: int) -> SimulationPlan:
    """Returns a plan in which the operator changes rules, and tries durations that no clock can express."""
    return replace(quiet(seed), odd_rules=True, fault_plan=replace(NO_FAULTS, policy_every_ms=2_000))


def steady(seed: int) -> SimulationPlan:
    """Returns a plan with failing providers and an operator, but no other faults."""
    return replace(patient(plain_plan(seed, REQUESTS)), fault_plan=_STEADY)


def quiet(seed: int) -> SimulationPlan:
    """Returns a plan without faults, but with an operator."""
    return replace(plain_plan(seed, REQUESTS), fault_plan=replace(NO_FAULTS, operator_every_ms=1_500))


def bounced(seed: int) -> SimulationPlan:
    """Returns a plan with enough attempts that providers report several failures of one notification."""
    plan = patient(replace(plain_plan(seed, 2 * REQUESTS), fault_plan=NO_FAULTS))
    return replace(plan, providers=tuple(replace(c, rate=None) for c in plan.providers))


def cancelling(seed: int) -> SimulationPlan:
    """Returns a plan like `bounced`, with slow providers and an operator who cancels many notifications."""
    fault_plan = replace(NO_FAULTS, operator_every_ms=300)
    return replace(bounced(seed), fault_plan=fault_plan)


def repeating(seed: int) -> SimulationPlan:
    """Returns a plan like `cancelling`, with failures and with many messages that are sent again."""
    fault_plan = replace(NO_FAULTS, trouble=0.2, operator_every_ms=100)
    return replace(bounced(seed), fault_plan=fault_plan, repeats=0.45)


def short_keys(seed: int) -> SimulationPlan:
    """Returns a plan like `repeating`, in which keys are purged long before their dedup windows end.

    Receipts are purged with the keys, so none comes again later than that.
    """
    plan = replace(repeating(seed), spread_ms=300_000, faults_ms=300_000)
    return replace(plan, retention=Retention(keys_ms=100_000))


def split(seed: int) -> SimulationPlan:
    """Returns a plan in which the first of two providers has weight 0, so it is used only for failover."""
    plan = quiet(seed)
    firsts = {plan.providers[0].id, *(b.id for a, b in pairwise(plan.providers) if a.channels != b.channels)}
    providers = tuple(replace(c, weight=0 if c.id in firsts else 1) for c in plan.providers)
    alone = Counter(provider.channels for provider in providers)
    return replace(
        plan, providers=tuple(c if alone[c.channels] > 1 else replace(c, weight=None) for c in providers)
    )


def overridden(seed: int) -> SimulationPlan:
    """Returns a plan with failures at providers, in which the operator often overrides splits."""
    plan = replace(plain_plan(seed, REQUESTS), splits=True)
    return replace(plan, fault_plan=replace(NO_FAULTS, trouble=0.7, operator_every_ms=1_500))


def paced(seed: int) -> SimulationPlan:
    """Returns a plan with rate limits per recipient and tenant, and with quiet hours."""
    plan = replace(
        plain_plan(seed, 2 * REQUESTS),
        fault_plan=NO_FAULTS,
        paces=SAMPLE_RATE_LIMITS,
        quiet_hours=SHORT_QUIET_HOURS,
    )
    return replace(
        plan,
        spread_ms=180_000,
        faults_ms=200_000,
        providers=tuple(replace(c, rate=None) for c in plan.providers),
    )


def outages(seed: int) -> SimulationPlan:
    """Returns a plan with frequent provider outages."""
    fault_plan = FaultPlan(trouble=0.1, outage_every_ms=15_000)
    plan = replace(plain_plan(seed, 2 * REQUESTS), fault_plan=fault_plan, tenants=("t0",))
    return replace(patient(plan), providers=tuple(replace(c, rate=None) for c in plan.providers))


def unsure(seed: int) -> SimulationPlan:
    """Returns a plan like `rough`, with more failing sends, many of them ambiguous, but without pauses."""
    plan = replace(plain_plan(seed, REQUESTS), fault_plan=replace(_ROUGH, pause_every_ms=0, trouble=0.6))
    return patient(plan)


def doubtful(seed: int) -> SimulationPlan:
    """Returns a plan in which many notifications have several messages, with receipts about each of them.

    Ambiguous sends are repeated soon, at providers that create a message for each attempt and name it.
    """
    plan = replace(patient(plain_plan(seed, REQUESTS)), fault_plan=FaultPlan(trouble=0.6))
    fields = {"on_timeout": OnTimeout.RETRY, "base_ms": 200, "cap_ms": 400, "timeout_ms": 1_500}
    providers = tuple(
        replace(
            c,
            rate=None,
            breaker=replace(c.breaker, failures=1_000),
            idempotent=False,
            sends_notification_id=True,
            sends_attempt_number=True,
        )
        for c in plan.providers
    )
    return replace(plan, rules=tuple(_with(rule, **fields) for rule in plan.rules), providers=providers)


def given_up(seed: int) -> SimulationPlan:
    """Returns a plan like `doubtful`, in which the only attempt often fails and operators repeat it.

    The repetition waits for the breaker, and the failure of the first message is reported meanwhile. The
    rules by type have a longer backoff than the others.
    """
    plan = doubtful(seed)
    long = {"base_ms": 20_000, "cap_ms": 60_000}
    rules = (_with(rule, max_attempts=1, **(long if rule.type != "*" else {})) for rule in plan.rules)
    providers = tuple(replace(c, breaker=replace(c.breaker, failures=1)) for c in plan.providers)
    fault_plan = replace(plan.fault_plan, operator_every_ms=20)
    return replace(plan, rules=tuple(rules), providers=providers, fault_plan=fault_plan)


def contested(seed: int) -> SimulationPlan:
    """Returns a plan with long pauses, after which processes find that their leases were reclaimed."""
    fault_plan = FaultPlan(pause_every_ms=4_000, longest_pause_ms=60_000, slow_per_call=0.2, trouble=0.7)
    plan = replace(patient(plain_plan(seed, REQUESTS)), fault_plan=fault_plan, processes=3, lease_ms=9_000)
    fields = {"base_ms": 200, "cap_ms": 400, "jitter": Jitter.NONE, "timeout_ms": 12_000}
    providers = tuple(replace(c, breaker=replace(c.breaker, failures=1_000)) for c in plan.providers)
    return replace(plan, rules=tuple(_with(rule, **fields) for rule in plan.rules), providers=providers)


def flaky(seed: int) -> SimulationPlan:
    """Returns a plan in which the store, the sink and the providers fail, but processes do not crash."""
    fault_plan = FaultPlan(error_per_call=0.1, statement_error_per_call=0.1, sink_error=0.3, trouble=0.3)
    return replace(plain_plan(seed, REQUESTS), fault_plan=fault_plan)


def dead_sink(seed: int) -> SimulationPlan:
    """Returns a plan in which no process has one of the sinks, and some notifications fail."""
    return replace(
        quiet(seed), dead_sink=True, events=frozenset({"StatusChanged", "NotificationFailed", "Alert"})
    )


def crowded(seed: int) -> SimulationPlan:
    """Returns a plan with more concurrent traffic than the providers allow."""
    plan = plain_plan(seed, 2 * REQUESTS)
    providers = tuple(replace(c, max_in_flight=2) for c in plan.providers)
    return replace(plan, fault_plan=NO_FAULTS, providers=providers, spread_ms=5_000, faults_ms=30_000)


def limited(seed: int) -> SimulationPlan:
    """Returns a plan in which every provider has a rate limit and the traffic exceeds it."""
    plan = plain_plan(seed, 2 * REQUESTS)
    providers = tuple(replace(c, rate=RateLimit(2.0, 2), max_in_flight=16) for c in plan.providers)
    return replace(plan, fault_plan=NO_FAULTS, providers=providers, spread_ms=20_000, faults_ms=30_000)


def short_leases(seed: int) -> SimulationPlan:
    """Returns a plan with leases of 3 seconds, which must be extended before a send with a longer timeout."""
    return replace(plain_plan(seed, REQUESTS), fault_plan=_STEADY, lease_ms=3_000)


def clock_jumps(seed: int) -> SimulationPlan:
    """Returns a plan in which the clock is set by hours or a day, while many attempts are in flight."""
    fault_plan = FaultPlan(long_jump_every_ms=600_000, trouble=0.6)
    plan = replace(patient(plain_plan(seed, REQUESTS)), fault_plan=fault_plan, processes=2)
    return replace(plan, spread_ms=2_400_000, faults_ms=2_400_000)


def accepted_jumps(seed: int) -> SimulationPlan:
    """Returns a plan like `clock_jumps`, with slow providers that never fail, and jumps that are accepted.

    With some seeds, the only jump is one forward in the first minute.
    """
    plan = clock_jumps(seed)
    fault_plan = FaultPlan(long_jump_every_ms=1_200_000)
    providers = tuple(replace(c, latency_ms=50_000, rate=None, max_in_flight=16) for c in plan.providers)
    rules = tuple(_with(rule, timeout_ms=60_000) for rule in plan.rules)
    plan = replace(plan, requests=2 * REQUESTS, spread_ms=800_000, faults_ms=800_000)
    return replace(plan, fault_plan=fault_plan, providers=providers, rules=rules)


def restarted(seed: int) -> SimulationPlan:
    """Returns a plan in which all processes crash with attempts in flight, and the clock is set back."""
    fault_plan = FaultPlan(trouble=0.6, restart_jump_ms=-3_600_000)
    plan = replace(patient(plain_plan(seed, REQUESTS)), fault_plan=fault_plan, processes=2)
    return replace(plan, spread_ms=60_000, faults_ms=60_000, retention=Retention())


def overnight(seed: int) -> SimulationPlan:
    """Returns a plan in which all processes crash, and others start a day later."""
    plan = restarted(seed)
    return replace(plan, fault_plan=replace(plan.fault_plan, restart_jump_ms=86_400_000))


def lost_commits(seed: int) -> SimulationPlan:
    """Returns a plan in which the store loses its last commits again and again, and nothing shows it."""
    plan = replace(steady(seed), processes=2, cron=False, tenants=("t0", "t1", "t2", "t3"))
    providers = tuple(replace(c, rate=None, max_in_flight=16, latency_ms=600) for c in plan.providers)
    return losing_commits(replace(plan, providers=providers), 3_000, noticed=False)


def lost_short_leases(seed: int) -> SimulationPlan:
    """Returns a plan like `lost_commits`, with attempts that are longer than their leases."""
    plan = lost_commits(seed)
    providers = tuple(replace(c, latency_ms=4_000) for c in plan.providers)
    return replace(plan, providers=providers, lease_ms=3_000)


def noticed_losses(seed: int) -> SimulationPlan:
    """Returns a plan in which processes notice that the store has lost commits, and nothing is purged."""
    plan = replace(lost_commits(seed), retention=Retention(), spread_ms=60_000, faults_ms=60_000)
    return losing_commits(plan, 5_000, noticed=True)


def losses_during_look_ups(seed: int) -> SimulationPlan:
    """Returns a plan like `noticed_losses`, with a slow store, so that a look-up often sees the next loss."""
    plan = noticed_losses(seed)
    fault_plan = replace(plan.fault_plan, slow_per_call=0.2, longest_slow_ms=10_000)
    return losing_commits(replace(plan, fault_plan=fault_plan), 2_000, noticed=True)


def slow_claims(seed: int) -> SimulationPlan:
    """Returns a plan in which half of all claims wait for seconds."""
    fault_plan = FaultPlan(slow_claim_per_call=0.5, trouble=0.5)
    plan = replace(patient(plain_plan(seed, 3 * REQUESTS)), fault_plan=fault_plan, spread_ms=60_000)
    return replace(plan, providers=tuple(replace(c, rate=None) for c in plan.providers))


def unwritable(seed: int) -> SimulationPlan:
    """Returns a plan in which, now and then, results cannot be written for longer than a lease.

    Everything else works, and messages arrive all the time.
    """
    fault_plan = FaultPlan(unwritable_every_ms=20_000, trouble=0.2)
    plan = replace(patient(plain_plan(seed, 3 * REQUESTS)), fault_plan=fault_plan, processes=2, cron=False)
    plan = replace(plan, spread_ms=180_000, faults_ms=180_000, lease_ms=9_000, poll_ms=1_000)
    return replace(plan, providers=tuple(replace(c, rate=None, max_in_flight=16) for c in plan.providers))


def slow_store(seed: int) -> SimulationPlan:
    """Returns a plan in which many calls of the store take up to a minute."""
    fault_plan = FaultPlan(slow_per_call=0.1, longest_slow_ms=60_000)
    return replace(plain_plan(seed, REQUESTS), fault_plan=fault_plan)


def long_timeout(seed: int) -> SimulationPlan:
    """Returns a plan in which one type has a timeout of ten minutes."""
    plan = replace(quiet(seed), lease_ms=None)
    first, *others = plan.rules
    return replace(plan, rules=(_with(first, timeout_ms=600_000, max_age_ms=1_200_000), *others))


def misbehaving(seed: int) -> SimulationPlan:
    """Returns a plan with plain functions and with providers that exit or ignore their cancellation."""
    fault_plan = FaultPlan(misbehave=0.25, trouble=0.3, error_per_call=0.1)
    plan = replace(patient(plain_plan(seed, REQUESTS)), fault_plan=fault_plan, lease_ms=3_000)
    providers = tuple(
        replace(one, blocking=number % 2 == 1, rate=None, max_in_flight=min(3, one.max_in_flight))
        for number, one in enumerate(plan.providers)
    )
    return replace(plan, providers=providers)


def refusing(seed: int) -> SimulationPlan:
    """Returns a plan in which providers refuse a third of all messages with an unlisted error."""
    return replace(patient(plain_plan(seed, REQUESTS)), fault_plan=FaultPlan(unlisted=0.35, trouble=0.2))


def brokers_away(seed: int) -> SimulationPlan:
    """Returns a plan in which many failures do not count, and one failure is enough for a move at once."""
    return replace(two_providers(seed), fault_plan=FaultPlan(away=0.4, trouble=0.2))


def two_providers(seed: int) -> SimulationPlan:
    """Returns a plan without crashes in which one failure is enough for a move at once."""
    plan = steady(seed)
    fields = {"failover_after": 1, "failover_wait": FailoverWait.NONE, "max_attempts": 3}
    return replace(plan, rules=tuple(_with(rule, **fields) for rule in plan.rules))


def waiting_moves(seed: int) -> SimulationPlan:
    """Returns a plan without crashes in which every move waits for the backoff."""
    plan = steady(seed)
    fields = {"failover_after": 1, "failover_wait": FailoverWait.BACKOFF, "max_attempts": 5}
    return replace(plan, rules=tuple(_with(rule, **fields) for rule in plan.rules))


def lacking(seed: int) -> SimulationPlan:
    """Returns a plan without faults in which the second process lacks one provider of each route of two."""
    plan = quiet(seed)
    lacks = frozenset(one.id for one in plan.providers if one.id in ("ember", "sable"))
    return replace(plan, processes=2, lacking=lacks)


def impatient(seed: int) -> SimulationPlan:
    """Returns a plan with provider outages and a short maximum age."""
    plan = outages(seed)
    return replace(plan, rules=tuple(_with(rule, max_age_ms=20_000) for rule in plan.rules))


def patient(plan: SimulationPlan) -> SimulationPlan:
    """Returns the plan with enough attempts per notification to see what follows a failure."""
    return replace(plan, rules=tuple(_with(rule, max_attempts=5) for rule in plan.rules))


def _with(rule: Rule, **fields: Any) -> Rule:
    return replace(rule, policy=replace(rule.policy, **fields))


def cron_only(seed: int) -> SimulationPlan:
    """Returns a plan without faults in which only `process` delivers, so that many lanes are due at once."""
    return replace(quiet(seed), cron=True, processes=0, spread_ms=2_000)


def holding(seed: int) -> SimulationPlan:
    """Returns a plan in which ambiguous sends stay in doubt until they are resolved."""
    plan = unsure(seed)
    return replace(plan, rules=tuple(_with(rule, on_timeout=OnTimeout.HOLD) for rule in plan.rules))


def capped(seed: int) -> SimulationPlan:
    """Returns a plan whose delays reach their cap at the second attempt, with jitter."""
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


def by_hand(seed: int) -> SimulationPlan:
    """Returns a plan with an operator who moves notifications to the dead letters, and with chosen runs.

    The only process without a worker processes one tenant, or chosen notifications, every few seconds.
    """
    fault_plan = FaultPlan(trouble=0.6, operator_every_ms=300)
    plan = replace(patient(plain_plan(seed, REQUESTS)), fault_plan=fault_plan, by_hand=True, cron=True)
    return replace(plan, tenants=("t0", "t1", "t2"), processes=1, poll_ms=20_000)


def pushes(seed: int) -> SimulationPlan:
    """Returns a plan with slow pushes that fail, and an operator who deactivates devices meanwhile."""
    plan = patient(plain_plan(seed, REQUESTS))
    fault_plan = FaultPlan(trouble=0.7, operator_every_ms=200)
    provider = SimulatedProviderPlan(
        id="plum",
        channels=(Channel.PUSH,),
        max_in_flight=64,
        rate=None,
        breaker=BREAKER_OFF,
        latency_ms=8_000,
    )
    fields = {"timeout_ms": 15_000, "on_timeout": OnTimeout.RETRY}
    return replace(
        plan,
        fault_plan=fault_plan,
        tenants=("t0",),
        channels=(Channel.PUSH,),
        providers=(provider,),
        lacking=frozenset(),
        rules=tuple(_with(rule, **fields) for rule in plan.rules),
    )


def crowd(seed: int) -> SimulationPlan:
    """Returns a plan with several lanes, tenants and channels at one slow or rate-limited provider."""
    return build_crowded_plan(seed, 2 * REQUESTS)
