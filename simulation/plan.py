"""The plan of a simulation run: everything that the seed decides before the run starts."""

from __future__ import annotations

from random import Random

from msgspec import Struct
from msgspec.structs import replace

from homing.core.notifications import Channel, Priority
from homing.core.ports.stores import Retention
from homing.core.recipients.quiet_hours import QuietHours, Window
from homing.core.retry.policy import (
    Backoff,
    BounceFailover,
    FailoverWait,
    Jitter,
    OnTimeout,
    PolicyPatch,
    Rule,
)
from homing.core.routing.breaker import BreakerPolicy
from homing.core.routing.rate_limits import RateLimit, RateLimitRule, RateLimitRules
from homing.engine.settings import LaneSlots

TYPES = ("order", "alert", "digest", "news", "bill")

_MINUTE_MS = 60_000


class FaultPlan(Struct, frozen=True, kw_only=True):
    """How often each kind of fault occurs.

    Fields `…_per_call` are probabilities. Fields `…_every_ms` are mean intervals. 0 turns a fault off.
    """

    crash_every_ms: int = 0
    crash_per_call: float = 0.0
    pause_every_ms: int = 0
    longest_pause_ms: int = 90_000
    error_per_call: float = 0.0
    statement_error_per_call: float = 0.0
    """Probability that a statement of a call or its COMMIT fails, because of a lock or a full disk."""
    away_every_ms: int = 0
    """Mean time between outages of the store."""
    unwritable_every_ms: int = 0
    """Mean time between periods in which the store writes no results, but does everything else."""
    slow_per_call: float = 0.0
    longest_slow_ms: int = 25_000
    slow_claim_per_call: float = 0.0
    """Probability that a claim waits for seconds before the store performs it."""
    jump_every_ms: int = 0
    """Mean time between jumps of the store's wall clock, forward or back."""
    long_jump_every_ms: int = 0
    """Mean time between jumps of the store's wall clock by hours or a day."""
    restart_jump_ms: int = 0
    """Jump of the clock while no process runs, once in the middle of the fault phase. 0 turns it off."""
    lost_commits_every_ms: int = 0
    """Mean time until the store loses the commits of the last seconds and goes on."""
    lost_commits_are_noticed: bool = False
    """True if the store has another identity after it has lost commits, as after a failover. False if nothing
    shows it, as behind a pooler."""
    sink_error: float = 0.0
    """Probability that publishing events fails."""
    trouble: float = 0.0
    """Share of sends that fail, hang or are answered late."""
    unlisted: float = 0.0
    """Share of sends that are refused with an error code missing from the error table. Drawn before
    `trouble`."""
    away: float = 0.0
    """Share of sends that fail because the provider's server is away, so that the attempt does not count.
    Drawn before `unlisted`."""
    misbehave: float = 0.0
    """Share of sends in which the provider's code raises what would end a process or a task, or ignores its
    cancellation. Drawn before `unlisted`."""
    outage_every_ms: int = 0
    operator_every_ms: int = 0
    policy_every_ms: int = 0


NO_FAULTS = FaultPlan()

LONGEST_LOSS_MS = 8_000
"""Longest time whose commits a store loses at once."""

SAMPLE_RATE_LIMITS = RateLimitRules(
    recipient=RateLimitRule(limit=RateLimit(0.5, 2), exempt_priorities=frozenset({Priority.CRITICAL})),
    tenant=RateLimitRule(limit=RateLimit(4.0, 8), tenants={"t1": None}),
)

SHORT_QUIET_HOURS = QuietHours(window=Window((15 * 60 + 8) * _MINUTE_MS, (15 * 60 + 10) * _MINUTE_MS))
"""Quiet hours of two minutes, soon after the start of a run."""


class SimulatedProviderPlan(Struct, frozen=True, kw_only=True):
    """Properties of one simulated provider."""

    id: str
    channels: tuple[Channel, ...]
    max_in_flight: int
    rate: RateLimit | None
    breaker: BreakerPolicy
    host_slots: int | None = None
    latency_ms: int | None = None
    """Time that every answer takes. None if it is random."""
    hanging_hosts: int = 0
    """Number of webhook hosts that never answer, the first ones of `SimulationPlan.hosts`."""
    weight: int | None = None
    idempotent: bool = False
    """True if a repeated idempotency key returns the same message id."""
    sends_notification_id: bool = False
    """True if the provider's receipts carry the notification id."""
    sends_attempt_number: bool = False
    """True if the provider's receipts also carry the number of the attempt."""
    answers: bool = False
    """True if the provider supports status lookups."""
    blocking: bool = False
    """True if the provider is a plain function, which blocks a thread and cannot be cancelled."""


