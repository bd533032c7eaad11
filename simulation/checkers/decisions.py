"""Checks settlements against the policy in force (invariants 5–9 and 12).

The backoff arithmetic is implemented a second time here, from the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.rows import Row
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.ports.stores import Entry
from homing.core.retry.policy import Backoff, BounceFailover, Jitter, OnTimeout, PolicyBook, RetryPolicy, Rule
from homing.core.retry.presets import PRIORITY
from simulation.shadow_state import BounceRules, ProviderCall, ShadowState, SimulationState

_DAY_MS = 86_400_000

_WEEK_MS = 7 * _DAY_MS

_UNCERTAIN = (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST)

_FINAL_REASON = {
    OutcomeKind.BAD_CONTENT: Reason.BAD_CONTENT,
    OutcomeKind.BAD_RECIPIENT: Reason.BAD_RECIPIENT,
    OutcomeKind.DEAD_ADDRESS: Reason.DEAD_ADDRESS,
    OutcomeKind.OPTED_OUT: Reason.OPTED_OUT,
}

_FIBONACCI = (1, 2, 3, 5, 8, 13)

_SLACK_MS = 200
"""Tolerance in milliseconds, because a decision is made shortly before its settlement commits."""


Problem = tuple[str, str]
"""A violated rule: (invariant, description)."""


def uncapped_delay_ms(policy: RetryPolicy, attempt: int) -> float:
    """Returns the backoff after this attempt in milliseconds, without cap and jitter."""
    match policy.backoff:
        case Backoff.EXPONENTIAL:
            return policy.base_ms * policy.factor ** (attempt - 1)
        case Backoff.LINEAR:
            return policy.base_ms * attempt
        case Backoff.FIBONACCI:
            return policy.base_ms * _FIBONACCI[min(attempt, 6) - 1]
        case Backoff.FIXED:
            return policy.steps_ms[min(attempt, len(policy.steps_ms)) - 1]
        case Backoff.CALLABLE:
            raise ValueError("simulation plans have no callable backoffs")


def delay_bounds_ms(policy: RetryPolicy, attempt: int, last_ms: int) -> tuple[int, int]:
    """Returns the shortest and the longest delay that the policy allows, in milliseconds.

    The cap is applied before the jitter.
    """
    cap = min(policy.cap_ms or _WEEK_MS, _WEEK_MS)
    delay = int(min(uncapped_delay_ms(policy, attempt), cap))
    match policy.jitter:
        case Jitter.NONE:
            return delay, delay
        case Jitter.PROPORTIONAL:
            return delay, delay + int(delay * policy.jitter_ratio)
        case Jitter.ADDITIVE:
            return delay, delay + policy.jitter_ms
        case Jitter.FULL:
            return 0, delay
        case Jitter.EQUAL:
            return delay // 2, delay
        case Jitter.DECORRELATED:
            first = int(min(uncapped_delay_ms(policy, 1), cap))
            return first, max(first, min(cap, 3 * max(last_ms, first)))


def allowed_attempts(policy: RetryPolicy, shadow: ShadowState) -> int:
    """Returns the maximum number of attempts: the notification's own, or else the policy's.

    An operator may grant any number of further attempts, and a reported failure grants at most one.
    """
    most = policy.max_attempts if shadow.max_attempts is None else shadow.max_attempts
    return max(most, shadow.floor, min(shadow.bounce_floor, most + 1))


class PolicyChecker:
    """Records which rules each process has read, and checks its decisions against them."""

    def __init__(
        self,
        state: SimulationState,
        routes: dict[Channel, tuple[str, ...]],
        stopped: Callable[[str, str, ShadowState], bool],
    ) -> None:
        self._state = state
        self._routes = routes
        self._stopped = stopped
        self._configured = {rule.name: rule for rule in state.plan.rules}
        self._made: dict[tuple[tuple[str, int], ...], PolicyBook] = {}
        self._read: dict[str, list[tuple[int, PolicyBook]]] = {}
        self._spread: list[tuple[int, int]] = []
        """(jitter, width of the interval) of each capped delay with jitter."""

    def read(self, process: str, entries: Sequence[Entry]) -> None:
        """Records that the process has just read the rules."""
        book = self._book(entries)
        known = self._read.setdefault(process, [])
        if not known or known[-1][1] is not book:
            known.append((self._state.ms, book))

    def in_force(self, process: str, shadow: ShadowState, since_ms: int) -> Iterator[RetryPolicy]:
        """Yields the policies that the process may have used since `since_ms`, newest first."""
        for from_ms, book in reversed(self._read.get(process, [])):
            yield book.policy(shadow.keys, shadow.mode)
            if from_ms < since_ms:
                return
        yield self._book(()).policy(shadow.keys, shadow.mode)

    def decided(self, process: str, shadow: ShadowState, settlement: Settlement, row: Row) -> None:
        """Checks a settlement that was applied. `shadow` still has the state before the settlement."""
        if settlement.attempt is None:
            return
        self._check_outcome(process, shadow, settlement)
        if settlement.attempt.outcome in (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST):
            shadow.unsure.add(settlement.attempt.number)
        shadow.bounces = tuple(
            BounceRules(
                *delay_bounds_ms(policy, shadow.attempts, shadow.last_delay_ms),
                policy.bounce_failover is BounceFailover.ALWAYS,
            )
            for policy in self.in_force(process, shadow, shadow.leased_ms)
        )
        problems: list[Problem] = []
        for policy in self.in_force(process, shadow, shadow.leased_ms):
            problem = self._problem(process, policy, shadow, settlement, row)
            if problem is None:
                self._note_spread(policy, shadow, settlement)
                break
            problems.append(problem)
        else:
            self._state.violate(*problems[0], shadow.id)
        if settlement.status is Status.RETRYING:
            call = shadow.calls.get(shadow.attempts)
            asked_ms = min(_retry_after(shadow), _DAY_MS)
            if call is not None and asked_ms:
                shadow.left_alone[call.provider] = self._state.ms + asked_ms
            if settlement.provider != settlement.attempt.provider:
                shadow.moved_from.add(settlement.attempt.provider)
                if call is not None and not shadow.reclaimed and _is_unlisted(call):
                    shadow.refused_by.add(call.provider)
            shadow.failures_here += 1

    def kind_of(self, call: ProviderCall, shadow: ShadowState | None) -> OutcomeKind:
        """Returns the class of a call's outcome.

        An unlisted error counts as the provider's fault while another provider can be tried.
        """
        if call.outcome is None:
            return OutcomeKind.AMBIGUOUS
        if shadow is None or not _is_unlisted(call) or shadow.pinned or shadow.mode is Mode.SYNCHRONOUS:
            return call.outcome.kind
        others = {*self._routes[shadow.channel]} - {call.provider} - shadow.refused_by
        return OutcomeKind.PROVIDER_FAULT if others else OutcomeKind.BAD_CONTENT

    def accepted(self, process: str, shadow: ShadowState, row: Row) -> None:
        """Checks the first provider and the due time of a new row."""
        if not row.pinned and row.resend_of is None:
            self._check_first(row)
        if row.attempts_before and row.send_at is None:
            self._check_taken_over(process, shadow, row)

    def _check_first(self, row: Row) -> None:
        """Checks the first provider: the first of the route, or one with a share if the route is split."""
        weights = {c.id: c.weight for c in self._state.plan.providers if row.channel in c.channels}
        first = self._routes[row.channel][0]
        fits = weights[row.provider] if any(weights.values()) else row.provider == first
        if not fits:
            self._state.violate(
                "9", f"starts at {row.provider}, which is not the first provider and has no share", row.id
            )

    def _check_taken_over(self, process: str, shadow: ShadowState, row: Row) -> None:
        """Checks the due time of a notification that another system attempted before."""
        assert row.due_at is not None, "it waits"
        wait_ms = row.due_at - row.created_at
        bounds = [delay_bounds_ms(policy, row.attempts, 0) for policy in self.in_force(process, shadow, 0)]
        if not any(low <= wait_ms <= high for low, high in bounds):
            text = f"accepted after {row.attempts} attempts elsewhere, due in {wait_ms} ms, not {bounds[0]}"
            self._state.violate("8", text, shadow.id)

    def finish(self) -> None:
        """Checks that capped delays differ. They are all equal if the jitter is added before the cap."""
        if len(self._spread) >= 12:
            at_the_cap = sum(fell == 0 for fell, _ in self._spread)
            if at_the_cap > 0.8 * len(self._spread):
                text = f"{at_the_cap} of {len(self._spread)} capped delays have no jitter"
                self._state.violate("8", text)

    def _check_outcome(self, process: str, shadow: ShadowState, settlement: Settlement) -> None:
        """Checks that the recorded outcome is the one that the provider returned."""
        assert settlement.attempt is not None, "checked by the caller"
        call, kind = shadow.calls.get(shadow.attempts), settlement.attempt.outcome
        if kind is OutcomeKind.LOST:
            if not shadow.reclaimed and shadow.mode is not Mode.SYNCHRONOUS:
                self._state.violate("5", "settled as lost before its lease expired", shadow.id)
            return
        if call is None or not call.over:
            self._state.violate("5", f"recorded as {kind}, but no send of this attempt has ended", shadow.id)
        if call.kind is not kind and _is_unlisted(call):
            text = f"an unlisted error of {call.provider} is recorded as {kind}, not {call.kind}"
            self._state.violate("9", text, shadow.id)
        if call.kind is not kind:
            self._state.violate(
                "12", f"recorded as {kind}, but {call.provider} returned {call.kind}", shadow.id
            )

    def _problem(
        self, process: str, policy: RetryPolicy, shadow: ShadowState, settlement: Settlement, row: Row
    ) -> Problem | None:
        assert settlement.attempt is not None, "checked by the caller"
        kind, status = settlement.attempt.outcome, settlement.status
        if kind is OutcomeKind.ACCEPTED:
            done = status in (Status.SENT, Status.DELIVERED)
            return None if done else ("7", f"accepted by the provider, but {status}")
        if kind in _FINAL_REASON:
            right = status is Status.FAILED and settlement.reason is _FINAL_REASON[kind]
            return None if right else ("9", f"{kind} must make a dead letter, but it is {status}")
        if shadow.mode is Mode.SYNCHRONOUS:
            return None if status is Status.FAILED else ("7", f"a failed synchronous send became {status}")
        if kind in _UNCERTAIN and policy.on_timeout is OnTimeout.HOLD:
            return None if status is Status.IN_DOUBT else ("9", f"{kind} under `hold` became {status}")
        if shadow.attempts >= allowed_attempts(policy, shadow):
            spent = status is Status.FAILED and settlement.reason is Reason.RETRIES_EXHAUSTED
            return None if spent else ("6", f"attempt {shadow.attempts} was the last, but it is {status}")
        if status is Status.EXPIRED:
            return self._expiry_problem(policy, shadow)
        if status is not Status.RETRYING:
            return ("6", f"{kind} at attempt {shadow.attempts} of {policy.max_attempts} made it {status}")
        return self._retry_problem(process, policy, shadow, settlement, row)

    def _expiry_problem(self, policy: RetryPolicy, shadow: ShadowState) -> Problem | None:
        _, longest = delay_bounds_ms(policy, shadow.attempts, shadow.last_delay_ms)
        asked = min(_retry_after(shadow), _DAY_MS)
        left = None if shadow.expires_at is None else shadow.expires_at - self._state.now
        if left is None or left > longest + asked + _SLACK_MS + self._lag_ms():
            return ("7", f"expired with {left} ms left, although a retry was possible")
        return None

    def _retry_problem(
        self, process: str, policy: RetryPolicy, shadow: ShadowState, settlement: Settlement, row: Row
    ) -> Problem | None:
        assert settlement.attempt is not None, "checked by the caller"
        kind, here = settlement.attempt.outcome, settlement.attempt.provider
        moved = settlement.provider != here
        shortest, longest = delay_bounds_ms(policy, shadow.attempts, shadow.last_delay_ms)
        asked = min(_retry_after(shadow), _DAY_MS)
        pressed = shadow.expires_at is not None and (
            self._state.now + max(longest, asked + longest - shortest) + self._lag_ms() >= shadow.expires_at
        )
        if moved:
            fault = kind is OutcomeKind.PROVIDER_FAULT or self._stopped(process, here, shadow)
            problem = self._move_problem(policy, shadow, kind, fault or pressed)
            at_once = settlement.delay_ms == 0 and (fault or pressed)
            fresh = settlement.provider not in shadow.moved_from
            if kind is OutcomeKind.PROVIDER_FAULT and fresh and settlement.delay_ms:
                return ("9", f"{kind}, but {settlement.provider} is due only in {settlement.delay_ms} ms")
            if problem is None and not at_once and not shortest <= settlement.delay_ms <= longest:
                problem = (
                    "8",
                    f"the next provider is due in {settlement.delay_ms} ms, not {shortest}–{longest}",
                )
            if problem is None and asked and row.status is Status.RETRYING:
                until = row.holds.get(here, 0)
                if until < self._state.now + asked:
                    problem = ("8", f"{here} asked for a wait of {asked} ms, but has no such hold")
            return problem
        if self._must_move(policy, shadow, kind) and not pressed:
            return ("9", f"{kind}, failure {shadow.failures_here + 1} at {here}, but it was not moved")
        low, high = max(shortest, asked), max(longest, asked + longest - shortest)
        if not low <= settlement.delay_ms <= high:
            return ("8", f"due again at {here} in {settlement.delay_ms} ms, not within {low}–{high}")
        return None

    def _move_problem(
        self, policy: RetryPolicy, shadow: ShadowState, kind: OutcomeKind, at_once: bool
    ) -> Problem | None:
        if shadow.pinned or len(self._routes[shadow.channel]) < 2:
            return ("9", f"failed over after {kind}, although it has only one provider")
        if kind in _UNCERTAIN:
            if policy.on_timeout is not OnTimeout.FAILOVER:
                return ("9", f"failed over after {kind} under `{policy.on_timeout}`")
            return None
        enough = shadow.failures_here + 1 >= policy.failover_after
        if not enough and not at_once:
            return ("9", f"failed over after failure {shadow.failures_here + 1} of {policy.failover_after}")
        return None

    def _must_move(self, policy: RetryPolicy, shadow: ShadowState, kind: OutcomeKind) -> bool:
        if shadow.pinned or len(self._routes[shadow.channel]) < 2:
            return False
        if kind in _UNCERTAIN:
            return policy.on_timeout is OnTimeout.FAILOVER
        return kind is OutcomeKind.PROVIDER_FAULT or shadow.failures_here + 1 >= policy.failover_after

    def _note_spread(self, policy: RetryPolicy, shadow: ShadowState, settlement: Settlement) -> None:
        if settlement.status is not Status.RETRYING or policy.jitter is not Jitter.PROPORTIONAL:
            return
        shortest, longest = delay_bounds_ms(policy, shadow.attempts, shadow.last_delay_ms)
        capped = 0 < policy.cap_ms <= uncapped_delay_ms(policy, shadow.attempts)
        if capped and longest - shortest >= 50 and not _retry_after(shadow) and settlement.delay_ms:
            self._spread.append((settlement.delay_ms - shortest, longest - shortest))

    def _lag_ms(self) -> int:
        """Returns how many milliseconds old a decision may be, plus how far a process's clock may be off."""
        fault_plan = self._state.plan.fault_plan
        slow = 4 * fault_plan.longest_slow_ms if fault_plan.slow_per_call else 0
        pause = fault_plan.longest_pause_ms if fault_plan.pause_every_ms else 0
        away = 60_000 if fault_plan.away_every_ms or fault_plan.error_per_call else 0
        return slow + pause + away + (_DAY_MS if self._state.jumps else 0)

    def _book(self, entries: Sequence[Entry]) -> PolicyBook:
        seen = tuple((entry.key, entry.version) for entry in entries)
        book = self._made.get(seen)
        if book is None:
            rules = dict(self._configured)
            for entry in entries:
                if entry.value.get("removed"):
                    rules.pop(entry.key, None)
                else:
                    rules[entry.key] = msgspec.convert(entry.value["rule"], Rule)
            try:
                book = PolicyBook(PRIORITY, rules.values())
            except ConfigError:
                self._state.violate("12", "contradictory rules were stored")
            self._made[seen] = book
        return book


def _is_unlisted(call: ProviderCall) -> bool:
    said = call.outcome
    return said is not None and said.unlisted and said.kind is OutcomeKind.BAD_CONTENT


def _retry_after(shadow: ShadowState) -> int:
    """Returns the wait that the provider asked for, or 0 if its response was lost with the process."""
    call = shadow.calls.get(shadow.attempts)
    if shadow.reclaimed or call is None or call.outcome is None:
        return 0
    return call.outcome.retry_after_ms or 0
