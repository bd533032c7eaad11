"""Receipts lead to the same end in any order and with any repeats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.receipt_decision import ReceiptContext, ReceiptDecision, decide_receipt
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.states import FINAL_FAILURE_RANK, RECEIPT_RANK
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.routing.failover import Route, RouteStep, Spent
from support.core_builders import DAY, HOUR, MINUTE, NOW, THREE, make_receipt

E, K, S = ReceiptEvent, OutcomeKind, Status


def make_standing(status: Status = S.SENT, **changes: Any) -> ReceiptContext:
    standing = ReceiptContext(
        tenant="t",
        status=status,
        mode=Mode.STANDARD,
        channel=Channel.SMS,
        address="+15550100",
        provider="twilio",
        outlet="twilio",
        rank=0,
        newest=True,
        last_message=True,
        now=NOW,
        bounce_min_ms=MINUTE,
        bounce_max_ms=MINUTE,
    )
    return replace(standing, **changes)


def handle_callback(standing: ReceiptContext, receipts: list[Receipt]) -> ReceiptContext:
    """Returns the notification's state after all receipts, applied as a store applies them."""
    for receipt in receipts:
        verdict = decide_receipt(standing, receipt)
        if verdict is not None:
            standing = replace(
                standing,
                status=verdict.status_after,
                rank=verdict.rank,
                provider=verdict.provider,
                outlet=verdict.outlet,
            )
    return standing


# One receipt -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(set(Status) - {S.SENDING}))
@pytest.mark.parametrize("event", list(ReceiptEvent))
def test_each_event_leads_each_status_to_the_expected_one(status: Status, event: ReceiptEvent) -> None:
    verdict = decide_receipt(make_standing(status), make_receipt(event))
    assert verdict is not None
    expected = {
        E.DELIVERED: S.DELIVERED,
        E.SPAM_REPORT: S.FAILED,
        E.QUEUED: S.SENT if status in (S.IN_DOUBT, S.RETRYING) else status,
        E.SENT: S.SENT if status in (S.IN_DOUBT, S.RETRYING) else status,
        E.FAILED: S.RETRYING if status in (S.SENT, S.IN_DOUBT) else status,
    }
    assert verdict.status_after is expected.get(event, status)
    assert verdict.rank == RECEIPT_RANK[event]


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT, E.FAILED, E.DELIVERED, E.SPAM_REPORT])
def test_a_repeated_or_lower_ranked_receipt_changes_nothing(event: ReceiptEvent) -> None:
    rank = RECEIPT_RANK[event]
    assert decide_receipt(make_standing(rank=rank), make_receipt(event)) is None
    assert decide_receipt(make_standing(rank=rank + 1), make_receipt(event)) is None


@pytest.mark.parametrize("event", [E.OPEN, E.CLICK, E.UNSUBSCRIBE])
@pytest.mark.parametrize("rank", [0, 3, 5])
def test_opens_clicks_and_unsubscribes_are_recorded_but_never_change_the_status(
    event: ReceiptEvent, rank: int
) -> None:
    assert decide_receipt(make_standing(rank=rank), make_receipt(event)) == ReceiptDecision(
        status_after=S.SENT, rank=rank, provider="twilio", outlet="twilio"
    )


def test_a_failure_moves_at_once_to_the_next_provider() -> None:
    verdict = decide_receipt(make_standing(), make_receipt(E.FAILED))
    assert verdict == ReceiptDecision(
        status_after=S.RETRYING,
        rank=RECEIPT_RANK[E.FAILED],
        provider="sns",
        outlet="sns",
        reopened=True,
        last_delay_ms=MINUTE,
        spent={"twilio": Spent.THIS_ROUND},
        free_move=True,
        message_failed=True,
    )


def test_after_the_last_provider_a_failure_moves_to_the_first() -> None:
    verdict = decide_receipt(
        make_standing(provider="sns", outlet="sns"), make_receipt(E.FAILED, provider="sns")
    )
    assert verdict is not None
    assert (verdict.provider, verdict.reopened) == ("twilio", True)


@pytest.mark.parametrize("routes", [{Channel.SMS: (RouteStep("fcm"),)}, {}])
def test_with_at_most_one_known_provider_a_failure_retries_it_after_its_backoff(
    routes: dict[Channel, Route],
) -> None:
    receipt = make_receipt(E.FAILED, provider="fcm", routes=routes)
    verdict = decide_receipt(make_standing(provider="fcm", outlet="fcm"), receipt)
    assert verdict is not None
    assert (verdict.status_after, verdict.provider, verdict.outlet) == (S.RETRYING, "fcm", "fcm")
    assert verdict.delay_ms == MINUTE


