"""The circuit breaker of one provider, as pure transitions.

closed ─ N failures in a row ─► open ─ time is up, or a good health check ─► half_open: one trial
  ▲                               ▲                                            │
  └───────────── good ────────────┼────────────────────────────────────────────┤
                                  └──────────────── bad ───────────────────────┘

An operator's choice (`forced`) wins over all of it until it is taken back. After a recovery the provider
is ramped up instead of getting the whole backlog at once.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from homing.core.model import Channel, OutcomeKind
from homing.core.times import check_duration_ms


class Phase(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerPolicy(Struct, frozen=True, kw_only=True):
    """When a breaker opens and how it comes back."""

    failures: int = 5
    open_ms: int = 60_000
    health_every_ms: int = 30_000
    ramp_ms: int = 60_000
    ramp_per_second: float = 10.0
    """Starts per second right after recovery; doubles eight times over `ramp_ms`, then there is no limit."""

    def __post_init__(self) -> None:
        for name in ("open_ms", "health_every_ms", "ramp_ms"):
            check_duration_ms(getattr(self, name), f"breaker.{name}")


PUSH_BREAKER = BreakerPolicy(failures=10, open_ms=120_000)


def default_policy(channel: Channel) -> BreakerPolicy:
    return PUSH_BREAKER if channel is Channel.PUSH else BreakerPolicy()


class Breaker(Struct, frozen=True, kw_only=True):
    """State of one provider's breaker, shared by all workers; `version` is for compare-and-set."""

    phase: Phase = Phase.CLOSED
    failures: int = 0
    """In a row, as one worker has seen them; only a change of phase is shared."""
    open_until: int = 0
    trial_by: str = ""
    trial_until: int = 0
    ramp_from: int = 0
    forced: Phase | None = None
    forced_by: str = ""
    forced_why: str = ""
    why: str = ""
    """Set while it is open for what receipts say, not for failed sends: no health check ends it early."""
    changed_at: int = 0
    version: int = 0


class Gate(StrEnum):
    """What a breaker says to one more attempt."""

    GO = "go"
    TRIAL = "trial"
    """One attempt may go if its worker wins the compare-and-set of `begin_trial`."""
    STOP = "stop"


_FAULTS = frozenset({OutcomeKind.TRANSIENT, OutcomeKind.PROVIDER_FAULT, OutcomeKind.AMBIGUOUS})
_NEUTRAL = frozenset({OutcomeKind.THROTTLED, OutcomeKind.LOST})


def blames_provider(kind: OutcomeKind) -> bool | None:
    """True: counts against the provider. False: it works. None: says nothing about it.

    The recipient's errors never open a breaker: an answer that blames the recipient shows that the
    provider works.
    """
    if kind in _FAULTS:
        return True
    return None if kind in _NEUTRAL else False


def gate(breaker: Breaker, now: int) -> Gate:
    if breaker.forced is not None:
        return Gate.STOP if breaker.forced is Phase.OPEN else Gate.GO
    match breaker.phase:
        case Phase.CLOSED:
            return Gate.GO
        case Phase.OPEN:
            return Gate.TRIAL if now >= breaker.open_until else Gate.STOP
        case Phase.HALF_OPEN:
            return Gate.TRIAL if now >= breaker.trial_until else Gate.STOP


def reopens_at(breaker: Breaker) -> int | None:
    """When a stopped breaker lets a trial through; None: not by itself."""
    if breaker.forced is not None:
        return None
    return breaker.trial_until if breaker.phase is Phase.HALF_OPEN else breaker.open_until


def record(breaker: Breaker, policy: BreakerPolicy, blame: bool | None, now: int) -> Breaker:
    """The breaker after one outcome."""
    if blame is None:
        return breaker
    if not blame:
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
        )
    return replace(breaker, failures=failures)


def trip(breaker: Breaker, why: str, pause_ms: int, now: int) -> Breaker:
    """Opens a closed breaker for another reason than failed sends; what an operator chose stays."""
    if breaker.forced is not None or breaker.phase is not Phase.CLOSED:
        return breaker
    return replace(breaker, phase=Phase.OPEN, open_until=now + pause_ms, ramp_from=0, why=why, changed_at=now)


def begin_trial(breaker: Breaker, worker: str, now: int, trial_ms: int) -> Breaker:
    """Half-open with the trial given to `worker`; if it dies, another trial may begin after `trial_ms`."""
    assert gate(breaker, now) is Gate.TRIAL, "a trial begins only where the gate offers one"
    return replace(
        breaker, phase=Phase.HALF_OPEN, trial_by=worker, trial_until=now + trial_ms, changed_at=now
    )


def healthy(breaker: Breaker, now: int) -> Breaker:
    """A good health check: an open breaker offers its trial now."""
    if breaker.phase is Phase.OPEN and breaker.open_until > now and not breaker.why:
        return replace(breaker, open_until=now, changed_at=now)
    return breaker


def force(breaker: Breaker, phase: Phase | None, who: str, now: int, why: str = "") -> Breaker:
    """An operator's choice; None gives control back to the automatic one, starting closed."""
    if phase is None:
        return Breaker(changed_at=now, ramp_from=now, version=breaker.version)
    return replace(breaker, forced=phase, forced_by=who, forced_why=why, changed_at=now)


def ramp_per_second(breaker: Breaker, policy: BreakerPolicy, now: int) -> float | None:
    """Starts per second that a recovering provider gets; None: no limit."""
    since = now - breaker.ramp_from
    if not breaker.ramp_from or not policy.ramp_ms or since >= policy.ramp_ms:
        return None
    return policy.ramp_per_second * float(2 ** (8 * max(0, since) / policy.ramp_ms))
