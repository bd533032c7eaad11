"""Checks settlements against the policy in force (invariants 5–9 and 12).

The backoff arithmetic is implemented a second time here, from the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.rows import Row
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.ports.stores import Entry
from homing.core.retry.policy import (
    Backoff,
    FailoverWait,
    Jitter,
    OnTimeout,
    PolicyBook,
    RetryPolicy,
    Rule,
)
from homing.core.retry.presets import PRIORITY
from homing.core.routing.failover import RouteStep, Spent, first_step
from simulation.checkers.shared_state import DirectoryChecker
from simulation.plan import COMPLETE_PROCESS, LACKING_PROCESS
from simulation.shadow_state import BounceRules, ProviderCall, ProviderWait, ShadowState, SimulationState

_DAY_MS = 86_400_000

_CHOOSERS = (COMPLETE_PROCESS, LACKING_PROCESS)
"""Processes with each set of providers that a process may have."""

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
        directory: DirectoryChecker,
    ) -> None:
        self._state = state
        self._routes = routes
        self._stopped = stopped
        self._directory = directory
        self._configured = {rule.name: rule for rule in state.plan.rules}
        self._made: dict[tuple[tuple[str, int, int], ...], PolicyBook] = {}
        self._read: dict[str, list[tuple[int, PolicyBook]]] = {}
        self._begun: dict[str, int] = {}
        """Process → number of its reads of the rules that have begun."""
        self._finished: dict[str, int] = {}
        """Process → number of the latest of its reads that has finished."""
        self._spread: list[tuple[int, int]] = []
        """(jitter, width of the interval) of each capped delay with jitter."""

    def begin_read(self, process: str) -> int:
        """Records that the process begins to read the rules. Returns the number of this read."""
        self._begun[process] = self._begun.get(process, 0) + 1
        return self._begun[process]

    def read(self, process: str, number: int, entries: Sequence[Entry]) -> None:
        """Records that the process has just read the rules.

        A process ignores a read if one that began later has finished before.
        """
        if number < self._finished.get(process, 0):
            return
        self._finished[process] = number
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
            self._check_unattempted(process, shadow, settlement, row)
            return
        self._check_outcome(process, shadow, settlement)
        if settlement.attempt.outcome in (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST):
            shadow.unsure.add(settlement.attempt.number)
        elif settlement.attempt.outcome is OutcomeKind.ACCEPTED:
            shadow.accepted.add(settlement.attempt.number)
        shadow.bounces = tuple(
            BounceRules(*_backoff_ms(policy, shadow, settlement), policy)
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
            kind = settlement.attempt.outcome
            policies = list(self.in_force(process, shadow, shadow.leased_ms))
            steps = {shadow.counted}
            if _uncounts(shadow, settlement):
                # The round may end at any provider after this one, with the backoff of what counts by then.
                last = shadow.attempts + len(self._routes[shadow.channel])
                steps |= {shadow.counted - 1, *range(shadow.attempts, last)}
            shortest = min(
                delay_bounds_ms(policy, step, shadow.last_delay_ms)[0]
                for policy in policies
                for step in steps - {0}
            )
            asked_ms = self._state.ms + min(_retry_after(shadow, settlement.attempt), _DAY_MS)
            backoff_ms = max(asked_ms, self._state.ms + shortest)
            here = settlement.attempt.provider
            if (before := shadow.left_alone.get(here)) is not None:
                asked_ms = max(before.asked_ms, asked_ms)
                backoff_ms = max(before.ends_ms(policies), backoff_ms)
            shadow.left_alone[here] = ProviderWait(asked_ms, backoff_ms, tuple(policies))
            call = _known_answer(shadow, settlement.attempt)
            if call is not None and _is_unlisted(call):
                shadow.refused_by.add(call.provider)
            shadow.failures_here += any(_fails(policy, kind) for policy in policies)
            shadow.uncounted += _is_uncounted(shadow, settlement.attempt)

    def kind_of(self, call: ProviderCall, shadow: ShadowState | None) -> OutcomeKind:
        """Returns the class of a call's outcome.

        An unlisted error counts as the provider's fault while another provider can be tried. Settlements
        after a loss of commits are not checked, so which providers have refused is only in the row then.
        """
        if call.outcome is None:
            return OutcomeKind.AMBIGUOUS
        if shadow is None or not _is_unlisted(call) or shadow.pinned or shadow.mode is Mode.SYNCHRONOUS:
            return call.outcome.kind
        here = {one for one in self._routes[shadow.channel] if self._state.has_provider(call.process, one)}
        refused_by = shadow.refused_by
        if shadow.rolled_back:
            refused_by = {one for one, why in shadow.spent.items() if why == Spent.REFUSED}
        others = here - {call.provider} - refused_by
        return OutcomeKind.PROVIDER_FAULT if others else OutcomeKind.BAD_CONTENT

    def accepted(self, process: str, shadow: ShadowState, row: Row) -> None:
        """Checks the first provider and the due time of a new row."""
        if not row.pinned and row.resend_of is None:
            self._check_first(process, shadow, row)
        if row.attempts_before and row.send_at is None:
            self._check_taken_over(process, shadow, row)

    def _check_first(self, process: str, shadow: ShadowState, row: Row) -> None:
        """Checks the first provider: the first of the route, or one with a share if the route is split.

        Which one that is depends on the id, unless breakers may have been open. A process that empties the
        spool also accepts requests whose first provider another one has chosen.
        """
        if self._state.may_be_overridden(row.channel, row.id):
            return
        choosers = {process, *(_CHOOSERS if self._state.plan.spools else ())}
        if not any(self._may_start(one, row) for one in choosers):
            self._state.violate(
                "9", f"starts at {row.provider}, which is not the first provider and has no share", row.id
            )
        route = self._own_route(process, shadow)
        if self._state.plan.spools or any(self._stopped(process, one, shadow) for one in route):
            return
        if row.provider != route[0]:
            self._state.violate("9", f"starts at {row.provider}, but its id belongs to {route[0]}", row.id)

    def _may_start(self, process: str, row: Row) -> bool:
        route = [one for one in self._routes[row.channel] if self._state.has_provider(process, one)]
        weights = {c.id: c.weight for c in self._state.plan.providers if c.id in route}
        if len(route) > 1 and any(weights.values()):
            return bool(weights.get(row.provider))
        return row.provider == route[0]

    def _check_taken_over(self, process: str, shadow: ShadowState, row: Row) -> None:
        """Checks the due time of a notification that another system attempted before."""
        assert row.due_at is not None, "it waits"
        wait_ms = row.due_at - row.created_at
        bounds = [
            (0, 0)
            if row.attempts >= (policy.max_attempts if row.max_attempts is None else row.max_attempts)
            else delay_bounds_ms(policy, row.attempts, 0)
            for policy in self.in_force(process, shadow, 0)
        ]
        if not any(low <= wait_ms <= high for low, high in bounds):
            text = f"accepted after {row.attempts} attempts elsewhere, due in {wait_ms} ms, not {bounds[0]}"
            self._state.violate("8" if any(high for _, high in bounds) else "30", text, shadow.id)

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
        if _is_late(call, settlement.attempt):
            return
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
        exhausted = status is Status.FAILED and settlement.reason is Reason.RETRIES_EXHAUSTED
        free = status is Status.RETRYING and settlement.free_move
        if status is Status.SKIPPED:
            return self._skip_problem(shadow)
        if status is Status.RETRYING and self._must_skip(shadow):
            return ("7", f"a retry is scheduled, although {self._directory.skip_reason(shadow)}")
        uncounted = _is_uncounted(shadow, settlement.attempt)
        if shadow.counted >= allowed_attempts(policy, shadow) and not free and not uncounted:
            if status is Status.EXPIRED and self._may_move_at_once(process, policy, shadow, kind):
                return self._expiry_problem(policy, shadow, settlement.attempt, waits=False)
            if not exhausted:
                return ("6", f"attempt {shadow.counted} was the last, but it is {status}")
            return self._missed_move(process, policy, shadow, kind)
        if status is Status.EXPIRED:
            return self._expiry_problem(policy, shadow, settlement.attempt)
        if status is not Status.RETRYING:
            text = f"{kind} at attempt {shadow.counted} of {policy.max_attempts} made it {status}"
            return ("29" if uncounted else "6", text)
        return self._retry_problem(process, policy, shadow, settlement, row)

    def _skip_problem(self, shadow: ShadowState) -> Problem | None:
        """Checks that a failed push is not retried only because of its device or recipient."""
        call = shadow.calls.get(shadow.attempts)
        since_ms = shadow.leased_ms if call is None or shadow.reclaimed else call.over_ms
        if shadow.channel is not Channel.PUSH:
            return ("7", f"a failed attempt over {shadow.channel} was skipped, which has no device")
        if not self._directory.skip_reason(shadow) and self._directory.unchanged_since(
            shadow.tenant, since_ms
        ):
            return ("7", "a failed push was skipped, although its device was active")
        return None

    def _must_skip(self, shadow: ShadowState) -> bool:
        """Returns True if the process must have read, after the attempt, that the device is inactive.

        If the store may fail or be slow, the process may not have been able to read it.
        """
        call, faults = shadow.calls.get(shadow.attempts), self._state.plan.fault_plan
        if shadow.channel is not Channel.PUSH or call is None or shadow.reclaimed or not call.over:
            return False
        may_fail = faults.error_per_call or faults.statement_error_per_call or faults.away_every_ms
        may_be_late = faults.slow_per_call or faults.pause_every_ms or faults.jump_every_ms
        known = self._directory.unchanged_since(shadow.tenant, call.over_ms)
        return bool(known and not may_fail and not may_be_late and self._directory.skip_reason(shadow))

    def _may_move_at_once(
        self, process: str, policy: RetryPolicy, shadow: ShadowState, kind: OutcomeKind
    ) -> bool:
        """Returns True if the failure may lead to a move at once, which does not count as an attempt.

        Moves away from a fault or an open breaker are at once, even if the policy makes others wait.
        """
        broken = kind is OutcomeKind.PROVIDER_FAULT or self._stopped(process, shadow.provider, shadow)
        free = broken or policy.failover_wait is FailoverWait.NONE
        return free and _fails(policy, kind) and not shadow.pinned

    def _missed_move(
        self, process: str, policy: RetryPolicy, shadow: ShadowState, kind: OutcomeKind
    ) -> Problem | None:
        """Returns a problem if a move at once to another provider was possible and should have been made."""
        fault = kind is OutcomeKind.PROVIDER_FAULT
        must_spend = _fails(policy, kind) and (fault or shadow.failures_here + 1 >= policy.failover_after)
        if not must_spend or not (fault or policy.failover_wait is FailoverWait.NONE):
            return None
        free = self._surely_free(process, shadow)
        return ("9", f"ended after {kind}, although {free[0]} was not tried") if free else None

    def _own_route(self, process: str, shadow: ShadowState) -> list[str]:
        """Returns the providers in the order in which a round of this notification tries them."""
        route = [one for one in self._routes[shadow.channel] if self._state.has_provider(process, one)]
        weights = {c.id: c.weight or 0 for c in self._state.plan.providers if c.id in route}
        start = 0
        if any(weights.values()) and len(route) > 1:
            first = first_step(tuple(map(RouteStep, route)), weights, shadow.id)
            start = route.index(first.provider)
        return [*route[start:], *route[:start]]

    def _surely_free(self, process: str, shadow: ShadowState) -> list[str]:
        """Returns the other providers that are neither spent nor on hold, and whose breakers are closed."""
        if shadow.pinned or self._state.jumps:
            return []
        return [
            one
            for one in self._own_route(process, shadow)
            if one != shadow.provider
            and one not in shadow.spent
            and shadow.holds.get(one, 0) <= self._state.now - self._lag_ms() - _SLACK_MS
            and not self._stopped(process, one, shadow)
        ]

    def _check_unattempted(self, process: str, shadow: ShadowState, settlement: Settlement, row: Row) -> None:
        """Checks what a settlement without an attempt does to the round of failover (invariants 8 and 9)."""
        if settlement.spent is None:
            kept = (row.spent, row.moves, row.free_move)
            if kept != shadow.round_kept(row.status):
                self._state.violate("9", f"a postponement changed what is spent to {kept}", shadow.id)
            return
        problems: list[Problem] = []
        for policy in self.in_force(process, shadow, shadow.leased_ms):
            problem = self._round_problem(process, policy, shadow, settlement, row)
            if problem is None:
                return
            problems.append(problem)
        self._state.violate(*problems[0], shadow.id)

    def _round_problem(
        self, process: str, policy: RetryPolicy, shadow: ShadowState, settlement: Settlement, row: Row
    ) -> Problem | None:
        """Checks a new round that begins because no provider was left for a claimed notification."""
        here = shadow.provider
        kept = {one: kind for one, kind in shadow.spent.items() if kind == Spent.REFUSED}
        if kept == shadow.spent:
            return ("9", "a new round began, although no provider was spent")
        if row.spent != kept or row.moves != shadow.moves - shadow.free_move or row.free_move:
            return ("6", f"a new round began with {row.spent} spent and {row.moves} moves")
        held = shadow.holds.get(here, 0) > self._state.now - self._lag_ms() - _SLACK_MS
        usable = not held and not self._state.jumps and not self._stopped(process, here, shadow)
        if usable or self._surely_free(process, shadow):
            return ("9", f"a new round began, although {here} or another provider was available")
        counted = shadow.attempts - 1 - row.moves
        step = counted or shadow.attempts - 1  # if none of them counts
        shortest, longest = delay_bounds_ms(policy, step, shadow.last_delay_ms)
        return self._wait_problem(process, settlement, shadow, shadow.holds, (shortest, longest))

    def _wait_problem(
        self,
        process: str,
        settlement: Settlement,
        shadow: ShadowState,
        holds: dict[str, int],
        bounds: tuple[int, int],
    ) -> Problem | None:
        """Checks the first provider of a new round and the wait before it."""
        to, lag_ms = settlement.provider, self._lag_ms()
        route, (shortest, longest) = self._own_route(process, shadow), bounds
        left = {one: max(0, holds.get(one, 0) - self._state.now) for one in route}
        waits_for = left.get(to, 0)
        # The decision is a little older than the commit, so more of a hold was left, even if it is over now.
        left_ms = holds.get(to, 0) - self._state.now + lag_ms + _SLACK_MS if to in route else 0
        held_ms = left_ms + longest - shortest if left_ms > 0 else 0
        low, high = max(shortest, waits_for), max(longest, held_ms)
        if not low <= settlement.delay_ms <= high:
            return ("8", f"a new round at {to} is due in {settlement.delay_ms} ms, not within {low}–{high}")
        unsure = shadow.pinned or self._state.may_be_overridden(shadow.channel, shadow.id)
        for one in () if unsure else route:
            if one == to:
                break
            refused = one in (settlement.spent or ())
            if not refused and left[one] <= shortest - lag_ms - _SLACK_MS * bool(left[one]):
                return ("9", f"a new round begins at {to}, although {one} comes before it")
        return None

    def _expiry_problem(
        self, policy: RetryPolicy, shadow: ShadowState, record: AttemptRecord, *, waits: bool = True
    ) -> Problem | None:
        """Checks that a notification expired because its next attempt, which may be a move, was too late."""
        uncounts = _is_uncounted(shadow, record) and not shadow.free_move
        step = shadow.attempts if uncounts else shadow.counted
        _, longest = delay_bounds_ms(policy, step, shadow.last_delay_ms)
        longest += max((max(0, until - self._state.now) for until in shadow.holds.values()), default=0)
        asked = min(_retry_after(shadow, record), _DAY_MS)
        if not waits:
            longest = asked = 0
        left = None if shadow.expires_at is None else shadow.expires_at - self._state.now
        if left is None or left > longest + asked + _SLACK_MS + self._lag_ms():
            return ("7", f"expired with {left} ms left, although a retry was possible")
        return None

    def _retry_problem(
        self, process: str, policy: RetryPolicy, shadow: ShadowState, settlement: Settlement, row: Row
    ) -> Problem | None:
        assert settlement.attempt is not None, "checked by the caller"
        kind, here = settlement.attempt.outcome, settlement.attempt.provider
        shortest, longest = _backoff_ms(policy, shadow, settlement)
        asked = min(_retry_after(shadow, settlement.attempt), _DAY_MS)
        spent, to = settlement.spent, settlement.provider
        if spent is None:
            return ("9", "a retry does not say what is spent")
        held = asked == 0 or row.holds.get(here, 0) >= self._state.now + asked
        if not held and row.status is Status.RETRYING:
            return ("8", f"{here} asked for a wait of {asked} ms, but has no such hold")
        pressed = self._is_pressed(shadow, max(longest, asked + longest - shortest))
        fails, fault = _fails(policy, kind), kind is OutcomeKind.PROVIDER_FAULT
        broken = fault or (fails and self._stopped(process, here, shadow))
        must_spend = fails and (fault or shadow.failures_here + 1 >= policy.failover_after)
        may_spend = fails and (must_spend or broken or pressed)
        if to != here and (spent.get(here) == Spent.THIS_ROUND or settlement.free_move):
            if not may_spend:
                return self._early_move(policy, shadow, kind)
            free = broken or policy.failover_wait is FailoverWait.NONE
            bounds = (0 if pressed else shortest, longest)
            return self._move_problem(process, policy, shadow, settlement, free_allowed=free, bounds=bounds)
        uncounts = _uncounts(shadow, settlement)
        if settlement.moves != shadow.moves + uncounts or settlement.free_move:
            rule = "29" if _is_uncounted(shadow, settlement.attempt) else "6"
            return (rule, f"{settlement.moves} attempts do not count after {shadow.moves}, without a move")
        if not must_spend and to == here and dict(spent) == shadow.spent:
            low, high = max(shortest, asked), max(longest, asked + longest - shortest)
            in_time = low <= settlement.delay_ms <= high
            where = f"due again at {here} in {settlement.delay_ms} ms"
            return None if in_time else ("8", f"{where}, not within {low}–{high}")
        if not may_spend:
            return self._early_move(policy, shadow, kind)
        others = self._surely_free(process, shadow)
        if others and not pressed:
            return ("9", f"{kind} at {here}, but it was not moved to {others[0]}")
        kept = {one: why for one, why in shadow.spent.items() if why == Spent.REFUSED}
        if dict(spent) not in (kept, {**kept, here: Spent.REFUSED}):
            return ("9", f"a new round begins, but {dict(spent)} is still spent")
        holds = dict(shadow.holds)
        if asked:
            holds[here] = max(holds.get(here, 0), self._state.now + asked)
        return self._wait_problem(process, settlement, shadow, holds, (shortest, longest))

    def _is_pressed(self, shadow: ShadowState, longest_ms: int) -> bool:
        """Returns True if the notification may expire before a retry that waits this long."""
        if shadow.expires_at is None:
            return False
        now = self._state.now
        held_ms = max((until - now for until in shadow.holds.values()), default=0)
        return now + longest_ms + max(0, held_ms) + self._lag_ms() >= shadow.expires_at

    def _early_move(self, policy: RetryPolicy, shadow: ShadowState, kind: OutcomeKind) -> Problem:
        if kind in _UNCERTAIN:
            return ("9", f"failed over after {kind} under `{policy.on_timeout}`")
        return ("9", f"failed over after failure {shadow.failures_here + 1} of {policy.failover_after}")

    def _move_problem(
        self,
        process: str,
        policy: RetryPolicy,
        shadow: ShadowState,
        settlement: Settlement,
        *,
        free_allowed: bool,
        bounds: tuple[int, int],
    ) -> Problem | None:
        """Checks a move to another provider within a round: where to, what is spent, and when."""
        assert settlement.attempt is not None, "checked by the caller"
        assert settlement.spent is not None, "checked by the caller"
        to, here, spent = settlement.provider, settlement.attempt.provider, dict(settlement.spent)
        call = _known_answer(shadow, settlement.attempt)
        unlisted = call is not None and _is_unlisted(call)
        if shadow.pinned or len(self._routes[shadow.channel]) < 2:
            return ("9", "failed over, although it has only one provider")
        if to in shadow.spent:
            return ("9", f"moved to {to}, which is spent in this round")
        if spent != {**shadow.spent, here: Spent.REFUSED if unlisted else Spent.THIS_ROUND}:
            return ("9", f"moved with {spent} spent after {shadow.spent}")
        route = self._own_route(process, shadow)
        before = [one for one in self._surely_free(process, shadow) if route.index(one) < route.index(to)]
        if before and not self._state.may_be_overridden(shadow.channel, shadow.id):
            return ("9", f"moved to {to}, although {before[0]} comes before it")
        uncounts = _uncounts(shadow, settlement)
        if settlement.moves != shadow.moves + settlement.free_move + uncounts:
            text = f"{settlement.moves} attempts do not count after {shadow.moves} and a move"
            return ("29" if uncounts else "6", text)
        if uncounts and settlement.free_move:
            return ("29", f"neither the attempt at {here} nor the next one counts in this round")
        if settlement.free_move:
            if not free_allowed:
                return ("9", f"moved at once to {to} under `failover_wait = {policy.failover_wait}`")
            return ("8", f"a move at once waits {settlement.delay_ms} ms") if settlement.delay_ms else None
        if uncounts and free_allowed and settlement.delay_ms == 0:
            return None  # at once, and the next attempt counts instead of this one
        fault = settlement.attempt.outcome is OutcomeKind.PROVIDER_FAULT
        if fault or policy.failover_wait is FailoverWait.NONE:
            return ("8" if uncounts else "9", f"the move to {to} is not made at once")
        if not bounds[0] <= settlement.delay_ms <= bounds[1]:
            return ("8", f"the next provider is due in {settlement.delay_ms} ms, not {bounds[0]}–{bounds[1]}")
        return None

    def _note_spread(self, policy: RetryPolicy, shadow: ShadowState, settlement: Settlement) -> None:
        if settlement.status is not Status.RETRYING or policy.jitter is not Jitter.PROPORTIONAL:
            return
        if settlement.free_move or settlement.provider in shadow.holds:
            return
        assert settlement.attempt is not None, "checked by the caller"
        step = shadow.attempts if _uncounts(shadow, settlement) else shadow.counted
        shortest, longest = delay_bounds_ms(policy, step, shadow.last_delay_ms)
        capped = 0 < policy.cap_ms <= uncapped_delay_ms(policy, step)
        asked = _retry_after(shadow, settlement.attempt)
        if capped and longest - shortest >= 50 and not asked and settlement.delay_ms:
            self._spread.append((settlement.delay_ms - shortest, longest - shortest))

    def _lag_ms(self) -> int:
        """Returns how many milliseconds old a decision may be, plus how far a process's clock may be off."""
        fault_plan = self._state.plan.fault_plan
        slow = 4 * fault_plan.longest_slow_ms if fault_plan.slow_per_call else 0
        pause = fault_plan.longest_pause_ms if fault_plan.pause_every_ms else 0
        fails = fault_plan.away_every_ms or fault_plan.unwritable_every_ms or fault_plan.error_per_call
        away = 60_000 if fails else 0
        return slow + pause + away + (_DAY_MS if self._state.jumps else 0)

    def _book(self, entries: Sequence[Entry]) -> PolicyBook:
        seen = tuple((entry.key, entry.version, entry.updated_at) for entry in entries)
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


