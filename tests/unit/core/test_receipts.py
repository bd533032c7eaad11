"""Callbacks: any order, any repeats, the same end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.failover import Route, Stop
from homing.core.model import Channel, Mode, Reason, Receipt, ReceiptEvent, Status
from homing.core.receipts import Standing, Verdict, absorb
from homing.core.states import RECEIPT_RANK

from .build import TWO, make_receipt

E, S = ReceiptEvent, Status


def make_standing(status: Status = S.SENT, **changes: Any) -> Standing:
    standing = Standing(
        status=status,
        mode=Mode.STANDARD,
        channel=Channel.SMS,
        address="+15550100",
        provider="twilio",
        outlet="twilio",
        attempts=1,
        rank=0,
        newest=True,
    )
    return replace(standing, **changes)


def hear(standing: Standing, receipts: list[Receipt]) -> Standing:
    """Where the notification stands after all of them, as a store applies them."""
    for receipt in receipts:
        verdict = absorb(standing, receipt)
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
def test_each_event_in_each_status_leads_where_it_should(status: Status, event: ReceiptEvent) -> None:
    verdict = absorb(make_standing(status), make_receipt(event))
    assert verdict is not None
    expected = {
        E.DELIVERED: S.DELIVERED,
        E.SPAM_REPORT: S.FAILED,
        E.QUEUED: S.SENT if status is S.IN_DOUBT else status,
        E.SENT: S.SENT if status is S.IN_DOUBT else status,
        E.FAILED: S.RETRYING if status in (S.SENT, S.IN_DOUBT) else status,
    }
    assert verdict.status_after is expected.get(event, status)
    assert verdict.rank == RECEIPT_RANK[event]


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT, E.FAILED, E.DELIVERED, E.SPAM_REPORT])
def test_what_was_heard_before_or_ranks_lower_changes_nothing(event: ReceiptEvent) -> None:
    rank = RECEIPT_RANK[event]
    assert absorb(make_standing(rank=rank), make_receipt(event)) is None
    assert absorb(make_standing(rank=rank + 1), make_receipt(event)) is None


@pytest.mark.parametrize("event", [E.OPEN, E.CLICK, E.UNSUBSCRIBE])
@pytest.mark.parametrize("rank", [0, 3, 5])
def test_engagement_and_unsubscribing_are_always_noted_and_never_move_it(
    event: ReceiptEvent, rank: int
) -> None:
    assert absorb(make_standing(rank=rank), make_receipt(event)) == Verdict(
        status_after=S.SENT, rank=rank, provider="twilio", outlet="twilio"
    )


def test_a_failure_goes_at_once_to_the_next_provider() -> None:
    verdict = absorb(make_standing(), make_receipt(E.FAILED))
    assert verdict == Verdict(
        status_after=S.RETRYING, rank=RECEIPT_RANK[E.FAILED], provider="sns", outlet="sns", reopened=True
    )


def test_after_the_last_provider_a_failure_goes_to_the_first() -> None:
    verdict = absorb(make_standing(provider="sns", outlet="sns"), make_receipt(E.FAILED, provider="sns"))
    assert verdict is not None
    assert (verdict.provider, verdict.reopened) == ("twilio", True)


@pytest.mark.parametrize("routes", [{Channel.SMS: (Stop("fcm"),)}, {Channel.SMS: TWO}, {}])
def test_with_one_provider_or_none_known_a_failure_goes_to_the_same_again(
    routes: dict[Channel, Route],
) -> None:
    verdict = absorb(make_standing(provider="fcm", outlet="fcm"), make_receipt(E.FAILED, routes=routes))
    assert verdict is not None
    assert (verdict.status_after, verdict.provider, verdict.outlet) == (S.RETRYING, "fcm", "fcm")


def test_a_failure_that_is_the_recipient_s_fault_is_the_end() -> None:
    verdict = absorb(make_standing(), make_receipt(E.FAILED, recipient_at_fault=True))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.FAILED, Reason.RECEIPT_FAILED)
    assert not verdict.reopened


def test_unless_bounces_always_fail_over() -> None:
    receipt = make_receipt(E.FAILED, recipient_at_fault=True, always_failover=True)
    verdict = absorb(make_standing(), receipt)
    assert verdict is not None
    assert (verdict.status_after, verdict.provider) == (S.RETRYING, "sns")


def test_a_failure_of_an_earlier_message_does_not_reopen_what_a_later_one_sent() -> None:
    verdict = absorb(make_standing(newest=False), make_receipt(E.FAILED))
    assert verdict is not None
    assert (verdict.status_after, verdict.rank, verdict.reopened) == (S.SENT, RECEIPT_RANK[E.FAILED], False)


@pytest.mark.parametrize("status", [S.RETRYING, S.FAILED, S.SENT, S.IN_DOUBT, S.CANCELLED, S.EXPIRED])
def test_an_arrival_ends_it_well_whichever_message_arrived(status: Status) -> None:
    verdict = absorb(make_standing(status, newest=False), make_receipt(E.DELIVERED))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.DELIVERED, None)


def test_spam_is_the_end_even_after_an_arrival() -> None:
    verdict = absorb(make_standing(S.DELIVERED, rank=RECEIPT_RANK[E.DELIVERED]), make_receipt(E.SPAM_REPORT))
    assert verdict is not None
    assert (verdict.status_after, verdict.reason) == (S.FAILED, Reason.SPAM_REPORT)


# Many receipts ---------------------------------------------------------------------------------------

events = st.lists(st.sampled_from(list(ReceiptEvent)), min_size=1, max_size=6)
beginnings = st.sampled_from([S.SENT, S.IN_DOUBT, S.RETRYING, S.FAILED, S.CANCELLED])


@st.composite
def two_orders(
    draw: st.DrawFn, receipts: st.SearchStrategy[list[Receipt]]
) -> tuple[list[Receipt], list[Receipt]]:
    """The same receipts twice, each time in some order and with some repeats."""
    heard = draw(receipts)
    repeats = draw(st.lists(st.sampled_from(heard), max_size=4))
    return heard, list(draw(st.permutations(heard + repeats)))


plain = events.map(lambda found: [make_receipt(event) for event in found])
blaming = st.builds(
    lambda found, at_fault, always: [
        make_receipt(event, recipient_at_fault=at_fault, always_failover=always) for event in found
    ],
    events,
    st.booleans(),
    st.booleans(),
)
mixed = st.lists(
    st.builds(make_receipt, st.sampled_from([E.FAILED, E.SENT]), recipient_at_fault=st.booleans()),
    min_size=2,
    max_size=5,
)


BLAMED, UNBLAMED = (make_receipt(E.FAILED, recipient_at_fault=fault) for fault in (True, False))


@settings(max_examples=200)
@given(beginnings, two_orders(st.one_of(plain, blaming)), st.sampled_from(list(Mode)))
def test_any_order_and_any_repeats_end_in_the_same_status(
    status: Status, orders: tuple[list[Receipt], list[Receipt]], mode: Mode
) -> None:
    one, other = (hear(make_standing(status, mode=mode), order) for order in orders)
    assert (one.status, one.rank) == (other.status, other.rank)


@given(st.sampled_from([S.SENT, S.IN_DOUBT]), two_orders(mixed))
@example(S.SENT, ([BLAMED, UNBLAMED], [UNBLAMED, BLAMED]))
def test_failures_that_blame_differently_end_in_the_same_status_too(
    status: Status, orders: tuple[list[Receipt], list[Receipt]]
) -> None:
    one, other = (hear(make_standing(status), order).status for order in orders)
    assert one is other


@given(beginnings, plain)
def test_the_worst_that_was_heard_decides(status: Status, receipts: list[Receipt]) -> None:
    found = hear(make_standing(status), receipts)
    heard = {receipt.event for receipt in receipts}
    if E.SPAM_REPORT in heard:
        assert found.status is S.FAILED
    elif E.DELIVERED in heard:
        assert found.status is S.DELIVERED
    elif E.FAILED in heard and status in (S.SENT, S.IN_DOUBT):
        assert found.status is S.RETRYING
    elif heard & {E.QUEUED, E.SENT} and status is S.IN_DOUBT:
        assert found.status is S.SENT
    else:
        assert found.status is status


@given(st.sampled_from([S.SENT, S.FAILED, S.DELIVERED]), st.one_of(plain, blaming, mixed), st.booleans())
def test_a_synchronous_notification_is_never_reopened(
    status: Status, receipts: list[Receipt], newest: bool
) -> None:
    standing = make_standing(status, mode=Mode.SYNCHRONOUS, newest=newest)
    for receipt in receipts:
        verdict = absorb(standing, receipt)
        if verdict is not None:
            assert not verdict.reopened
            assert verdict.status_after not in (S.PENDING, S.RETRYING)
            standing = replace(standing, status=verdict.status_after, rank=verdict.rank)


@given(beginnings, st.permutations(list(ReceiptEvent)))
def test_spam_wins_over_everything_in_any_order(status: Status, order: list[ReceiptEvent]) -> None:
    found = hear(make_standing(status), [make_receipt(event) for event in order])
    assert found.status is S.FAILED