class TimerPlan(Struct, frozen=True, kw_only=True):
    """Faults of the timer that wakes the workers of other processes. They never stop."""

    lose: float
    """Share of due times that the timer forgets."""
    repeat: float
    """Share of due times that the timer reports twice."""
    fail: float
    """Probability that a call fails."""
    longest_delay_ms: int
    ignores_cancellation: bool = False
    """True if a listener goes on when it is cancelled, as some clients do while they connect."""


class BridgePlan(Struct, frozen=True, kw_only=True):
    """Messages that arrive through a bridge."""

    messages: int
    fail: float
    """Probability that a call of the bridge fails, before or after it has taken effect."""


class SimulationPlan(Struct, frozen=True, kw_only=True):
    """All settings of a simulation run. The same plan gives the same trace."""

    seed: int
    requests: int
    spread_ms: int
    """Length of the period in which the requests arrive at random times."""
    faults_ms: int
    """Minimum length of the fault phase. It also lasts until every caller has finished."""
    tenants: tuple[str, ...]
    processes: int
    cron: bool
    """True if there is one more process, which has no worker but processes due rows every few seconds."""
    fault_plan: FaultPlan
    providers: tuple[SimulatedProviderPlan, ...]
    channels: tuple[Channel, ...]
    rules: tuple[Rule, ...]
    lease_ms: int | None
    poll_ms: int
    slots: LaneSlots
    retention: Retention
    events: frozenset[str]
    paces: RateLimitRules = RateLimitRules()
    quiet_hours: QuietHours = QuietHours()
    timer: TimerPlan | None = None
    is_notified: bool = True
    """True if the store promises to report commits of other processes. It never does report one."""
    bridge: BridgePlan | None = None
    poison: bool = False
    """True if there are items that the store, a sink or intake refuses for good."""
    spools: bool = False
    """True if callers let some requests wait in a file while the store is unavailable."""
    dead_sink: bool = False
    """True if there is a sink that no process has, so that its events wait for ever."""
    by_hand: bool = False
    """True if the operator also moves notifications to the dead letters, and the process without a worker
    processes only one tenant or chosen notifications now and then."""
    odd_rules: bool = False
    """True if half of the changes of rules have a duration that is out of range."""
    splits: bool = False
    """True if the operator overrides the split of channels now and then, for a time or until it is reset."""
    lacking: frozenset[str] = frozenset()
    """Providers that the second process does not have, as in a rolling deploy."""
    hosts: int = 3
    """Number of webhook hosts."""
    repeats: float = 0.05
    """Probability that a caller sends a message with a dedup key again. Twice as many messages have a key."""
    checks_shares: bool = False
    """True if the run has no faults and no failover, so that every start must keep to the shares of its
    provider."""
    max_lateness_ms: int | None = None
    """Longest time between due time and claim. None if faults or a lack of capacity may delay a claim."""