def _fails(policy: RetryPolicy, kind: OutcomeKind) -> bool:
    """Returns True if this outcome counts as a failure of its provider."""
    return kind not in _UNCERTAIN or policy.on_timeout is OnTimeout.FAILOVER


def _is_unlisted(call: ProviderCall) -> bool:
    said = call.outcome
    return said is not None and said.unlisted and said.kind is OutcomeKind.BAD_CONTENT


def _is_late(call: ProviderCall, record: AttemptRecord) -> bool:
    """Returns True if the attempt was recorded as ambiguous, because the answer came after the deadline.

    An answer that comes at the deadline may be known, as when a suspended process continues. Its error code
    is recorded then.
    """
    if record.outcome is not OutcomeKind.AMBIGUOUS or call.over_ms < call.due_ms:
        return False
    return call.outcome is None or call.outcome.error_code != record.error_code


def _known_answer(shadow: ShadowState, record: AttemptRecord) -> ProviderCall | None:
    """Returns the call of an attempt that was recorded like this, if its answer was not ignored.

    Returns None if the answer was lost with the process or came too late.
    """
    call = shadow.calls.get(shadow.attempts)
    if shadow.reclaimed or call is None or _is_late(call, record):
        return None
    return call


def _is_uncounted(shadow: ShadowState, record: AttemptRecord) -> bool:
    """Returns True if the provider answered that the attempt does not count toward the maximum."""
    call = _known_answer(shadow, record)
    return call is not None and call.outcome is not None and call.outcome.uncounted


def _uncounts(shadow: ShadowState, settlement: Settlement) -> bool:
    """Returns True if an attempt that would have counted does not, because its outcome is uncounted."""
    assert settlement.attempt is not None, "only attempts can be uncounted"
    return _is_uncounted(shadow, settlement.attempt) and not shadow.free_move


def _backoff_ms(policy: RetryPolicy, shadow: ShadowState, settlement: Settlement) -> tuple[int, int]:
    """Returns the bounds of the backoff after an attempt, which grows with uncounted attempts too."""
    assert settlement.attempt is not None, "there is a backoff only after an attempt"
    step = shadow.attempts if _uncounts(shadow, settlement) else shadow.counted
    return delay_bounds_ms(policy, step, shadow.last_delay_ms)


def _retry_after(shadow: ShadowState, record: AttemptRecord) -> int:
    """Returns the wait that the provider asked for in an answer that counts, or else 0."""
    call = _known_answer(shadow, record)
    return 0 if call is None or call.outcome is None else call.outcome.retry_after_ms or 0
