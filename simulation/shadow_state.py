"""The state that the checkers of a simulation run share: trace, clock and expected states.

The expected state of a notification (`ShadowState`) is derived from what was committed, sent and returned,
never by calling the code under test, so that the two can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.ids import id_time_ms
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.states import LIVE
from homing.core.notifications import Channel, Mode, OutcomeKind, Priority, Status
from homing.core.retry.policy import BounceFailover, MatchKeys, RetryPolicy
from homing.rehearsal.virtual_time import VirtualClock
from simulation.plan import LACKING_PROCESS, SimulationPlan
from simulation.trace import Trace


class Violation(AssertionError):
    """Raised if an invariant does not hold. Carries the seed and the trace, so that it can be reproduced."""

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
            f"  seed {self.seed}, {self.at_ms} ms after the start; last lines of the trace:\n{trace}"
        )


class ProviderCall(Struct, kw_only=True):
    """One call of a simulated provider's `send`."""

    provider: str
    process: str
    id: str
    attempt: int
    began_ms: int
    due_ms: int
    """Deadline of the attempt."""
    jumps: int
    """Number of clock jumps before the call started."""
    over: bool = False
    """True once the call has ended for its process."""
    outcome: Outcome | None = None
    """Outcome that the process received. None while the call runs, and if it was aborted."""
    kind: OutcomeKind = OutcomeKind.AMBIGUOUS
    """Class that the breaker, the attempt record and the settlement must use for the outcome. Set when the
    call is over."""
    over_ms: int = 0
    expired: bool = False
    """True if the attempt ended at its deadline, although the provider had not returned yet."""
    aborted: bool = False
    """True if its process cancelled the call."""

    @property
    def was_cut_short(self) -> bool:
        """True if the call timed out in less than half of its timeout, because it had started late.

        A synchronous send had waited before. No breaker and no outlet counts it, for it is not their fault.
        """
        took_ms = self.over_ms - self.began_ms
        return (self.expired or self.aborted) and 2 * took_ms < self.due_ms - self.began_ms


class BounceRules(Struct, frozen=True):
    """The part of a policy that applies after a reported failure."""

    shortest_ms: int
    longest_ms: int
    policy: RetryPolicy

    @property
    def always(self) -> bool:
        """True if a failure that is the recipient's fault also leads to a failover."""
        return self.policy.bounce_failover is BounceFailover.ALWAYS


class ProviderWait(Struct, frozen=True):
    """How long a notification must not be sent to a provider again. Times are loop times."""

    asked_ms: int
    """End of the wait that the provider asked for."""
    backoff_ms: int
    """End of that wait and of the backoff. If other rules apply meanwhile, their backoff counts instead."""
    policies: tuple[RetryPolicy, ...]
    """The policies that the backoff may be of."""

    def ends_ms(self, policies: Iterable[RetryPolicy]) -> int:
        """Returns the end of the wait, if these policies may apply now."""
        return self.backoff_ms if any(one in self.policies for one in policies) else self.asked_ms