def test_a_failure_at_a_provider_removed_from_the_route_moves_to_the_route() -> None:
    receipt = make_receipt(E.FAILED, provider="fcm")
    verdict = decide_receipt(make_standing(provider="fcm", outlet="fcm"), receipt)
    assert verdict is not None
    assert (verdict.provider, verdict.delay_ms) == ("twilio", 0)


@pytest.mark.parametrize(
    ("holds", "provider", "delay_ms"),
    [
        ({}, "sns", 0),
        ({"sns": NOW}, "sns", 0),
        ({"sns": NOW + 1}, "spare", 0),
        ({"sns": NOW + 5_000, "spare": NOW + 4_000}, "twilio", MINUTE),
        ({"sns": NOW + HOUR, "spare": NOW + DAY}, "twilio", MINUTE),
    ],
)
def test_a_failure_moves_to_the_first_provider_that_is_not_on_hold(
    holds: dict[str, int], provider: str, delay_ms: int
) -> None:
    receipt = make_receipt(E.FAILED, outcome=K.THROTTLED, routes={Channel.SMS: THREE})
    verdict = decide_receipt(make_standing(holds=holds), receipt)
    assert verdict is not None
    assert (verdict.provider, verdict.delay_ms, verdict.hold_ms) == (provider, delay_ms, 0)
    assert verdict.free_move == (delay_ms == 0)
    assert verdict.spent == ({"twilio": Spent.THIS_ROUND} if verdict.free_move else {})


@pytest.mark.parametrize(
    ("spent", "provider", "delay_ms", "spent_after"),
    [
        ({"sns": 1}, "spare", 0, {"sns": 1, "twilio": 1}),
        ({"sns": 1, "spare": 1}, "sns", MINUTE, {}),
        ({"sns": 2}, "spare", 0, {"sns": 2, "twilio": 1}),
        ({"sns": 2, "spare": 2}, "twilio", MINUTE, {"sns": 2, "spare": 2}),
        ({"sns": 2, "spare": 1}, "spare", MINUTE, {"sns": 2}),
    ],
)
def test_a_failure_spends_its_provider_and_a_new_round_begins_if_none_is_left(
    spent: dict[str, int], provider: str, delay_ms: int, spent_after: dict[str, int]
) -> None:
    receipt = make_receipt(E.FAILED, outcome=K.TRANSIENT, routes={Channel.SMS: THREE})
    verdict = decide_receipt(make_standing(spent=spent), receipt)
    assert verdict is not None
    assert (verdict.provider, verdict.delay_ms, verdict.spent) == (provider, delay_ms, spent_after)


def test_a_provider_fault_waits_for_another_provider_however_long_that_takes() -> None:
    receipt = make_receipt(E.FAILED, outcome=K.PROVIDER_FAULT)
    verdict = decide_receipt(make_standing(holds={"sns": NOW + HOUR}), receipt)
    assert verdict is not None
    assert (verdict.status_after, verdict.provider, verdict.delay_ms) == (S.RETRYING, "sns", HOUR)


@pytest.mark.parametrize(
    "changes", [{"pinned": True}, {"channel": Channel.EMAIL}, {"spent": {"sns": Spent.REFUSED}}]
)
def test_a_provider_fault_without_another_provider_is_final(changes: dict[str, Any]) -> None:
    verdict = decide_receipt(make_standing(**changes), make_receipt(E.FAILED, outcome=K.PROVIDER_FAULT))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.FAILED, Reason.RECEIPT_FAILED)


@pytest.mark.parametrize(
    ("retry_after_ms", "waits_ms"), [(None, MINUTE), (1, MINUTE), (HOUR, HOUR), (30 * DAY, DAY)]
)
def test_the_delay_of_the_error_table_lengthens_the_backoff_and_never_shortens_it(
    retry_after_ms: int | None, waits_ms: int
) -> None:
    receipt = make_receipt(E.FAILED, outcome=K.TRANSIENT, retry_after_ms=retry_after_ms)
    verdict = decide_receipt(make_standing(pinned=True), receipt)
    assert verdict is not None
    held_ms = min(retry_after_ms or 0, DAY)
    assert (verdict.delay_ms, verdict.hold_ms, verdict.last_delay_ms) == (waits_ms, held_ms, MINUTE)


