"""Failures that say nothing about the message do not use up the attempts of a notification."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.rows import claim_of, lease, settle
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.retry.backoff import base_delay_ms
from homing.core.retry.decide import NO_OBJECTION, check_before_attempt, decide, wait_for_next_round
from homing.core.retry.policy import OnTimeout, RetryPolicy
from homing.core.routing.failover import Route, Spent
from support.core_builders import (
    DAY,
    MESSAGE,
    NOW,
    ONE,
    SECOND,
    STEADY,
    TWO,
    accept,
    make_claim,
    make_new,
    make_outcome,
)

K = OutcomeKind
RETRIED = [K.TRANSIENT, K.THROTTLED, K.PROVIDER_FAULT, K.AMBIGUOUS]


def decide_uncounted(
    claim: Claim, kind: OutcomeKind = K.TRANSIENT, *, policy: RetryPolicy = STEADY, route: Route = ONE
) -> Settlement:
    outcome = make_outcome(kind, uncounted=True)
    return decide(claim, outcome, policy, route, elapsed_ms=SECOND, latency_ms=900, u=0.0)


@pytest.mark.parametrize("kind", RETRIED)
def test_an_uncounted_failure_of_the_last_attempt_is_retried(kind: OutcomeKind) -> None:
    policy = replace(STEADY, max_attempts=1)
    settled = decide_uncounted(make_claim(attempt=1), kind, policy=policy)
    assert (settled.status, settled.moves, settled.free_move) == (Status.RETRYING, 1, False)
    counted = decide(
        make_claim(attempt=1), make_outcome(kind), policy, ONE, elapsed_ms=SECOND, latency_ms=900, u=0.0
    )
    assert (counted.status, counted.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)


def test_its_backoff_grows_with_all_attempts() -> None:
    delays = [decide_uncounted(make_claim(attempt=n, moves=n - 1)).delay_ms for n in range(1, 6)]
    assert delays == [base_delay_ms(STEADY, n) for n in range(1, 6)]


def test_it_is_recorded_like_every_attempt() -> None:
    settled = decide_uncounted(make_claim(attempt=3))
    assert settled.attempt is not None
    assert (settled.attempt.number, settled.attempt.outcome) == (3, K.TRANSIENT)
    assert not settled.give_back


def test_a_move_at_once_after_it_counts_in_its_place() -> None:
    first = decide_uncounted(make_claim(attempt=1), K.PROVIDER_FAULT, route=TWO)
    assert (first.provider, first.delay_ms, first.moves, first.free_move) == ("sns", 0, 1, False)
    second = make_claim(
        attempt=2, moves=first.moves, free_move=first.free_move, provider="sns", spent=first.spent or {}
    )
    outcome = make_outcome(K.PROVIDER_FAULT)
    settled = decide(second, outcome, STEADY, TWO, elapsed_ms=SECOND, latency_ms=900, u=0.0)
    assert settled.delay_ms == base_delay_ms(STEADY, 1)


def test_a_free_move_that_fails_uncounted_is_not_free_twice() -> None:
    claim = make_claim(attempt=2, moves=1, free_move=True, provider="sns", spent={"twilio": Spent.THIS_ROUND})
    settled = decide_uncounted(claim, route=TWO)
    assert (settled.status, settled.moves) == (Status.RETRYING, 1)


@pytest.mark.parametrize("kind", [K.BAD_CONTENT, K.BAD_RECIPIENT, K.DEAD_ADDRESS, K.OPTED_OUT])
def test_a_failure_of_the_message_is_final_even_if_it_is_marked_as_uncounted(kind: OutcomeKind) -> None:
    assert decide_uncounted(make_claim(), kind).status is Status.FAILED


def test_an_uncounted_ambiguous_attempt_is_in_doubt_under_hold() -> None:
    policy = replace(STEADY, on_timeout=OnTimeout.HOLD)
    assert decide_uncounted(make_claim(), K.AMBIGUOUS, policy=policy).status is Status.IN_DOUBT


def test_a_round_that_ends_before_any_attempt_counts_waits_for_a_backoff() -> None:
    claim = make_claim(attempt=2, moves=1, provider="sns", spent={"twilio": Spent.THIS_ROUND})
    settled = wait_for_next_round(claim, STEADY, TWO, now=NOW, u=0.0)
    assert settled.delay_ms == base_delay_ms(STEADY, 1) > 0


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_a_notification_makes_its_maximum_of_counted_attempts_and_any_number_of_others(
    away: list[bool], most: int
) -> None:
    policy = replace(STEADY, max_attempts=most, base_ms=SECOND, cap_ms=SECOND, max_age_ms=DAY)
    row, now, made = accept(make_new()).row, NOW, 0
    failures = itertools.chain(away, itertools.repeat(False))
    while row.status in (Status.PENDING, Status.RETRYING):
        assert row.due_at is not None
        now = max(now, row.due_at)
        lease(row, "worker-1", 40 * SECOND, now)
        claim = claim_of(row, MESSAGE, now)
        assert check_before_attempt(claim, policy, NO_OBJECTION, now=now) is None
        uncounted = next(failures)
        made += not uncounted
        outcome = make_outcome(K.TRANSIENT, uncounted=uncounted)
        settled = decide(claim, outcome, policy, ONE, elapsed_ms=1, latency_ms=1, u=0.0)
        assert settle(row, settled, now) is not None
    assert (row.status, row.reason, made) == (Status.FAILED, Reason.RETRIES_EXHAUSTED, most)
    assert row.attempts - row.moves == most


def test_only_the_maximum_age_ends_failures_that_do_not_count() -> None:
    policy = replace(STEADY, max_attempts=1, max_age_ms=60 * SECOND)
    row, now = accept(make_new(max_age_ms=60 * SECOND)).row, NOW
    while now < NOW + 60 * SECOND:
        lease(row, "worker-1", 40 * SECOND, now)
        claim = claim_of(row, MESSAGE, now)
        settled = decide_uncounted(claim, policy=policy)
        assert settle(row, settled, now) is not None
        assert row.due_at is not None
        now = row.due_at
    lease(row, "worker-1", 40 * SECOND, now)
    ended = check_before_attempt(claim_of(row, MESSAGE, now), policy, NO_OBJECTION, now=now)
    assert ended is not None
    assert (ended.status, ended.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)
