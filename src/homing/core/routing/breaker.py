"""The circuit breaker of a provider or outlet, as pure transitions.

closed ─ N consecutive failures ─► open ─ pause over, or a good health check ─► half_open: one trial
  ▲                                 ▲                                            │
  └──────────── success ────────────┼────────────────────────────────────────────┤
                                    └────────────── failure ─────────────────────┘

A phase that an operator has forced applies until the operator releases it, or until its time is over. After
a recovery, traffic to the provider or outlet ramps up instead of starting with the whole backlog at once. A
breaker that the settings turn off never opens by itself.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from homing.core.bounds import Count, DurationMs, PositiveDurationMs, PositiveRate
from homing.core.clock_steps import was_set_back
from homing.core.notifications import Channel, OutcomeKind
from homing.core.times import check_duration_ms


class Phase(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerPolicy(Struct, frozen=True, kw_only=True):
    """When a breaker opens and how it recovers. In the settings: `[providers.NAME.breaker]`."""

    failures: Count = 5
    """Number of consecutive failures that open the breaker. 0 means that the breaker is off: neither failures
    nor receipts open it, only an operator does."""
    open_ms: DurationMs = 60_000
    """Time that a breaker stays open before it permits a trial."""
    health_every_ms: PositiveDurationMs = 30_000
    """Time between health checks while the breaker is open."""
    ramp_ms: DurationMs = 60_000
    """Length of the ramp-up after a recovery. 0 disables the ramp-up."""
    ramp_per_second: PositiveRate = 10.0
    """Attempts per second at the start of the ramp-up. The rate doubles eight times during `ramp_ms`, then it
    is unlimited."""

    def __post_init__(self) -> None:
        for name in ("open_ms", "health_every_ms", "ramp_ms"):
            check_duration_ms(getattr(self, name), f"breaker.{name}")

    @property
    def off(self) -> bool:
        """True if the breaker never opens by itself."""
        return self.failures == 0


BREAKER_OFF = BreakerPolicy(failures=0)
"""Policy of a provider whose settings say `breaker = "off"`."""

PUSH_BREAKER = BreakerPolicy(failures=10, open_ms=120_000)

# Created once: every claim reads it, and the constructor checks all durations.
_DEFAULT_BREAKER = BreakerPolicy()


def default_policy(channel: Channel) -> BreakerPolicy:
    """Returns the breaker policy of the providers on this channel for which none is configured."""
    return PUSH_BREAKER if channel is Channel.PUSH else _DEFAULT_BREAKER


class Breaker(Struct, frozen=True, kw_only=True):
    """State of the breaker of a provider or outlet. `version` is for compare-and-set."""

    phase: Phase = Phase.CLOSED
    failures: int = 0
    """Consecutive failures, as counted by one worker. Only a change of phase is shared with the others."""
    open_until: int = 0
    """Time from which an open breaker permits a trial."""
    trial_by: str = ""
    """Worker that runs the trial. Empty if no trial runs."""
    trial_until: int = 0
    """Time from which another worker may start a trial instead. 0 if no trial runs."""
    ramp_from: int = 0
    """Start of the ramp-up after the last recovery. 0 if there was no recovery since the breaker opened."""
    forced: Phase | None = None
    """Phase set by an operator. None under automatic control."""
    forced_by: str = ""
    forced_why: str = ""
    forced_until: int = 0
    """Time at which the breaker returns to automatic control. 0 if an operator must release it."""
    why: str = ""
    """Why receipts opened the breaker. While it is set, a health check does not shorten the pause. Empty if
    failed sends opened the breaker."""
    changed_at: int = 0
    failing_from: int = 0
    """Time at which the breaker opened, also while trials fail and open it again. 0 while it is closed."""
    version: int = 0


class BreakerGate(StrEnum):
    """Whether a breaker permits another attempt."""

    GO = "go"
    TRIAL = "trial"
    """One attempt is permitted, to the worker that wins the compare-and-set of `begin_trial`."""
    STOP = "stop"


_FAULTS = frozenset({OutcomeKind.TRANSIENT, OutcomeKind.PROVIDER_FAULT, OutcomeKind.AMBIGUOUS})

_NEUTRAL = frozenset({OutcomeKind.THROTTLED, OutcomeKind.LOST})


def blames_provider(kind: OutcomeKind) -> bool | None:
    """Returns True for a provider's failure, False if the provider works, None if the outcome shows neither.

    A recipient's error never opens a breaker, because an answer that blames the recipient shows that the
    provider works.
    """
    if kind in _FAULTS:
        return True
    return None if kind in _NEUTRAL else False


def release_expired(breaker: Breaker, now: int) -> Breaker:
    """Returns the breaker under automatic control if the time for which it was forced is over.

    It then starts closed, as after a release by an operator. Any other breaker is returned as it is.
    """
    if breaker.forced is None or not breaker.forced_until or now < breaker.forced_until:
        return breaker
    return force_phase(breaker, None, "", breaker.forced_until)


def check_gate(breaker: Breaker, now: int) -> BreakerGate:
    """Returns whether the breaker permits an attempt now."""
    if breaker.forced is not None:
        return BreakerGate.STOP if breaker.forced is Phase.OPEN else BreakerGate.GO
    match breaker.phase:
        case Phase.CLOSED:
            return BreakerGate.GO
        case _ if was_set_back(breaker.changed_at, now):  # the end of the pause means nothing
            return BreakerGate.TRIAL
        case Phase.OPEN:
            return BreakerGate.TRIAL if now >= breaker.open_until else BreakerGate.STOP
        case Phase.HALF_OPEN:
            return BreakerGate.TRIAL if now >= breaker.trial_until else BreakerGate.STOP


def reopens_at(breaker: Breaker) -> int | None:
    """Returns when a breaker that blocks attempts permits a trial, or None if an operator must release it."""
    if breaker.forced is not None:
        return breaker.forced_until or None
    return breaker.trial_until if breaker.phase is Phase.HALF_OPEN else breaker.open_until


def phase_now(breaker: Breaker, now: int) -> Phase:
    """Returns the phase in effect now, for people and monitors.

    A breaker whose pause is over reads `half_open`: the next notification is its trial. Until then, the
    stored phase stays `open`.
    """
    if breaker.forced is not None:
        return breaker.forced
    if breaker.phase is Phase.OPEN and check_gate(breaker, now) is BreakerGate.TRIAL:
        return Phase.HALF_OPEN
    return breaker.phase


def record_outcome(breaker: Breaker, policy: BreakerPolicy, blame: bool | None, now: int) -> Breaker:
    """Returns the breaker after an outcome. `blame` is the result of `blames_provider`.

    A breaker that an operator has forced is not changed: it starts closed when it is released. A trial closes
    a breaker that was turned off in the meantime, whatever its outcome.
    """
    if blame is None or breaker.forced is not None:
        return breaker
    if not blame or policy.off:
        if breaker.phase is Phase.HALF_OPEN:
            return replace(
                breaker,
                phase=Phase.CLOSED,
                failures=0,
                trial_by="",
                trial_until=0,
                ramp_from=now,
                why="",
                changed_at=now,
                failing_from=0,
            )
        return replace(breaker, failures=0) if breaker.failures else breaker
    failures = breaker.failures + 1
    if breaker.phase is Phase.HALF_OPEN or (breaker.phase is Phase.CLOSED and failures >= policy.failures):
        return replace(
            breaker,
            phase=Phase.OPEN,
            failures=failures,
            open_until=now + policy.open_ms,
            trial_by="",
            trial_until=0,
            ramp_from=0,
            why="",
            changed_at=now,
            failing_from=breaker.failing_from or now,
        )
    return replace(breaker, failures=failures)


def open_breaker(breaker: Breaker, why: str, pause_ms: int, now: int) -> Breaker:
    """Opens a closed breaker for `pause_ms`, for a reason other than failed sends.

    A breaker that an operator has forced is not changed.
    """
    if breaker.forced is not None or breaker.phase is not Phase.CLOSED:
        return breaker
    return replace(
        breaker,
        phase=Phase.OPEN,
        open_until=now + pause_ms,
        ramp_from=0,
        why=why,
        changed_at=now,
        failing_from=now,
    )


def begin_trial(breaker: Breaker, worker: str, now: int, trial_ms: int) -> Breaker:
    """Returns the breaker half-open, with `worker` running the trial.

    If the worker dies, another trial may start after `trial_ms`.
    """
    assert check_gate(breaker, now) is BreakerGate.TRIAL, "a trial starts only if the gate permits one"
    return replace(
        breaker, phase=Phase.HALF_OPEN, trial_by=worker, trial_until=now + trial_ms, changed_at=now
    )


def record_health_check(breaker: Breaker, now: int) -> Breaker:
    """Returns the breaker after a good health check.

    An open breaker permits its trial now, unless receipts opened it. Its pause then ends in the past, because
    the clocks of two processes, or of one before and after it asks the store, may differ by milliseconds.
    """
    if breaker.phase is Phase.OPEN and breaker.open_until > now and not breaker.why:
        return replace(breaker, open_until=breaker.changed_at, changed_at=now)
    return breaker


def force_phase(
    breaker: Breaker, phase: Phase | None, who: str, now: int, why: str = "", for_ms: int | None = None
) -> Breaker:
    """Sets the phase on behalf of an operator, for a time or, if `for_ms` is None, until it is released.

    If `phase` is None, the breaker returns to automatic control and starts closed.
    """
    if phase is None:
        return Breaker(changed_at=now, ramp_from=now, version=breaker.version)
    until = 0 if for_ms is None else now + for_ms
    return replace(breaker, forced=phase, forced_by=who, forced_why=why, forced_until=until, changed_at=now)


def ramp_per_second(breaker: Breaker, policy: BreakerPolicy, now: int) -> float | None:
    """Returns how many attempts per second a provider gets, or None if its breaker sets no limit."""
    since = now - breaker.ramp_from
    if not breaker.ramp_from or not policy.ramp_ms or since >= policy.ramp_ms:
        return None
    if was_set_back(breaker.ramp_from, now):
        return None
    return policy.ramp_per_second * float(2 ** (8 * max(0, since) / policy.ramp_ms))
