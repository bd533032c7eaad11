"""What the watchers of a world share: the trace, the clock, and their own picture of every notification.

The picture (`Shadow`) is kept from what was committed, sent and answered, never by asking the code that is
being watched, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import Struct, field

from homing.core.model import Channel, Mode, Outcome, OutcomeKind, Priority, Status
from homing.core.policy import Keys
from homing.sim.loop import VirtualClock
from homing.sim.trace import Trace
from homing.sim.weather import WorldPlan


class Violation(AssertionError):
    """An invariant does not hold. Carries all that is needed to see it again."""

    def __init__(
        self, invariant: str, text: str, *, seed: int, at_ms: int, about: str, lines: list[str]
    ) -> None:
        self.invariant = invariant
        self.text = text
        self.seed = seed
        self.at_ms = at_ms
        self.about = about
        self.lines = lines
        super().__init__(invariant, text)

    def __str__(self) -> str:
        about = f" (notification {self.about})" if self.about else ""
        trace = "\n".join(f"    {line}" for line in self.lines)
        return (
            f"invariant {self.invariant}: {self.text}{about}\n"
            f"  seed {self.seed}, {self.at_ms} ms after the beginning; the last lines of the trace:\n{trace}"
        )


class Call(Struct, kw_only=True):
    """One call of a provider."""

    carrier: str
    process: str
    id: str
    attempt: int
    began_ms: int
    jumps: int
    """How often the clock had been set when it began."""
    over: bool = False
    outcome: Outcome | None = None
    """What the process got to hear; None while it waits, and for ever if it was cut off."""
    kind: OutcomeKind = OutcomeKind.AMBIGUOUS
    """Class that breaker, record and settlement must use for the answer; set when the call is over."""
    over_ms: int = 0


class Bounces(Struct, frozen=True):
    """The part of a policy that decides what follows a reported failure."""

    shortest_ms: int
    longest_ms: int
    always: bool


class Shadow(Struct, kw_only=True):
    """A notification as the watchers know it. Times `_ms` are of the loop, times `_at` of the store."""

    id: str
    tenant: str
    batch_id: str
    mode: Mode
    channel: Channel
    type: str
    category: str
    origin: str
    priority: Priority
    address: str
    recipient_id: str | None
    digest: bytes
    """Of the message as it was accepted."""
    status: Status
    pinned: bool
    provider: str
    expires_at: int | None
    aged_from: int
    max_age_ms: int
    token: int = 0
    attempts: int = 0
    floor: int = 0
    bounce_floor: int = 0
    attempts_before: int = 0
    """Made elsewhere, before it came here."""
    max_attempts: int | None = None
    due_at: int | None = None
    lease_until: int | None = None
    holder: str = ""
    leased_at: int = 0
    leased_ms: int = 0
    jumps_at_lease: int = 0
    overdue: bool = False
    reclaimed: bool = False
    skip: str = ""
    """Why it must not be sent, as it was when it was claimed."""
    cancel_requested: bool = False
    last_delay_ms: int = 0
    bounces: tuple[Bounces, ...] = ()
    """What a receipt about a failure may lead to, by each policy that the last attempt may have been settled
    by."""
    unknown_bounces: int = 0
    """How often it was sent again because of a failure with an unknown code."""
    failures_here: int = 0
    calls: dict[int, Call] = field(default_factory=dict)
    left_alone: dict[str, int] = field(default_factory=dict)
    """Provider → loop time before which it asked not to be tried again."""
    moved_from: set[str] = field(default_factory=set)
    """Providers that a settlement or a reported failure moved it away from since an operator's last retry."""
    refused_by: set[str] = field(default_factory=set)
    """Those of them that answered with an unlisted error: it must not go there again."""
    provider_key: str = ""
    log: list[tuple[str, Status, Status]] = field(default_factory=list)
    """(what, before, after) of everything that leaves a record."""
    failed: int = 0
    """How often it became a dead letter."""
    turns: int = 0
    """How often it got another status, those aside in which it is being sent."""
    events: set[str] = field(default_factory=set)
    """Ids of the `NotificationFailed` events that were published."""
    tellings: set[str] = field(default_factory=set)
    """Ids of the `StatusChanged` events that were published."""
    changed_ms: int = 0
    quiet_changes: int = 0
    ended_at: int = 0

    @property
    def keys(self) -> Keys:
        return Keys(self.tenant, self.type, self.origin, self.channel, self.priority)


class Scene:
    """The world as seen from outside."""

    def __init__(self, plan: WorldPlan, clock: VirtualClock, trace: Trace) -> None:
        self.plan = plan
        self.clock = clock
        self.trace = trace
        self.shadows: dict[str, Shadow] = {}
        self.jumps = 0
        self.last_jump_ms = -(10**9)
        self.quiet_since_ms: int | None = None
        self.violation: Violation | None = None
        self.on_violation: Callable[[], None] = lambda: None
        self.paused_ms: dict[str, int] = {}
        """Process → when it was last paused or resumed."""
        self.dead: set[str] = set()

    @property
    def now(self) -> int:
        """The store's time."""
        return self.clock.now_ms()

    @property
    def ms(self) -> int:
        """Since the beginning."""
        return self.clock.monotonic_ms()

    def jumped_since(self, jumps: int) -> bool:
        """Whether the clock was set since there were so many jumps, or so shortly before that an answer
        from before it may still have been on its way."""
        weather = self.plan.weather
        slow_ms = 4 * weather.longest_slow_ms if weather.slow_per_call else 0
        pause_ms = weather.longest_pause_ms if weather.pause_every_ms else 0
        return self.jumps != jumps or self.ms - self.last_jump_ms < 1_000 + slow_ms + pause_ms

    def note(self, who: str, what: str) -> None:
        self.trace.add(self.clock.monotonic_ms(), who, what)

    def violate(self, invariant: str, text: str, about: str = "") -> NoReturn:
        """Stops the world. The first violation counts; the engine may swallow the exception."""
        self.note("watch", f"VIOLATION {invariant}: {text[:200]}")
        short = short_id(about)
        lines = [*self.trace.tail(40, short), "…", *self.trace.tail(12)] if about else self.trace.tail(30)
        found = Violation(invariant, text, seed=self.plan.seed, at_ms=self.ms, about=about, lines=lines)
        if self.violation is None:
            self.violation = found
            self.on_violation()
        raise found


def short_id(id: str) -> str:
    """Enough of an id to tell it from the others in a trace."""
    return id[-8:]
