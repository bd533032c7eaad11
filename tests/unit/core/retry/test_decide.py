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
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.retry.decide import LONGEST_RETRY_AFTER_MS, attribute_outcome, decide
from homing.core.retry.policy import Jitter, OnTimeout, RetryPolicy
from homing.core.routing.failover import REFUSAL_MS, Route, RouteStep, has_refused
from support.core_builders import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    ONE,
    SECOND,
    STEADY,
    THREE,
    TWO,
    make_claim,
    make_outcome,
)

K = OutcomeKind


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
    assert settle(K.TRANSIENT, make_claim(attempt=attempt, attempt_floor=floor)).status is status


def test_the_maximum_is_that_of_the_current_policy_not_of_the_one_at_acceptance() -> None:
    claim = make_claim(attempt=3)
    assert settle(K.TRANSIENT, claim, replace(STEADY, max_attempts=3)).reason is Reason.RETRIES_EXHAUSTED


# Failover --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failover_after", [1, 2, 3, 4])
def test_the_provider_changes_after_the_configured_number_of_failures(failover_after: int) -> None:
    policy = replace(STEADY, failover_after=failover_after, max_attempts=20)
    providers, claim = [], make_claim()
    for attempt in range(1, 10):
        providers.append(claim.provider)
        settled = settle(K.TRANSIENT, claim, policy)
        claim = replace(
            claim,
            attempt=attempt + 1,
            provider=settled.provider,
            outlet=settled.outlet,
            failures_here=settled.failures_here,
        )
    names = ["twilio", "sns"]
    assert providers == [names[n // failover_after % 2] for n in range(9)]


def test_the_provider_after_the_last_one_is_the_first() -> None:
    claim = make_claim(provider="spare", outlet="spare", failures_here=1)
    assert settle(K.TRANSIENT, claim, route=THREE).provider == "twilio"


def test_a_failover_waits_for_the_backoff_like_any_retry() -> None:
    settled = settle(K.TRANSIENT, make_claim(attempt=2, failures_here=1))
    assert (settled.provider, settled.delay_ms, settled.failures_here) == ("sns", 20 * SECOND, 0)


def test_a_pinned_notification_stays_at_its_provider() -> None:
    settled = settle(K.PROVIDER_FAULT, make_claim(pinned=True, failures_here=7))
    assert (settled.provider, settled.delay_ms, settled.failures_here) == ("twilio", 10 * SECOND, 8)


def test_a_provider_that_was_removed_from_the_route_is_replaced_by_the_first_one() -> None:
    claim = make_claim(provider="gone", outlet="gone", failures_here=1)
    assert settle(K.TRANSIENT, claim).provider == "twilio"
    assert settle(K.TRANSIENT, replace(claim, failures_here=0)).provider == "gone"


def test_without_a_route_the_same_provider_is_retried() -> None:
    settled = settle(K.TRANSIENT, make_claim(failures_here=9), route=())
    assert (settled.status, settled.provider) == (Status.RETRYING, "twilio")


def test_the_outlet_follows_the_provider_and_the_address() -> None:
    route = (RouteStep("relay"), RouteStep("hook", per_host=True))
    claim = make_claim(
        provider="relay", outlet="relay", address="https://Shop.example:8443/in", failures_here=1
    )
    settled = settle(K.TRANSIENT, claim, route=route)
    assert (settled.provider, settled.outlet) == ("hook", "hook@shop.example:8443")
    stayed = settle(K.TRANSIENT, replace(claim, provider="hook", outlet="hook@kept"), route=(route[1],))
    assert stayed.outlet == "hook@kept"


def test_a_provider_fault_fails_over_at_once() -> None:
    settled = settle(K.PROVIDER_FAULT)
    assert (settled.provider, settled.delay_ms) == ("sns", 0)


@pytest.mark.parametrize("route", [ONE, TWO, THREE])
def test_faults_of_all_providers_do_not_cause_a_loop_without_waits(route: Route) -> None:
    policy, claim, waits = replace(STEADY, max_attempts=12), make_claim(), []
    for attempt in range(1, 12):
        settled = settle(K.PROVIDER_FAULT, claim, policy, route)
        waits.append(settled.delay_ms)
        holds = {**claim.holds, claim.provider: claim.started_at + settled.hold_ms}
        claim = replace(
            claim,
            attempt=attempt + 1,
            provider=settled.provider,
            started_at=claim.started_at + settled.delay_ms,
            holds=holds,
        )
    for at in range(len(waits) - len(route) + 1):
        assert any(waits[at : at + len(route)]), f"one whole round without waiting: {waits}"
    assert waits.count(0) == sum(1 for n in range(1, 12) if n % len(route))


# Ambiguous and lost attempts -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [K.AMBIGUOUS, K.LOST])
def test_an_ambiguous_attempt_stays_at_its_provider_unless_the_policy_says_otherwise(
    kind: OutcomeKind,
) -> None:
    claim = make_claim(attempt=4, failures_here=3)
    assert settle(kind, claim).provider == "twilio"
    moved = settle(kind, claim, replace(STEADY, on_timeout=OnTimeout.FAILOVER))
    assert (moved.provider, moved.delay_ms) == ("sns", 80 * SECOND)
    held = settle(kind, claim, replace(STEADY, on_timeout=OnTimeout.HOLD))
    assert (held.status, held.reason) == (Status.IN_DOUBT, Reason.UNCONFIRMED)


def test_an_ambiguous_last_attempt_is_held_too() -> None:
    hold = replace(STEADY, on_timeout=OnTimeout.HOLD)
    assert settle(K.AMBIGUOUS, make_claim(attempt=5), hold).status is Status.IN_DOUBT


def test_an_ambiguous_attempt_counts_towards_the_failover_after_a_definite_failure() -> None:
    first = settle(K.AMBIGUOUS)
    assert (first.provider, first.failures_here) == ("twilio", 1)
    second = settle(K.TRANSIENT, make_claim(attempt=2, failures_here=1))
    assert second.provider == "sns"


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
    assert settle(K.THROTTLED, retry_after_ms=retry_after_ms).delay_ms == delay_ms


@pytest.mark.parametrize("kind", [K.THROTTLED, K.TRANSIENT, K.PROVIDER_FAULT])
def test_retry_after_is_respected_with_any_outcome(kind: OutcomeKind) -> None:
    assert settle(kind, route=ONE, retry_after_ms=HOUR).delay_ms == HOUR


@given(
    st.sampled_from(list(Jitter)),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 3 * DAY),
    st.integers(1, 4),
)
def test_jitter_is_added_to_retry_after(jitter: Jitter, u: float, retry_after_ms: int, attempt: int) -> None:
    policy = replace(STEADY, jitter=jitter, jitter_ms=5 * SECOND, max_attempts=9)
    claim = make_claim(attempt=attempt)
    plain_ms = settle(K.THROTTLED, claim, policy, ONE, u).delay_ms
    floor_ms = settle(K.THROTTLED, claim, policy, ONE, 0.0).delay_ms
    delay_ms = settle(K.THROTTLED, claim, policy, ONE, u, retry_after_ms=retry_after_ms).delay_ms
    asked_ms = min(retry_after_ms, LONGEST_RETRY_AFTER_MS)
    assert delay_ms == max(plain_ms, asked_ms + plain_ms - floor_ms)


def test_failing_over_from_a_provider_with_retry_after_puts_it_on_hold_without_waiting() -> None:
    settled = settle(K.THROTTLED, make_claim(failures_here=1), retry_after_ms=HOUR)
    assert (settled.provider, settled.delay_ms, settled.hold_ms) == ("sns", 10 * SECOND, HOUR)
    assert settle(K.THROTTLED, make_claim(failures_here=1), retry_after_ms=9 * DAY).hold_ms == DAY
    assert settle(K.THROTTLED, make_claim(failures_here=1)).hold_ms == 10 * SECOND, (
        "its own backoff holds too"
    )
    assert settle(K.THROTTLED, retry_after_ms=HOUR).hold_ms == 0, "it stays, so the delay says it"


def test_retry_after_does_not_influence_the_decorrelated_jitter() -> None:
    assert settle(K.THROTTLED, retry_after_ms=HOUR).last_delay_ms == 10 * SECOND


# Expiry ----------------------------------------------------------------------------------------------


def test_a_retry_after_beyond_the_expiry_fails_over_at_once() -> None:
    claim = make_claim(expires_at=NOW + MINUTE)
    settled = settle(K.THROTTLED, claim, retry_after_ms=HOUR)
    assert (settled.status, settled.provider, settled.delay_ms) == (Status.RETRYING, "sns", 0)
    assert (settled.hold_ms, settled.failures_here) == (HOUR, 0)


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
    return attribute_outcome(claim, make_outcome(kind, unlisted=True), route, elapsed_ms=SECOND).kind


def test_an_unlisted_error_is_a_provider_fault_if_another_provider_can_be_tried() -> None:
    assert unlisted(make_claim(), TWO) is K.PROVIDER_FAULT
    assert unlisted(make_claim(provider="sns", outlet="sns"), TWO) is K.PROVIDER_FAULT


@pytest.mark.parametrize(
    ("claim", "route"),
    [
        (make_claim(), ONE),
        (make_claim(pinned=True), TWO),
        (make_claim(mode=Mode.SYNCHRONOUS), TWO),
        (make_claim(holds={"sns": NOW + REFUSAL_MS}), TWO),
        (make_claim(holds={"sns": NOW + REFUSAL_MS, "spare": NOW + REFUSAL_MS}), THREE),
    ],
    ids=["alone", "pinned", "synchronous", "refused by the other", "refused by both others"],
)
def test_an_unlisted_error_is_bad_content_if_no_other_provider_can_be_tried(
    claim: Claim, route: Route
) -> None:
    assert unlisted(claim, route) is K.BAD_CONTENT


@pytest.mark.parametrize("hold_ms", [SECOND, HOUR, LONGEST_RETRY_AFTER_MS, 9 * DAY])
def test_a_provider_on_hold_for_another_reason_can_still_be_tried(hold_ms: int) -> None:
    """An account fault of the second provider must not end a notification that waits for the first."""
    assert unlisted(make_claim(holds={"sns": NOW + hold_ms}), TWO) is K.PROVIDER_FAULT


def test_one_of_three_providers_that_has_not_refused_yet_can_still_be_tried() -> None:
    assert unlisted(make_claim(holds={"sns": NOW + REFUSAL_MS}), THREE) is K.PROVIDER_FAULT


@pytest.mark.parametrize("kind", [kind for kind in K if kind is not K.BAD_CONTENT])
def test_only_bad_content_is_reconsidered(kind: OutcomeKind) -> None:
    assert unlisted(make_claim(), TWO, kind) is kind
    listed = make_outcome(K.BAD_CONTENT)
    assert attribute_outcome(make_claim(), listed, TWO, elapsed_ms=SECOND) is listed


def test_an_unlisted_error_fails_over_at_once_and_its_provider_is_not_tried_again() -> None:
    settled = settle(K.PROVIDER_FAULT, unlisted=True)
    assert (settled.status, settled.provider, settled.delay_ms) == (Status.RETRYING, "sns", 0)
    assert has_refused({"twilio": NOW + settled.hold_ms}, "twilio", NOW + 365 * DAY)
    assert not has_refused({"twilio": NOW + settle(K.PROVIDER_FAULT).hold_ms}, "twilio", NOW)