@given(st.integers(0, DAY), st.integers(0, DAY), st.integers(0, DAY), st.text())
def test_the_delay_is_within_its_bounds_and_deterministic(
    low: int, more: int, asked: int, event_id: str
) -> None:
    standing = make_standing(pinned=True, bounce_min_ms=low, bounce_max_ms=low + more)
    receipt = make_receipt(E.FAILED, outcome=K.TRANSIENT, retry_after_ms=asked, event_id=event_id)
    one, other = decide_receipt(standing, receipt), decide_receipt(standing, receipt)
    assert one is not None
    assert one == other
    assert max(low, asked) <= one.delay_ms <= max(low, asked) + more
    assert low <= one.last_delay_ms <= low + more


def test_delays_of_different_events_differ() -> None:
    standing = make_standing(pinned=True, bounce_min_ms=0, bounce_max_ms=HOUR)
    receipts = [make_receipt(E.FAILED, event_id=f"SM{number}:failed") for number in range(200)]
    waits = [verdict.delay_ms for receipt in receipts if (verdict := decide_receipt(standing, receipt))]
    assert min(waits) < 0.1 * HOUR < 0.9 * HOUR < max(waits)


def test_a_row_without_a_backoff_uses_the_receipt_s() -> None:
    standing = make_standing(pinned=True, bounce_min_ms=None, bounce_max_ms=None)
    verdict = decide_receipt(standing, make_receipt(E.FAILED, backoff_ms=7_000))
    assert verdict is not None
    assert verdict.delay_ms == 7_000


@pytest.mark.parametrize("kind", [K.BAD_CONTENT, K.BAD_RECIPIENT, K.DEAD_ADDRESS, K.OPTED_OUT])
@pytest.mark.parametrize("status", [S.SENT, S.IN_DOUBT, S.RETRYING])
def test_a_failure_that_no_provider_can_fix_is_final(kind: OutcomeKind, status: Status) -> None:
    verdict = decide_receipt(make_standing(status), make_receipt(E.FAILED, outcome=kind))
    assert verdict is not None
    assert (verdict.status_after, verdict.rank) == (S.FAILED, FINAL_FAILURE_RANK)


def test_bad_content_is_final_even_if_bounces_always_fail_over() -> None:
    verdict = decide_receipt(make_standing(bounce_always=True), make_receipt(E.FAILED, outcome=K.BAD_CONTENT))
    assert verdict is not None
    assert verdict.status_after is S.FAILED


def test_the_second_failure_for_an_unknown_reason_is_final() -> None:
    verdict = decide_receipt(make_standing(unknown_before=True), make_receipt(E.FAILED))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.FAILED, Reason.RECEIPT_FAILED)
    known = decide_receipt(make_standing(unknown_before=True), make_receipt(E.FAILED, outcome=K.TRANSIENT))
    assert known is not None
    assert known.status_after is S.RETRYING


def test_a_failure_caused_by_the_recipient_is_final() -> None:
    verdict = decide_receipt(make_standing(), make_receipt(E.FAILED, outcome=K.BAD_RECIPIENT))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.FAILED, Reason.RECEIPT_FAILED)
    assert not verdict.reopened


@pytest.mark.parametrize(
    ("row_says", "receipt_says", "ends"),
    [(True, False, S.RETRYING), (False, True, S.FAILED), (None, True, S.RETRYING), (None, False, S.FAILED)],
)
def test_a_failure_caused_by_the_recipient_fails_over_if_the_rule_says_so(
    row_says: bool | None, receipt_says: bool, ends: Status
) -> None:
    receipt = make_receipt(E.FAILED, outcome=K.BAD_RECIPIENT, always_failover=receipt_says)
    verdict = decide_receipt(make_standing(bounce_always=row_says), receipt)
    assert verdict is not None
    assert verdict.status_after is ends


def test_a_failure_of_an_earlier_message_does_not_reopen_a_later_success() -> None:
    standing = make_standing(newest=False, last_message=False, others_taken=True)
    verdict = decide_receipt(standing, make_receipt(E.FAILED))
    assert verdict is not None
    assert (verdict.status_after, verdict.rank, verdict.reopened) == (S.SENT, RECEIPT_RANK[E.FAILED], False)


@pytest.mark.parametrize("status", [S.RETRYING, S.FAILED, S.SENT, S.IN_DOUBT, S.CANCELLED, S.EXPIRED])
def test_a_delivery_ends_it_well_whichever_message_was_delivered(status: Status) -> None:
    verdict = decide_receipt(make_standing(status, newest=False), make_receipt(E.DELIVERED))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.DELIVERED, None)