def build_plan(seed: int, requests: int = 200) -> SimulationPlan:
    """Returns the plan for a seed.

    Each kind of fault is drawn separately, so some runs have few kinds of faults and some have most.
    """
    rng = Random(f"{seed}/plan")
    channels = tuple(sorted(rng.sample((Channel.EMAIL, Channel.SMS, Channel.PUSH), rng.choice((1, 2)))))
    if rng.random() < 0.3:
        channels += (Channel.WEBHOOK,)
    spread_ms = round(requests * rng.choice((300, 700, 1_200)))
    lease_ms = rng.choice((None, None, 3_000, 9_000, 25_000))
    short = rng.random() < 0.3
    plan = SimulationPlan(
        seed=seed,
        requests=requests,
        spread_ms=spread_ms,
        faults_ms=spread_ms + rng.choice((30_000, 120_000, 240_000)),
        tenants=tuple(f"t{n}" for n in range(rng.choice((1, 2, 3, 4)))),
        processes=rng.choice((1, 2, 2, 3)),
        cron=rng.random() < 0.2,
        fault_plan=replace(
            _with_brokers_away(_with_long_jumps(_random_fault_plan(rng), seed), seed),
            misbehave=_misbehave(Random(f"{seed}/misbehave")),
        ),
        providers=tuple(
            _naming(provider, seed)
            for channel in channels
            for provider in _weighed(_providers(rng, channel), seed, channel)
        ),
        channels=channels,
        rules=(*(_rule(rng, type_) for type_ in TYPES), _rule(rng, "*")),
        lease_ms=lease_ms,
        poll_ms=rng.choice((1_000, 5_000, 20_000)),
        slots=LaneSlots(priority=rng.choice((2, 8, 32)), standard=rng.choice((2, 8, 32)), bulk=2),
        retention=Retention(delivered_ms=60_000, sent_ms=240_000, others_ms=600_000, keys_ms=600_000)
        if short
        else Retention(),
        events=frozenset({"NotificationFailed", "Alert"} | ({"StatusChanged"} if seed % 2 else set())),
        paces=SAMPLE_RATE_LIMITS if Random(f"{seed}/paces").random() < 0.2 else RateLimitRules(),
        quiet_hours=SHORT_QUIET_HOURS if Random(f"{seed}/quiet hours").random() < 0.2 else QuietHours(),
        timer=_timer_plan(Random(f"{seed}/timer")),
        is_notified=Random(f"{seed}/notified").random() >= 0.2,
        bridge=_bridge_plan(Random(f"{seed}/bridge"), requests),
        poison=Random(f"{seed}/poison").random() < 0.15,
        spools=Random(f"{seed}/spools").random() < 0.15,
        dead_sink=Random(f"{seed}/dead sink").random() < 0.15,
        by_hand=Random(f"{seed}/by hand").random() < 0.3,
        splits=Random(f"{seed}/splits").random() < 0.3,
        lacking=_lacking_providers(Random(f"{seed}/lacking"), channels),
    )
    if plan.processes + plan.cron < 2:
        plan = replace(plan, lacking=frozenset())  # the only process may be the one that lacks them
    return _with_lost_commits(plan, Random(f"{seed}/loss plan"))


COMPLETE_PROCESS = "p1"
"""Name of a process that has all providers."""

LACKING_PROCESS = "p2"
"""Name of the process that runs without the providers in `SimulationPlan.lacking`."""


def _lacking_providers(rng: Random, channels: tuple[Channel, ...]) -> frozenset[str]:
    """Returns one provider of each route of two, in a fifth of all runs."""
    if rng.random() >= 0.2:
        return frozenset()
    return frozenset(rng.choice(names) for channel in channels if len(names := _NAMES[channel]) > 1)


def plain_plan(seed: int, requests: int = 200) -> SimulationPlan:
    """Returns the plan for a seed, without timer, bridge, poison, spool, dead sink, splits and operators."""
    plan = replace(build_plan(seed, requests), timer=None, bridge=None, poison=False, spools=False)
    return replace(plan, dead_sink=False, by_hand=False, splits=False)


def build_faultless_plan(seed: int, requests: int = 200) -> SimulationPlan:
    """Returns the plan for a seed, without faults."""
    return replace(build_plan(seed, requests), fault_plan=NO_FAULTS, by_hand=False, splits=False)


def build_crowded_plan(seed: int, requests: int = 200) -> SimulationPlan:
    """Returns the plan of a flood: several lanes, tenants and channels at slow or rate-limited providers.

    Some webhook hosts never answer. Half of the runs have 40 hosts, and most attempts go to one that has
    not answered yet. There are no other faults.
    """
    rng = Random(f"{seed}/crowd")
    plan = build_faultless_plan(seed, requests)
    never_opens = BreakerPolicy(failures=1_000_000)
    hosts, hanging_hosts = (40, 37) if Random(f"{seed}/many hosts").random() < 0.5 else (12, 9)
    slots, latency_ms = rng.choice((2, 4, 8, 16, 32)), rng.choice((200, 1_000, 2_500))
    limited = rng.random() < 0.4
    shared = SimulatedProviderPlan(
        id="amber",
        channels=(Channel.EMAIL, Channel.SMS),
        max_in_flight=32 if limited else slots,  # a synchronous send must not wait for a slot with its token
        rate=RateLimit(rng.choice((2.0, 5.0)), rng.choice((1, 4, 8))) if limited else None,
        breaker=never_opens,
        latency_ms=latency_ms,
    )
    hooks = SimulatedProviderPlan(
        id="wren",
        channels=(Channel.WEBHOOK,),
        max_in_flight=rng.choice((8, 16, 32)),
        rate=None,
        breaker=BreakerPolicy(failures=3, open_ms=20_000, ramp_ms=0),
        host_slots=8,
        latency_ms=100,
        hanging_hosts=hanging_hosts,
    )
    policy = replace(random_policy(rng), timeout_ms=4_000, on_timeout=OnTimeout.RETRY, max_age_ms=90_000)
    return replace(
        plan,
        spread_ms=rng.choice((1_000, 10_000)),
        faults_ms=60_000,
        tenants=("t0", "t1", "t2"),
        cron=False,
        processes=rng.choice((1, 2)),
        providers=(shared, hooks),
        channels=(Channel.EMAIL, Channel.SMS, Channel.WEBHOOK),
        rules=(Rule(name="rest", type="*", policy=policy),),
        slots=LaneSlots(priority=32, standard=32, bulk=16),
        paces=RateLimitRules(),
        quiet_hours=QuietHours(),
        timer=None,
        bridge=None,
        hosts=hosts,
        checks_shares=True,
    )