class ShadowState(Struct, kw_only=True):
    """The expected state of a notification.

    Fields ending in `_ms` are loop times, except the durations `max_age_ms` and `last_delay_ms`. The store
    times are `lease_until`, `aged_from` and the fields ending in `_at`.
    """

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
    """Hash of the message as it was accepted."""
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
    """Number of attempts that another system made before the acceptance."""
    max_attempts: int | None = None
    due_at: int | None = None
    lease_until: int | None = None
    lease_ends_ms: int = 0
    """Loop time at which the lease ends, if the clock is not set meanwhile."""
    lease_written_ms: int = 0
    """Loop time at which the lease was taken or last extended."""
    holder: str = ""
    leased_at: int = 0
    worker: str = ""
    """Process that claimed the notification for its current attempt. A reclaim of the attempt keeps it."""
    started_at: int = 0
    """Store time at which the current attempt was claimed. A reclaim of the attempt keeps it."""
    leased_ms: int = 0
    jumps_at_lease: int = 0
    overdue: bool = False
    reclaimed: bool = False
    skip: str = ""
    """Reason not to send the notification, as of its claim. Empty if there is none."""
    cancel_requested: bool = False
    last_delay_ms: int = 0
    bounces: tuple[BounceRules, ...] = ()
    """Rules for a reported failure, one for each policy that may have been used to settle the last
    attempt."""
    unknown_bounces: int = 0
    """Number of retries after reported failures with an unknown code."""
    unknown_maybe: bool = False
    """True if such a failure was reported about a message that may not be the newest one."""
    unsure: set[int] = field(default_factory=set)
    """Numbers of the attempts that were settled as ambiguous or lost, which may have created a message."""
    accepted: set[int] = field(default_factory=set)
    """Numbers of the attempts that were settled as accepted."""
    messages: dict[int, str] = field(default_factory=dict)
    """Number of an attempt → the message that the provider took from it, whatever it answered."""
    taken: set[str] = field(default_factory=set)
    """Messages that a provider has accepted or reported as taken, and not as failed, since an operator's
    last command."""
    failed_messages: set[str] = field(default_factory=set)
    """Messages whose failure a provider reported."""
    failures_here: int = 0
    spent: dict[str, int] = field(default_factory=dict)
    """Providers that must not be tried again in this round of failover, or never again (`Spent.REFUSED`)."""
    moves: int = 0
    """Number of attempts that the maximum does not count: moves at once and uncounted failures."""
    uncounted: int = 0
    """Number of retried failures after which the provider answered that the attempt does not count."""
    free_move: bool = False
    """True if the next attempt, or the one in flight, is a move at once."""
    holds: dict[str, int] = field(default_factory=dict)
    """Provider → store time until which its Retry-After forbids an attempt."""
    cleared: int = 0
    """Number of operator's retries, each of which makes all providers available again."""
    calls: dict[int, ProviderCall] = field(default_factory=dict)
    left_alone: dict[str, ProviderWait] = field(default_factory=dict)
    refused_by: set[str] = field(default_factory=set)
    """Providers that refused the notification with an unlisted error. They must not be tried again before
    an operator's retry."""
    provider_keys: list[str] = field(default_factory=list)
    """Idempotency keys of the attempts so far, each once."""
    key_may_change: bool = False
    """True if a failure was reported since the last attempt."""
    key_must_change: bool = False
    """True if the next attempt follows from a reported failure."""
    log: list[tuple[str, Status, Status]] = field(default_factory=list)
    """(what, status before, status after) of every change that must be recorded."""
    failed: int = 0
    """Number of times the notification became a dead letter."""
    turns: int = 0
    """Number of status changes, not counting changes to `sending`."""
    events: set[str] = field(default_factory=set)
    """Ids of the published `NotificationFailed` events."""
    tellings: set[str] = field(default_factory=set)
    """Ids of the published `StatusChanged` events."""
    changed_ms: int = 0
    quiet_changes: int = 0
    ended_at: int = 0
    touched: int = 0
    """Number of times that the store has written something about this notification."""
    rolled_back: bool = False
    """True if the store has lost something about this notification. Processes, providers and callers may know
    of attempts that the store does not know, so only the rules of the store itself are checked, and
    invariant 26."""

    def copied(self) -> ShadowState:
        """Returns a copy that shares nothing with this state that can change."""
        copy = replace(self)
        for name in _CONTAINERS:
            setattr(copy, name, getattr(self, name).copy())
        copy.calls = {number: replace(call) for number, call in self.calls.items()}
        return copy

    @property
    def is_taken(self) -> bool:
        """Returns True if a provider has or may have taken a message, and has not reported its failure."""
        return any(
            self.messages.get(number) not in self.failed_messages for number in self.accepted | self.unsure
        )

    @property
    def counted(self) -> int:
        """Returns the number of attempts that count toward the maximum and the backoff."""
        return self.attempts - self.moves

    def round_kept(self, after: Status) -> tuple[dict[str, int], int, bool]:
        """Returns what is spent, the moves, and whether the next is free, if a change keeps the round.

        A row that does not wait any more makes no further move.
        """
        ends = after not in LIVE
        return self.spent, self.moves - (ends and self.free_move), self.free_move and not ends

    @property
    def keys(self) -> MatchKeys:
        """Returns the keys that select the notification's policy."""
        return MatchKeys(self.tenant, self.type, self.origin, self.channel, self.priority)


_CONTAINERS = tuple(
    name
    for name in ShadowState.__struct_fields__
    if ShadowState.__annotations__[name].startswith(("set[", "dict[", "list["))
)
"""Fields with containers that can change. Their items cannot, apart from `calls`."""