def test_a_spam_report_is_final_even_after_a_delivery() -> None:
    verdict = decide_receipt(
        make_standing(S.DELIVERED, rank=RECEIPT_RANK[E.DELIVERED]), make_receipt(E.SPAM_REPORT)
    )
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.FAILED, Reason.SPAM_REPORT)


# Many receipts ---------------------------------------------------------------------------------------

events = st.lists(st.sampled_from(list(ReceiptEvent)), min_size=1, max_size=6)
beginnings = st.sampled_from([S.SENT, S.IN_DOUBT, S.RETRYING, S.FAILED, S.CANCELLED])


@st.composite
def two_orders(
    draw: st.DrawFn, receipts: st.SearchStrategy[list[Receipt]]
) -> tuple[list[Receipt], list[Receipt]]:
    """Returns the same receipts twice, each time in random order and with random repeats."""
    heard = draw(receipts)
    repeats = draw(st.lists(st.sampled_from(heard), max_size=4))
    return heard, list(draw(st.permutations(heard + repeats)))


plain = events.map(lambda found: [make_receipt(event) for event in found])
classes = st.sampled_from([None, *OutcomeKind])
blaming = st.builds(
    lambda found, outcome, always: [
        make_receipt(event, outcome=outcome, always_failover=always) for event in found
    ],
    events,
    classes,
    st.booleans(),
)
mixed = st.lists(
    st.builds(make_receipt, st.sampled_from([E.FAILED, E.SENT]), outcome=classes),
    min_size=2,
    max_size=5,
)


BLAMED, UNBLAMED = (make_receipt(E.FAILED, outcome=kind) for kind in (K.BAD_RECIPIENT, K.TRANSIENT))


@settings(max_examples=200)
@given(beginnings, two_orders(st.one_of(plain, blaming)), st.sampled_from(list(Mode)))
def test_any_order_and_any_repeats_end_in_the_same_status(
    status: Status, orders: tuple[list[Receipt], list[Receipt]], mode: Mode
) -> None:
    one, other = (handle_callback(make_standing(status, mode=mode), order) for order in orders)
    assert (one.status, one.rank) == (other.status, other.rank)


@given(st.sampled_from([S.SENT, S.IN_DOUBT]), two_orders(mixed), st.booleans(), st.booleans())
@example(S.SENT, ([BLAMED, UNBLAMED], [UNBLAMED, BLAMED]), False, False)
def test_failures_of_different_classes_end_in_the_same_status_in_any_order(
    status: Status, orders: tuple[list[Receipt], list[Receipt]], pinned: bool, unknown_before: bool
) -> None:
    standing = make_standing(status, pinned=pinned, unknown_before=unknown_before)
    one, other = (handle_callback(standing, order).status for order in orders)
    assert one is other


@given(beginnings, plain)
def test_the_highest_ranked_receipt_decides(status: Status, receipts: list[Receipt]) -> None:
    found = handle_callback(make_standing(status), receipts)
    heard = {receipt.event for receipt in receipts}
    if E.SPAM_REPORT in heard:
        assert found.status is S.FAILED
    elif E.DELIVERED in heard:
        assert found.status is S.DELIVERED
    elif E.FAILED in heard and status in (S.SENT, S.IN_DOUBT):
        assert found.status is S.RETRYING
    elif heard & {E.QUEUED, E.SENT} and E.FAILED not in heard and status in (S.IN_DOUBT, S.RETRYING):
        assert found.status is S.SENT
    else:
        assert found.status is status


@given(st.sampled_from([S.SENT, S.FAILED, S.DELIVERED]), st.one_of(plain, blaming, mixed), st.booleans())
def test_a_synchronous_notification_is_never_reopened(
    status: Status, receipts: list[Receipt], newest: bool
) -> None:
    standing = make_standing(status, mode=Mode.SYNCHRONOUS, newest=newest, last_message=newest)
    for receipt in receipts:
        verdict = decide_receipt(standing, receipt)
        if verdict is not None:
            assert not verdict.reopened
            assert verdict.status_after not in (S.PENDING, S.RETRYING)
            standing = replace(standing, status=verdict.status_after, rank=verdict.rank)


@given(beginnings, st.permutations(list(ReceiptEvent)))
def test_spam_wins_over_everything_in_any_order(status: Status, order: list[ReceiptEvent]) -> None:
    found = handle_callback(make_standing(status), [make_receipt(event) for event in order])
    assert found.status is S.FAILED