def random_policy(rng: Random) -> PolicyPatch:
    """Returns a random policy under which a notification ends within half an hour."""
    backoff = rng.choice(
        (Backoff.EXPONENTIAL, Backoff.EXPONENTIAL, Backoff.LINEAR, Backoff.FIBONACCI, Backoff.FIXED)
    )
    base_ms = rng.choice((200, 1_000, 3_000, 10_000))
    timeout_ms = rng.choice((1_500, 4_000, 12_000))
    return PolicyPatch(
        max_attempts=rng.choice((1, 2, 3, 4, 6)),
        backoff=backoff,
        base_ms=base_ms,
        factor=rng.choice((1.5, 2.0, 3.0)),
        steps_ms=tuple(rng.choice((500, 2_000, 8_000, 30_000)) for _ in range(rng.choice((1, 3)))),
        cap_ms=rng.choice((0, 2 * base_ms, 60_000)),
        jitter=rng.choice(tuple(Jitter)),
        jitter_ratio=rng.choice((0.1, 0.3)),
        jitter_ms=rng.choice((300, 2_000)),
        failover_after=rng.choice((1, 2, 3)),
        failover_wait=rng.choice((FailoverWait.NONE, FailoverWait.NONE, FailoverWait.BACKOFF)),
        timeout_ms=timeout_ms,
        on_timeout=rng.choices(tuple(OnTimeout), (6, 2, 2))[0],
        max_age_ms=rng.choice((90_000, 5 * _MINUTE_MS, 10 * _MINUTE_MS)),
        bounce_failover=rng.choice(tuple(BounceFailover)),
    )


def _rule(rng: Random, type_: str) -> Rule:
    return Rule(name=f"r-{type_}" if type_ != "*" else "rest", type=type_, policy=random_policy(rng))


def _random_fault_plan(rng: Random) -> FaultPlan:
    def sometimes(share: float, *values: float) -> float:
        drawn, value = rng.random(), rng.choice(values)
        return value if drawn < share else 0

    return FaultPlan(
        crash_every_ms=int(sometimes(0.5, 20_000, 60_000)),
        crash_per_call=sometimes(0.4, 0.0005, 0.002),
        pause_every_ms=int(sometimes(0.4, 20_000, 60_000)),
        error_per_call=sometimes(0.5, 0.01, 0.05, 0.15),
        away_every_ms=int(sometimes(0.25, 40_000, 90_000)),
        slow_per_call=sometimes(0.4, 0.005, 0.03),
        jump_every_ms=int(sometimes(0.25, 40_000, 90_000)),
        sink_error=sometimes(0.5, 0.1, 0.4),
        trouble=sometimes(0.9, 0.1, 0.3, 0.6),
        outage_every_ms=int(sometimes(0.7, 60_000, 150_000)),
        operator_every_ms=int(sometimes(0.8, 1_500, 6_000)),
        policy_every_ms=int(sometimes(0.4, 40_000, 120_000)),
        statement_error_per_call=sometimes(0.5, 0.005, 0.02, 0.1),
    )


def _with_long_jumps(fault_plan: FaultPlan, seed: int) -> FaultPlan:
    """Adds jumps of the clock by hours or a day in a tenth of all runs."""
    rng = Random(f"{seed}/long jump plan")
    return replace(fault_plan, long_jump_every_ms=90_000) if rng.random() < 0.1 else fault_plan


