"""Decisions after an attempt, case by case: endings, effects, failover, Retry-After and expiry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.effects import suppression_key
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.rows import claim_of, claims_of, lease
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.retry.decide import (
    LONGEST_RETRY_AFTER_MS,
    attribute_outcome,
    decide,
    wait_for_next_round,
)
from homing.core.retry.policy import FailoverWait, Jitter, OnTimeout, RetryPolicy
from homing.core.routing.failover import Route, RouteStep, Spent
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
    make_claim,
    make_outcome,
    make_row,
)

K = OutcomeKind

PATIENT = replace(STEADY, failover_after=2)
WAITING = replace(STEADY, failover_after=2, failover_wait=FailoverWait.BACKOFF)
ROUND, REFUSED = Spent.THIS_ROUND, Spent.REFUSED


def settle(
    kind: OutcomeKind,
    claim: Claim | None = None,
    policy: RetryPolicy = STEADY,
    route: Route = TWO,
    u: float = 0.0,
    elapsed_ms: int = SECOND,
    **outcome: Any,
) -> Settlement:
    claim = claim or make_claim()
    return decide(
        claim, make_outcome(kind, **outcome), policy, route, elapsed_ms=elapsed_ms, latency_ms=900, u=u
    )


def test_the_attempt_is_recorded_with_all_its_data() -> None:
    claim = make_claim(attempt=3, provider="sns", outlet="sns")
    settled = settle(K.TRANSIENT, claim, error_code="503", error="try later", provider_message_id="m-1")
    assert settled.attempt == AttemptRecord(
        number=3,
        provider="sns",
        outcome=K.TRANSIENT,
        started_at=NOW,
        latency_ms=900,
        worker="worker-1",
        error_code="503",
        error="try later",
        provider_message_id="m-1",
    )


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_every_outcome_records_its_attempt(kind: OutcomeKind) -> None:
    record = settle(kind).attempt
    assert record is not None
    assert (record.outcome, record.number) == (kind, 1)


def test_an_accepted_attempt_is_sent_and_a_confirmed_one_is_delivered() -> None:
    assert settle(K.ACCEPTED).status is Status.SENT
    assert settle(K.ACCEPTED, delivered=True).status is Status.DELIVERED


def test_every_settlement_carries_the_policy_s_age_limit() -> None:
    policy = replace(STEADY, max_age_ms=HOUR)
    assert {settle(kind, policy=policy).max_age_ms for kind in K} == {HOUR}


# Effects of an ending -------------------------------------------------------------------------------


def test_a_dead_push_token_deactivates_its_device() -> None:
    claim = make_claim(channel=Channel.PUSH, provider="fcm", address="token-1")
    (put,) = settle(K.DEAD_ADDRESS, claim).puts
    assert (put.tenant, put.kind, put.key) == ("acme", "device", "token-1")
    assert (put.value["token"], put.value["active"]) == ("token-1", False)


@pytest.mark.parametrize(
    ("kind", "channel"),
    [(K.DEAD_ADDRESS, Channel.EMAIL), (K.OPTED_OUT, Channel.SMS), (K.OPTED_OUT, Channel.PUSH)],
)
def test_a_dead_address_or_an_opt_out_suppresses_every_category(kind: OutcomeKind, channel: Channel) -> None:
    (put,) = settle(kind, make_claim(channel=channel, address="a-1")).puts
    assert (put.tenant, put.kind) == ("acme", "suppression")
    assert put.key == suppression_key(channel, "a-1", "*") == f"{channel.value}:a-1:*"
    assert put.value == {"channel": channel.value, "address": "a-1", "category": "*", "why": kind.value}


@pytest.mark.parametrize("kind", sorted(set(K) - {K.DEAD_ADDRESS, K.OPTED_OUT}))
def test_no_other_outcome_changes_the_recipient(kind: OutcomeKind) -> None:
    assert settle(kind).puts == ()


# Synchronous -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(set(K) - {K.ACCEPTED}))
@pytest.mark.parametrize("on_timeout", list(OnTimeout))
def test_a_failed_synchronous_send_is_final(kind: OutcomeKind, on_timeout: OnTimeout) -> None:
    claim = make_claim(mode=Mode.SYNCHRONOUS)
    settled = settle(kind, claim, replace(STEADY, on_timeout=on_timeout), retry_after_ms=5)
    assert (settled.status, settled.delay_ms) == (Status.FAILED, 0)


def test_a_synchronous_send_that_timed_out_before_it_was_written_is_final_too() -> None:
    claim = make_claim(mode=Mode.SYNCHRONOUS)
    assert settle(K.TRANSIENT, claim, error_code="timeout").reason is Reason.DELIVERY_TIMEOUT
    assert settle(K.TRANSIENT, claim, error_code="503").reason is Reason.DELIVERY_FAILED


# The number of attempts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "floor", "status"),
    [
        (4, 0, Status.RETRYING),
        (5, 0, Status.FAILED),
        (6, 0, Status.FAILED),
        (5, 6, Status.RETRYING),
        (6, 6, Status.FAILED),
        (4, 2, Status.RETRYING),
    ],
)
def test_the_last_attempt_is_the_policy_s_maximum_or_the_granted_one(
    attempt: int, floor: int, status: Status
) -> None:
    claim = make_claim(attempt=attempt, attempt_floor=floor)
    assert settle(K.TRANSIENT, claim, route=ONE).status is status


def test_the_maximum_is_that_of_the_current_policy_not_of_the_one_at_acceptance() -> None:
    claim = make_claim(attempt=3)
    policy = replace(STEADY, max_attempts=3)
    assert settle(K.TRANSIENT, claim, policy, ONE).reason is Reason.RETRIES_EXHAUSTED


def test_a_move_at_once_is_made_even_after_the_last_attempt_that_counts() -> None:
    once = replace(STEADY, max_attempts=1)
    moved = settle(K.TRANSIENT, policy=once)
    assert (moved.status, moved.provider, moved.moves) == (Status.RETRYING, "sns", 1)
    assert settle(K.TRANSIENT, after(make_claim(), moved), once).reason is Reason.RETRIES_EXHAUSTED


# Failover --------------------------------------------------------------------------------------------


def after(claim: Claim, settled: Settlement) -> Claim:
    """Returns the claim of the next attempt, as the row would give it."""
    holds = {**claim.holds}
    if settled.hold_ms:
        holds[claim.provider] = claim.started_at + SECOND + settled.hold_ms
    return replace(
        claim,
        attempt=claim.attempt + 1,
        provider=settled.provider,
        outlet=settled.outlet,
        failures_here=settled.failures_here,
        spent=claim.spent if settled.spent is None else settled.spent,
        moves=claim.moves if settled.spent is None else settled.moves,
        free_move=settled.free_move,
        last_delay_ms=settled.last_delay_ms,
        started_at=claim.started_at + SECOND + settled.delay_ms,
        holds=holds,
    )


def fail(
    times: int, policy: RetryPolicy, route: Route = TWO, kind: OutcomeKind = K.TRANSIENT
) -> list[tuple[str, int]]:
    """Returns (provider, wait after its failure in seconds) of this many attempts that all fail."""
    made, claim = [], make_claim()
    for _ in range(times):
        settled = settle(kind, claim, policy, route)
        assert settled.status is Status.RETRYING
        made.append((claim.provider, settled.delay_ms // SECOND))
        claim = after(claim, settled)
    return made


def test_failover_moves_at_once_and_each_round_waits_for_the_backoff() -> None:
    assert fail(6, STEADY) == [
        ("twilio", 0),
        ("sns", 10),
        ("twilio", 0),
        ("sns", 20),
        ("twilio", 0),
        ("sns", 40),
    ]
    assert fail(4, STEADY, THREE) == [("twilio", 0), ("sns", 0), ("spare", 10), ("twilio", 0)]


def test_with_one_provider_failover_is_plain_backoff() -> None:
    assert fail(4, STEADY, ONE) == [("twilio", 10), ("twilio", 20), ("twilio", 40), ("twilio", 80)]
    settled = settle(K.TRANSIENT, route=ONE)
    assert (settled.spent, settled.moves, settled.free_move, settled.failures_here) == ({}, 0, False, 0)


def test_with_more_failures_per_provider_the_backoff_comes_between_them() -> None:
    more = replace(PATIENT, max_attempts=9)
    assert fail(6, more) == [
        ("twilio", 10),
        ("twilio", 0),
        ("sns", 20),
        ("sns", 40),
        ("twilio", 80),
        ("twilio", 0),
    ]


def test_with_failover_wait_the_backoff_comes_before_each_move() -> None:
    assert fail(4, WAITING) == [("twilio", 10), ("twilio", 20), ("sns", 40), ("sns", 80)]
    second = settle(K.TRANSIENT, make_claim(attempt=2, failures_here=1), WAITING)
    assert (second.provider, second.spent, second.moves, second.free_move) == (
        "sns",
        {"twilio": ROUND},
        0,
        False,
    )


@pytest.mark.parametrize("stopped", [frozenset[str](), frozenset({"twilio"})])
def test_with_failover_wait_a_fault_or_an_open_breaker_still_moves_at_once(stopped: frozenset[str]) -> None:
    kind = K.TRANSIENT if stopped else K.PROVIDER_FAULT
    settled = decide(
        make_claim(), make_outcome(kind), WAITING, TWO, elapsed_ms=1, latency_ms=1, u=0.0, stopped=stopped
    )
    assert (settled.provider, settled.delay_ms, settled.moves, settled.free_move) == ("sns", 0, 1, True)
    assert settled.spent == {"twilio": ROUND}


def test_a_move_skips_providers_that_are_spent_or_stopped_or_on_hold() -> None:
    def provider_after(claim: Claim, *stopped: str) -> str:
        outcome = make_outcome(K.TRANSIENT)
        return decide(
            claim, outcome, STEADY, THREE, elapsed_ms=1, latency_ms=1, u=0.0, stopped=stopped
        ).provider

    assert provider_after(make_claim()) == "sns"
    assert provider_after(make_claim(spent={"sns": ROUND})) == "spare"
    assert provider_after(make_claim(spent={"sns": REFUSED})) == "spare"
    assert provider_after(make_claim(holds={"sns": NOW + HOUR})) == "spare"
    assert provider_after(make_claim(), "sns") == "spare"
    assert provider_after(make_claim(), "sns", "spare") == "twilio"
    third = make_claim(provider="spare", outlet="spare")
    assert provider_after(third) == "twilio", "the route's own order, from its start"


def test_a_round_that_has_no_provider_left_clears_what_is_spent_but_not_what_is_refused() -> None:
    claim = make_claim(
        provider="spare", outlet="spare", spent={"twilio": REFUSED, "sns": ROUND}, attempt=3, moves=2
    )
    settled = settle(K.TRANSIENT, claim, route=THREE)
    assert (settled.provider, settled.delay_ms, settled.spent) == ("sns", 10 * SECOND, {"twilio": REFUSED})
    assert (settled.moves, settled.free_move, settled.failures_here) == (2, False, 0)


def test_a_new_round_begins_with_the_provider_whose_hold_ends_first() -> None:
    held = {"twilio": NOW + HOUR, "sns": NOW + 2 * MINUTE}
    claim = make_claim(provider="spare", outlet="spare", spent={"twilio": ROUND, "sns": ROUND}, holds=held)
    settled = settle(K.THROTTLED, claim, route=THREE, retry_after_ms=DAY)
    assert (settled.provider, settled.delay_ms) == ("sns", 2 * MINUTE - SECOND)
    assert settled.hold_ms == DAY


def test_a_new_round_waits_for_holds_only_if_they_outlast_the_backoff() -> None:
    claim = make_claim(
        provider="sns", outlet="sns", spent={"twilio": ROUND}, holds={"twilio": NOW + 2 * SECOND}
    )
    settled = settle(K.TRANSIENT, claim)
    assert (settled.provider, settled.delay_ms) == ("twilio", 10 * SECOND)


def test_a_pinned_notification_stays_at_its_provider() -> None:
    settled = settle(K.PROVIDER_FAULT, make_claim(pinned=True, failures_here=7))
    assert (settled.provider, settled.delay_ms, settled.failures_here) == ("twilio", 10 * SECOND, 0)
    assert (settled.spent, settled.moves) == ({}, 0)


def test_a_provider_that_was_removed_from_the_route_is_replaced_by_the_first_one() -> None:
    claim = make_claim(provider="gone", outlet="gone", failures_here=1)
    assert settle(K.TRANSIENT, claim, PATIENT).provider == "twilio"
    assert settle(K.TRANSIENT, replace(claim, failures_here=0), PATIENT).provider == "gone"


def test_without_a_route_the_same_provider_is_retried() -> None:
    settled = settle(K.TRANSIENT, make_claim(failures_here=9), route=())
    assert (settled.status, settled.provider) == (Status.RETRYING, "twilio")


def test_the_outlet_follows_the_provider_and_the_address() -> None:
    route = (RouteStep("relay"), RouteStep("hook", per_host=True))
    claim = make_claim(
        provider="relay", outlet="relay", address="https://Shop.example:8443/in", failures_here=1
    )
    settled = settle(K.TRANSIENT, claim, route=route)
    assert (settled.provider, settled.outlet) == ("hook", "hook@acme/https://shop.example:8443")
    stayed = settle(K.TRANSIENT, replace(claim, provider="hook", outlet="hook@kept"), route=(route[1],))
    assert stayed.outlet == "hook@kept"


def test_a_provider_fault_fails_over_at_once() -> None:
    settled = settle(K.PROVIDER_FAULT, policy=PATIENT)
    assert (settled.provider, settled.delay_ms) == ("sns", 0)


@pytest.mark.parametrize("route", [ONE, TWO, THREE])
def test_faults_of_all_providers_do_not_cause_a_loop_without_waits(route: Route) -> None:
    waits = [wait for _, wait in fail(11, replace(STEADY, max_attempts=12), route, K.PROVIDER_FAULT)]
    for at in range(len(waits) - len(route) + 1):
        assert any(waits[at : at + len(route)]), f"one whole round without waiting: {waits}"
    assert waits.count(0) == sum(1 for n in range(1, 12) if n % len(route))


# A round that ends before its attempt ----------------------------------------------------------------


def test_a_claim_without_a_provider_left_waits_for_the_backoff_and_gives_its_move_back() -> None:
    claim = after(make_claim(), settle(K.TRANSIENT))
    assert (claim.provider, claim.attempt, claim.moves, claim.free_move) == ("sns", 2, 1, True)
    settled = wait_for_next_round(claim, STEADY, TWO, now=claim.started_at, u=0.0)
    assert (settled.status, settled.reason) == (Status.RETRYING, Reason.NO_PROVIDER)
    assert (settled.provider, settled.delay_ms, settled.give_back) == ("twilio", 10 * SECOND, True)
    assert (settled.spent, settled.moves, settled.free_move, settled.failures_here) == ({}, 0, False, 0)


def test_a_claim_that_is_no_move_at_once_has_nothing_to_give_back() -> None:
    claim = make_claim(provider="sns", outlet="sns", attempt=3, moves=1, spent={"twilio": ROUND})
    settled = wait_for_next_round(claim, PATIENT, TWO, now=NOW, u=0.0)
    assert (settled.moves, settled.delay_ms) == (1, 10 * SECOND)


def test_a_round_that_would_exceed_the_maximum_does_not_begin() -> None:
    once = replace(STEADY, max_attempts=1)
    claim = after(make_claim(), settle(K.TRANSIENT, policy=once))
    settled = wait_for_next_round(claim, once, TWO, now=NOW, u=0.0)
    assert (settled.status, settled.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert settled.give_back


# Ambiguous and lost attempts -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [K.AMBIGUOUS, K.LOST])
def test_an_ambiguous_attempt_stays_at_its_provider_unless_the_policy_says_otherwise(
    kind: OutcomeKind,
) -> None:
    claim = make_claim(attempt=4, failures_here=3)
    stays = settle(kind, claim)
    assert (stays.provider, stays.failures_here, stays.spent) == ("twilio", 3, {}), "it never counts"
    moved = settle(kind, claim, replace(STEADY, on_timeout=OnTimeout.FAILOVER))
    assert (moved.provider, moved.delay_ms) == ("sns", 0)
    held = settle(kind, claim, replace(STEADY, on_timeout=OnTimeout.HOLD))
    assert (held.status, held.reason) == (Status.IN_DOUBT, Reason.UNCONFIRMED)


@pytest.mark.parametrize("kind", [K.AMBIGUOUS, K.LOST])
@pytest.mark.parametrize("provider", ["twilio", "sns"])
def test_an_ambiguous_attempt_stays_at_its_provider_even_if_the_breaker_has_opened(
    kind: OutcomeKind, provider: str
) -> None:
    claim = make_claim(provider=provider, outlet=provider, failures_here=1)
    settled = decide(
        claim, make_outcome(kind), STEADY, TWO, elapsed_ms=0, latency_ms=0, u=0.0, stopped={provider}
    )
    assert (settled.provider, settled.failures_here, settled.spent) == (provider, 1, {})
    assert settled.delay_ms == 10 * SECOND


@pytest.mark.parametrize("kind", [K.AMBIGUOUS, K.LOST])
def test_an_ambiguous_attempt_that_cannot_be_repeated_before_the_expiry_does_not_move(
    kind: OutcomeKind,
) -> None:
    settled = settle(kind, make_claim(expires_at=NOW + 5 * SECOND))
    assert (settled.status, settled.reason) == (Status.EXPIRED, Reason.EXPIRED)


def test_an_ambiguous_last_attempt_is_held_too() -> None:
    hold = replace(STEADY, on_timeout=OnTimeout.HOLD)
    assert settle(K.AMBIGUOUS, make_claim(attempt=5), hold).status is Status.IN_DOUBT


@pytest.mark.parametrize("kind", [K.AMBIGUOUS, K.LOST])
def test_an_ambiguous_attempt_counts_as_one_failure_only_under_failover(kind: OutcomeKind) -> None:
    first = settle(kind, policy=PATIENT)
    assert (first.provider, first.failures_here, first.delay_ms) == ("twilio", 0, 10 * SECOND)
    failover = replace(PATIENT, on_timeout=OnTimeout.FAILOVER)
    first = settle(kind, policy=failover)
    assert (first.provider, first.failures_here, first.delay_ms) == ("twilio", 1, 10 * SECOND)
    second = settle(kind, after(make_claim(), first), failover)
    assert (second.provider, second.delay_ms, second.moves) == ("sns", 0, 1)


def test_an_ambiguous_attempt_leaves_what_is_spent_alone() -> None:
    claim = make_claim(
        provider="sns", outlet="sns", attempt=2, moves=1, free_move=True, spent={"twilio": ROUND}
    )
    settled = settle(K.AMBIGUOUS, claim)
    assert (settled.provider, settled.delay_ms) == ("sns", 10 * SECOND)
    assert (settled.spent, settled.moves, settled.free_move) == ({"twilio": ROUND}, 1, False)


# Retry-After -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry_after_ms", "delay_ms"),
    [
        (None, 10 * SECOND),
        (0, 10 * SECOND),
        (1, 10 * SECOND),
        (10 * SECOND, 10 * SECOND),
        (10_001, 10_001),
        (HOUR, HOUR),
        (DAY, DAY),
        (30 * DAY, DAY),
    ],
)
def test_retry_after_raises_the_delay_up_to_a_day_and_never_lowers_it(
    retry_after_ms: int | None, delay_ms: int
) -> None:
    assert settle(K.THROTTLED, policy=PATIENT, retry_after_ms=retry_after_ms).delay_ms == delay_ms
    assert settle(K.THROTTLED, route=ONE, retry_after_ms=retry_after_ms).delay_ms == delay_ms


@pytest.mark.parametrize("kind", [K.THROTTLED, K.TRANSIENT, K.PROVIDER_FAULT])
def test_retry_after_is_respected_with_any_outcome(kind: OutcomeKind) -> None:
    assert settle(kind, route=ONE, retry_after_ms=HOUR).delay_ms == HOUR


@given(
    st.sampled_from(list(Jitter)),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 3 * DAY),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_jitter_is_added_to_retry_after(
    jitter: Jitter, u: float, retry_after_ms: int, attempt: int, failover_after: int
) -> None:
    policy = replace(
        STEADY, jitter=jitter, jitter_ms=5 * SECOND, max_attempts=9, failover_after=failover_after
    )
    claim = make_claim(attempt=attempt)
    plain_ms = settle(K.THROTTLED, claim, policy, ONE, u).delay_ms
    floor_ms = settle(K.THROTTLED, claim, policy, ONE, 0.0).delay_ms
    delay_ms = settle(K.THROTTLED, claim, policy, ONE, u, retry_after_ms=retry_after_ms).delay_ms
    asked_ms = min(retry_after_ms, LONGEST_RETRY_AFTER_MS)
    assert delay_ms == max(plain_ms, asked_ms + plain_ms - floor_ms)


def test_failing_over_from_a_provider_with_retry_after_puts_it_on_hold_without_waiting() -> None:
    settled = settle(K.THROTTLED, retry_after_ms=HOUR)
    assert (settled.provider, settled.delay_ms, settled.hold_ms) == ("sns", 0, HOUR)
    assert settle(K.THROTTLED, retry_after_ms=9 * DAY).hold_ms == DAY
    assert settle(K.THROTTLED).hold_ms == 0, "only Retry-After holds"


def test_a_provider_with_retry_after_is_on_hold_even_if_the_retry_waits_for_it() -> None:
    stays = settle(K.THROTTLED, policy=PATIENT, retry_after_ms=HOUR)
    assert (stays.provider, stays.delay_ms >= HOUR, stays.hold_ms) == ("twilio", True, HOUR)


def test_retry_after_does_not_influence_the_decorrelated_jitter() -> None:
    assert settle(K.THROTTLED, route=ONE, retry_after_ms=HOUR).last_delay_ms == 10 * SECOND


def test_a_move_at_once_draws_no_backoff() -> None:
    assert settle(K.TRANSIENT, make_claim(last_delay_ms=7 * SECOND)).last_delay_ms == 7 * SECOND


# Expiry ----------------------------------------------------------------------------------------------


def test_a_retry_after_beyond_the_expiry_fails_over_at_once() -> None:
    claim = make_claim(expires_at=NOW + MINUTE)
    settled = settle(K.THROTTLED, claim, PATIENT, retry_after_ms=HOUR)
    assert (settled.status, settled.provider, settled.delay_ms) == (Status.RETRYING, "sns", 0)
    assert (settled.hold_ms, settled.failures_here) == (HOUR, 0)
    assert (settled.spent, settled.moves, settled.free_move) == ({"twilio": ROUND}, 1, True)


@pytest.mark.parametrize(
    ("kind", "wait", "free"),
    [
        (K.TRANSIENT, FailoverWait.BACKOFF, False),
        (K.TRANSIENT, FailoverWait.NONE, True),
        (K.PROVIDER_FAULT, FailoverWait.BACKOFF, True),
    ],
)
def test_a_move_before_the_expiry_is_free_only_if_moves_do_not_wait(
    kind: OutcomeKind, wait: FailoverWait, free: bool
) -> None:
    claim = make_claim(expires_at=NOW + 5 * SECOND, attempt=2, failures_here=1)
    settled = settle(kind, claim, policy=replace(WAITING, failover_wait=wait))
    assert (settled.status, settled.provider, settled.delay_ms) == (Status.RETRYING, "sns", 0)
    assert (settled.moves, settled.free_move, settled.spent) == (int(free), free, {"twilio": 1})


@pytest.mark.parametrize("changes", [{"pinned": True}, {}])
def test_a_retry_after_beyond_the_expiry_expires_if_there_is_no_other_provider(
    changes: dict[str, Any],
) -> None:
    claim = make_claim(expires_at=NOW + MINUTE, **changes)
    settled = settle(K.THROTTLED, claim, route=TWO if changes else ONE, retry_after_ms=HOUR)
    assert (settled.status, settled.reason) == (Status.EXPIRED, Reason.EXPIRED)


def test_time_since_the_claim_counts_towards_the_expiry() -> None:
    claim = make_claim(expires_at=NOW + 15 * SECOND)
    assert settle(K.TRANSIENT, claim, route=ONE, elapsed_ms=4_999).status is Status.RETRYING
    assert settle(K.TRANSIENT, claim, route=ONE, elapsed_ms=5_000).status is Status.EXPIRED


def test_an_expired_notification_does_not_fail_over() -> None:
    settled = settle(K.PROVIDER_FAULT, make_claim(expires_at=NOW + SECOND), elapsed_ms=SECOND)
    assert settled.status is Status.EXPIRED


# Unlisted errors --------------------------------------------------------------------------------------


def unlisted(claim: Claim, route: Route, kind: OutcomeKind = K.BAD_CONTENT) -> OutcomeKind:
    return attribute_outcome(claim, make_outcome(kind, unlisted=True), route).kind


def test_an_unlisted_error_is_a_provider_fault_if_another_provider_can_be_tried() -> None:
    assert unlisted(make_claim(), TWO) is K.PROVIDER_FAULT
    assert unlisted(make_claim(provider="sns", outlet="sns"), TWO) is K.PROVIDER_FAULT


@pytest.mark.parametrize(
    ("claim", "route"),
    [
        (make_claim(), ONE),
        (make_claim(pinned=True), TWO),
        (make_claim(mode=Mode.SYNCHRONOUS), TWO),
        (make_claim(spent={"sns": REFUSED}), TWO),
        (make_claim(spent={"sns": REFUSED, "spare": REFUSED}), THREE),
    ],
    ids=["alone", "pinned", "synchronous", "refused by the other", "refused by both others"],
)
def test_an_unlisted_error_is_bad_content_if_no_other_provider_can_be_tried(
    claim: Claim, route: Route
) -> None:
    assert unlisted(claim, route) is K.BAD_CONTENT


@pytest.mark.parametrize("changes", [{"holds": {"sns": NOW + DAY}}, {"spent": {"sns": ROUND}}])
def test_a_provider_on_hold_or_spent_for_another_reason_can_still_be_tried(changes: dict[str, Any]) -> None:
    """An account fault of the second provider must not end a notification that waits for the first."""
    assert unlisted(make_claim(**changes), TWO) is K.PROVIDER_FAULT


def test_one_of_three_providers_that_has_not_refused_yet_can_still_be_tried() -> None:
    assert unlisted(make_claim(spent={"sns": REFUSED}), THREE) is K.PROVIDER_FAULT


@pytest.mark.parametrize("kind", [kind for kind in K if kind is not K.BAD_CONTENT])
def test_only_bad_content_is_reconsidered(kind: OutcomeKind) -> None:
    assert unlisted(make_claim(), TWO, kind) is kind
    listed = make_outcome(K.BAD_CONTENT)
    assert attribute_outcome(make_claim(), listed, TWO) is listed


def test_an_unlisted_error_fails_over_at_once_and_its_provider_is_not_tried_again() -> None:
    settled = settle(K.PROVIDER_FAULT, unlisted=True)
    assert (settled.status, settled.provider, settled.delay_ms) == (Status.RETRYING, "sns", 0)
    assert (settled.spent, settled.moves) == ({"twilio": REFUSED}, 1)
    second = settle(K.TRANSIENT, after(make_claim(), settled))
    assert (second.provider, second.delay_ms, second.spent) == ("sns", 10 * SECOND, {"twilio": REFUSED})


# Refusals that an earlier release has stored as holds of ten years --------------------------------------

TEN_YEARS = 3_650 * 24 * HOUR


@pytest.mark.parametrize("batch", [False, True])
def test_a_provider_that_refused_in_an_earlier_release_is_not_waited_for(batch: bool) -> None:
    row = make_row(holds={"sns": NOW + TEN_YEARS, "spare": NOW + HOUR})
    lease(row, "w", MINUTE, NOW)
    claim = claims_of([row], [MESSAGE], [NOW])[0] if batch else claim_of(row, MESSAGE, NOW)
    assert dict(claim.spent) == {"sns": Spent.REFUSED}
    outcome = attribute_outcome(claim, make_outcome(K.BAD_CONTENT, unlisted=True), TWO)
    assert outcome.kind is K.BAD_CONTENT
    settled = settle(K.TRANSIENT, claim)
    assert (settled.provider, settled.delay_ms, settled.spent) == (
        "twilio",
        10 * SECOND,
        {"sns": Spent.REFUSED},
    )