class SimulationState:
    """The shared state of one simulation run."""

    def __init__(self, plan: SimulationPlan, clock: VirtualClock, trace: Trace) -> None:
        self.plan = plan
        self.clock = clock
        self.trace = trace
        self.shadows: dict[str, ShadowState] = {}
        self.shift_ms = 0
        """The store's time minus its wall clock. Not 0 while processes do not believe a jump."""
        self.accepted_ms = -(10**9)
        """Loop time at which processes began to believe a large jump."""
        self.jumps = 0
        self.last_jump_ms = -(10**9)
        self.quiet_since_ms: int | None = None
        self.quiet_backlog = 0
        """Number of rows that were waiting or leased when the faults stopped. A rate limit spreads them."""
        self.violation: Violation | None = None
        self.on_violation: Callable[[], None] = lambda: None
        self.paused_ms: dict[str, int] = {}
        """Process → loop time at which it was last resumed, or a time in the far future while it is
        paused."""
        self.dead: set[str] = set()
        self.rollbacks = 0
        """Number of times that the store has lost its last commits."""
        self.rolled_back_ms = -(10**9)
        """Loop time at which the store last lost commits."""
        self.lost: set[str] = set()
        """Ids of notifications that the store has lost. One may be accepted again by a repeated call."""
        self.results_of_purged = 0
        """Number of settlement batches with purged notifications, of processes that were suspended, that no
        log line has reported yet."""
        self.leases: Counter[str] = Counter()
        """Notification id → number of leases for an attempt, including those that the store has lost."""
        self.sends: Counter[str] = Counter()
        """Notification id → number of calls of providers."""
        self._overridden_from: dict[Channel, int] = {}
        """Channel → time of the store when its split was first overridden."""

    @property
    def now(self) -> int:
        """Returns the store's time in epoch milliseconds, by which it decides what is due and expired."""
        return self.clock.now_ms() + self.shift_ms

    @property
    def ms(self) -> int:
        """Returns the milliseconds since the start of the run."""
        return self.clock.monotonic_ms()

    def has_provider(self, process: str, provider: str) -> bool:
        """Returns True unless this process runs without the provider."""
        return process != LACKING_PROCESS or provider not in self.plan.lacking

    def note_override(self, channel: Channel) -> None:
        """Notes that the split of a channel is about to be overridden."""
        self._overridden_from[channel] = min(self.now, self._overridden_from.get(channel, self.now))

    def may_be_overridden(self, channel: Channel, id: str) -> bool:
        """Returns True if an override of the split may decide where this notification starts.

        That is never so for one that was accepted before the first override. For a later one it depends on
        what the accepting process had read.
        """
        since = self._overridden_from.get(channel)
        return since is not None and (self.jumps > 0 or id_time_ms(id) >= since)

    def jumped_since(self, jumps: int) -> bool:
        """Returns True if the clock has jumped since the number of jumps was `jumps`.

        Also returns True if the last jump is so recent that a response from before it may still be in flight.
        """
        fault_plan = self.plan.fault_plan
        slow_ms = 4 * fault_plan.longest_slow_ms if fault_plan.slow_per_call else 0
        pause_ms = fault_plan.longest_pause_ms if fault_plan.pause_every_ms else 0
        return self.jumps != jumps or self.ms - self.last_jump_ms < 1_000 + slow_ms + pause_ms

    def note(self, who: str, what: str) -> None:
        """Adds a line to the trace."""
        self.trace.add(self.clock.monotonic_ms(), who, what)

    def violate(self, invariant: str, text: str, about: str = "") -> NoReturn:
        """Ends the run with a violation, and raises it.

        The first violation is also stored, because the engine may catch the exception.
        """
        self.note("check", f"VIOLATION {invariant}: {text[:200]}")
        short = short_id(about)
        lines = [*self.trace.tail(40, short), "…", *self.trace.tail(12)] if about else self.trace.tail(30)
        found = Violation(invariant, text, seed=self.plan.seed, at_ms=self.ms, about=about, lines=lines)
        if self.violation is None:
            self.violation = found
            self.on_violation()
        raise found


def short_id(id: str) -> str:
    """Returns the end of an id, which is enough to recognize it in a trace."""
    return id[-8:]