def _with_brokers_away(fault_plan: FaultPlan, seed: int) -> FaultPlan:
    """Adds failures that do not count in a quarter of all runs."""
    rng = Random(f"{seed}/away plan")
    drawn, share = rng.random(), rng.choice((0.1, 0.4))
    return replace(fault_plan, away=share) if drawn < 0.25 else fault_plan


def _with_lost_commits(plan: SimulationPlan, rng: Random) -> SimulationPlan:
    """Lets the store lose its last commits in a tenth of all runs, half of them without a sign."""
    if rng.random() >= 0.1:
        return plan
    return losing_commits(plan, rng.choice((10_000, 30_000)), noticed=rng.random() < 0.5)


def losing_commits(plan: SimulationPlan, every_ms: int, *, noticed: bool) -> SimulationPlan:
    """Returns the plan with a store that loses its last commits now and then, and goes on.

    There are no jumps of the clock then, and no brokers, timers, inboxes and spools, because their messages
    are gone once they were acknowledged.
    """
    fault_plan = replace(
        plan.fault_plan,
        lost_commits_every_ms=every_ms,
        lost_commits_are_noticed=noticed,
        jump_every_ms=0,
        long_jump_every_ms=0,
        restart_jump_ms=0,
    )
    plan = replace(plan, fault_plan=fault_plan, timer=None, bridge=None, poison=False, spools=False)
    return replace(plan, dead_sink=False)


def _misbehave(rng: Random) -> float:
    """Returns the share of misbehaving sends, which is 0 in two thirds of all runs."""
    return rng.choice((0.02, 0.1)) if rng.random() < 0.33 else 0.0


def _timer_plan(rng: Random) -> TimerPlan | None:
    """Returns the plan of a timer in a fifth of all runs."""
    if rng.random() >= 0.2:
        return None
    return TimerPlan(
        lose=rng.choice((0.0, 0.3, 1.0)),
        repeat=rng.choice((0.0, 0.3)),
        fail=rng.choice((0.0, 0.05, 0.3)),
        longest_delay_ms=rng.choice((10, 2_000, 60_000)),
        ignores_cancellation=rng.random() < 0.3,
    )


def _bridge_plan(rng: Random, requests: int) -> BridgePlan | None:
    """Returns the plan of a bridge in a fifth of all runs."""
    if rng.random() >= 0.2:
        return None
    return BridgePlan(messages=requests // 5, fail=rng.choice((0.0, 0.05, 0.2)))


def _naming(provider: SimulatedProviderPlan, seed: int) -> SimulatedProviderPlan:
    rng = Random(f"{seed}/{provider.id}/naming")
    drawn = rng.random()
    return replace(
        provider,
        sends_notification_id=drawn < 0.6,
        sends_attempt_number=drawn < 0.4,
        answers=rng.random() < 0.5,
        blocking=rng.random() < 0.2,
    )


def _weighed(
    providers: list[SimulatedProviderPlan], seed: int, channel: Channel
) -> list[SimulatedProviderPlan]:
    """Adds weights to some routes, so that their traffic is split between the providers."""
    weights = Random(f"{seed}/{channel.value}/weights").choice((None, None, (1, 1), (3, 1), (0, 1)))
    if weights is None or len(providers) < 2:
        return providers
    return [replace(provider, weight=weight) for provider, weight in zip(providers, weights, strict=True)]


_NAMES = {
    Channel.EMAIL: ("ember", "egret"),
    Channel.SMS: ("sable", "swift"),
    Channel.PUSH: ("plum",),
    Channel.WEBHOOK: ("wren",),
}


def _providers(rng: Random, channel: Channel) -> list[SimulatedProviderPlan]:
    return [
        SimulatedProviderPlan(
            id=name,
            channels=(channel,),
            max_in_flight=rng.choice((1, 3, 16)),
            rate=RateLimit(rng.choice((0.8, 2.0, 6.0)), rng.choice((1, 4))) if rng.random() < 0.3 else None,
            breaker=BreakerPolicy(
                failures=rng.choice((2, 3, 5)),
                open_ms=rng.choice((5_000, 20_000, 45_000)),
                health_every_ms=rng.choice((5_000, 30_000)),
                ramp_ms=rng.choice((0, 5_000, 20_000)),
                ramp_per_second=rng.choice((2.0, 10.0)),
            ),
            host_slots=2 if channel is Channel.WEBHOOK else None,
            idempotent=rng.random() < 0.4,
        )
        for name in _NAMES[channel]
    ]
