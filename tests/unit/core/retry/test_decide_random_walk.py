"""Random outcomes from acceptance to the end, with the real row and the real decision."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.rows import Row, claim_of, extend, lease, settle
from homing.core.lifecycle.states import FINAL, WAITING
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.retry.backoff import bounds_ms
from homing.core.retry.decide import (
    LONGEST_RETRY_AFTER_MS,
    NO_OBJECTION,
    check_before_attempt,
    decide,
    postpone,
    wait_for_next_round,
)
from homing.core.retry.policy import FailoverWait, Jitter, OnTimeout, RetryPolicy
from homing.core.routing.failover import Route, choose_provider
from support.core_builders import (
    DAY,
    HOUR,
    MESSAGE,
    MINUTE,
    NOW,
    ONE,
    SECOND,
    STEADY,
    THREE,
    TWO,
    accept,
    make_new,
)

UNSURE = (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST)
FAILURES = [OutcomeKind.TRANSIENT, OutcomeKind.THROTTLED, OutcomeKind.PROVIDER_FAULT, *UNSURE]
LEASE_MS = 40 * SECOND


class Turn(NamedTuple):
    """The circumstances of one attempt."""

    kind: OutcomeKind
    retry_after_ms: int | None = None
    u: float = 0.0
    took_ms: int = 200
    shut: frozenset[str] = frozenset()
    """Providers whose breaker is open at the claim."""
    opens: frozenset[str] = frozenset()
    """Providers whose breaker is open when the attempt ends."""


class Step(NamedTuple):
    """An attempt that was made."""

    claim: Claim
    outcome: Outcome
    began_at: int
    ended_at: int


class Life(NamedTuple):
    row: Row
    steps: list[Step]


def live(
    policy: RetryPolicy, route: Route, turns: list[Turn], *, pinned: bool, expires_at: int | None
) -> Life:
    """Runs a notification until it ends. After the last turn, every attempt fails as transient."""
    row = accept(make_new(pinned=pinned, expires_at=expires_at)).row
    life, now, left = Life(row, []), NOW, list(reversed(turns))
    for _ in range(1_000):
        if row.status not in WAITING:
            return life
        assert row.due_at is not None
        now = max(now, row.due_at)
        turn = left[-1] if left else Turn(OutcomeKind.TRANSIENT)
        step = one_turn(row, turn, policy, route, now)
        if step is not None:
            life.steps.append(step)
            now = step.ended_at
        if left and (step is not None or turn.shut):
            left.pop()
    raise AssertionError("it did not end")


def one_turn(row: Row, turn: Turn, policy: RetryPolicy, route: Route, now: int) -> Step | None:
    """Runs claim, guard, choice, attempt and settlement. Returns None if no attempt was made."""
    lease(row, "worker-1", LEASE_MS, now)
    claim = claim_of(row, MESSAGE, now)
    choice = choose_provider(
        route,
        claim.provider,
        pinned=claim.pinned,
        usable=lambda provider: provider not in turn.shut,
        holds=claim.holds,
        spent=claim.spent,
        now=now,
    )
    settled = check_before_attempt(claim, policy, NO_OBJECTION, now=now)
    if settled is None and choice.round_ended:
        settled = wait_for_next_round(claim, policy, route, now=now, u=turn.u)
    elif settled is None and choice.step is None:
        settled = postpone(claim, policy, choice.wait_ms or 30 * SECOND, Reason.NO_PROVIDER)
    if settled is not None or choice.step is None:
        assert settled is not None
        assert settle(row, settled, now) is not None
        return None
    chosen = choice.step.provider
    assert extend(row, Lease(row.id, claim.token, chosen, chosen), LEASE_MS, now)
    claim = claim_of(row, MESSAGE, now)
    outcome, took_ms = Outcome(turn.kind, retry_after_ms=turn.retry_after_ms), turn.took_ms
    settled = decide(
        claim, outcome, policy, route, elapsed_ms=took_ms, latency_ms=took_ms, u=turn.u, stopped=turn.opens
    )
    assert settle(row, settled, now + took_ms) is not None
    return Step(claim, outcome, now, now + took_ms)


turns = st.builds(
    Turn,
    kind=st.sampled_from(FAILURES),
    retry_after_ms=st.one_of(st.none(), st.integers(1, 3 * DAY)),
    u=st.floats(0, 1, exclude_max=True),
    took_ms=st.integers(0, 30 * SECOND),
)
shut_turns = st.builds(
    lambda turn, shut, opens: turn._replace(shut=frozenset(shut), opens=frozenset(opens)),
    turns,
    *[st.sets(st.sampled_from([step.provider for step in THREE]))] * 2,
)
patience = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 9),
    base_ms=st.integers(SECOND, 10 * MINUTE),
    factor=st.floats(1, 4),
    jitter=st.sampled_from(list(Jitter)),
    jitter_ms=st.integers(0, MINUTE),
    failover_after=st.integers(1, 4),
    failover_wait=st.sampled_from(list(FailoverWait)),
    on_timeout=st.sampled_from(list(OnTimeout)),
    max_age_ms=st.integers(HOUR, 9 * DAY),
)
routes = st.sampled_from([ONE, TWO, THREE])
expiries = st.one_of(st.none(), st.integers(NOW + 1, NOW + 2 * DAY))


@given(patience, routes, st.lists(shut_turns, max_size=20), st.booleans(), expiries)
def test_it_ends_within_the_maximum_number_of_attempts(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int | None
) -> None:
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    assert life.row.status in FINAL | {Status.IN_DOUBT}
    row = life.row
    made = row.moves - row.free_move  # a free move that was not made is still counted
    assert len(life.steps) == row.attempts
    assert row.attempts - made <= policy.max_attempts
    assert row.attempts <= policy.max_attempts * len(route)
    assert [step.claim.attempt for step in life.steps] == list(range(1, len(life.steps) + 1))


@given(patience, routes, st.lists(turns, max_size=20), st.booleans(), expiries)
def test_it_changes_the_provider_only_after_a_definite_failure_or_by_policy(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int | None
) -> None:
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    for step, following in itertools.pairwise(life.steps):
        if following.claim.provider == step.claim.provider:
            continue
        assert not pinned
        on_hold = step.claim.holds or (step.outcome.retry_after_ms or 0) > 0
        sure = step.outcome.kind not in UNSURE
        assert sure or policy.on_timeout is OnTimeout.FAILOVER or on_hold


@given(patience, routes, st.lists(turns, max_size=20), st.booleans(), expiries)
def test_attempts_at_the_same_provider_are_at_least_the_minimum_backoff_apart(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int | None
) -> None:
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    assert too_early(life, policy) == []


@given(patience, routes, st.lists(shut_turns, max_size=20), st.booleans(), expiries)
@example(STEADY, TWO, [Turn(OutcomeKind.PROVIDER_FAULT, shut=frozenset({"sns"}))] * 4, False, None)
def test_an_open_breaker_elsewhere_does_not_shorten_the_minimum_backoff(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int | None
) -> None:
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    assert too_early(life, policy) == []


def too_early(life: Life, policy: RetryPolicy) -> list[int]:
    """Returns the numbers of the attempts that began before the minimum backoff at their provider."""
    found = []
    for step, following in itertools.pairwise(life.steps):
        if following.claim.provider == step.claim.provider:
            counted = step.claim.attempt - step.claim.moves
            floor_ms, _ = bounds_ms(policy, counted, step.claim.last_delay_ms)
            if following.began_at - step.ended_at < floor_ms:
                found.append(following.claim.attempt)
    return found


@given(patience, routes, st.lists(shut_turns, max_size=20), st.booleans(), expiries)
def test_no_provider_is_tried_before_the_time_of_its_retry_after(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int | None
) -> None:
    quiet_until: dict[str, int] = {}
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    for step in life.steps:
        assert step.began_at >= quiet_until.get(step.claim.provider, 0)
        asked_ms = min(step.outcome.retry_after_ms or 0, LONGEST_RETRY_AFTER_MS)
        quiet_until[step.claim.provider] = step.ended_at + asked_ms


@given(patience, routes, st.lists(turns, max_size=20), st.booleans(), st.integers(NOW + 1, NOW + DAY))
def test_no_attempt_starts_after_the_expiry(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int
) -> None:
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    assert all(step.began_at < expires_at for step in life.steps)


@given(patience, routes, st.lists(shut_turns, max_size=20), st.booleans(), expiries)
def test_a_move_goes_to_another_provider_and_no_provider_is_tried_too_often_without_a_wait(
    policy: RetryPolicy, route: Route, turns: list[Turn], pinned: bool, expires_at: int | None
) -> None:
    life = live(policy, route, turns, pinned=pinned, expires_at=expires_at)
    in_a_row: list[str] = []
    for step, following in itertools.pairwise(life.steps):
        in_a_row.append(step.claim.provider)
        if following.claim.free_move:
            assert following.claim.provider not in in_a_row, "each provider once before the next wait"
        else:
            in_a_row = []


@given(patience, st.lists(turns, max_size=20))
def test_a_successful_attempt_ends_it_as_sent(policy: RetryPolicy, turns: list[Turn]) -> None:
    wanted = replace(policy, on_timeout=OnTimeout.RETRY, max_attempts=30, max_age_ms=999 * DAY)
    life = live(wanted, TWO, [*turns, Turn(OutcomeKind.ACCEPTED)], pinned=False, expires_at=None)
    assert life.row.status is Status.SENT
    assert life.steps[-1].outcome.kind is OutcomeKind.ACCEPTED
