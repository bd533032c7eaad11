"""A notification whose attempts were repeated may have several messages: receipts about all of them count."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipt_decision import apply_receipt, decide_receipt, receipt_context
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.rows import Row, claim_of, lease, settle
from homing.core.lifecycle.states import RECEIPT_RANK
from homing.core.notifications import Channel, OutcomeKind, Reason, Status
from homing.core.retry.decide import decide
from homing.core.retry.policy import OnTimeout
from homing.core.routing.failover import RouteStep
from support.core_builders import (
    HOUR,
    MESSAGE,
    MINUTE,
    NOW,
    ONE,
    SECOND,
    STEADY,
    TWO,
    make_outcome,
    make_receipt,
    make_row,
)

E, K, S = ReceiptEvent, OutcomeKind, Status
LATER = NOW + SECOND


class Sent:
    """A row with its attempts, to which receipts are applied as a store does."""

    def __init__(self, *kinds: OutcomeKind, status: Status = S.RETRYING, **changes: Any) -> None:
        self.attempts = [
            AttemptRecord(
                number,
                "twilio",
                kind,
                NOW,
                1,
                "w",
                provider_message_id=f"m{number}" if _has_id(kind) else None,
            )
            for number, kind in enumerate(kinds, 1)
        ]
        self.ranks = [0] * len(kinds)
        due_at = NOW + HOUR if status is S.RETRYING else None
        fields = {"bounce_min_ms": MINUTE, "bounce_max_ms": MINUTE, "due_at": due_at}
        self.row: Row = make_row(status=status, attempts=len(kinds), **fields | changes)

    def hear(self, number: int, event: ReceiptEvent, **changes: Any) -> None:
        receipt = make_receipt(
            event, provider_message_id=f"m{number}", notification_id="n-1", attempt=number, **changes
        )
        self.apply(number, receipt)

    def apply(self, number: int, receipt: Receipt) -> None:
        context = receipt_context(self.row, self.attempts, self.ranks, number - 1, LATER)
        decision = decide_receipt(context, receipt)
        if decision is not None:
            self.ranks[number - 1] = decision.rank
            apply_receipt(self.row, decision, receipt, LATER)


def _has_id(kind: OutcomeKind) -> bool:
    return kind in (K.ACCEPTED, K.AMBIGUOUS)


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT])
@pytest.mark.parametrize("kind", [K.AMBIGUOUS, K.LOST])
def test_a_report_that_the_message_was_taken_ends_the_waiting_retry(
    event: ReceiptEvent, kind: OutcomeKind
) -> None:
    sent = Sent(kind)
    sent.hear(1, event)
    assert (sent.row.status, sent.row.due_at, sent.row.deadline_at) == (S.SENT, None, None)
    assert (sent.row.sent_at, sent.row.last_error) == (LATER, None)


def test_a_retry_after_a_later_rejected_attempt_ends_too() -> None:
    sent = Sent(K.AMBIGUOUS, K.TRANSIENT)
    sent.hear(1, E.SENT)
    assert sent.row.status is S.SENT


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT, E.DELIVERED])
def test_a_taken_message_belongs_to_its_own_provider_even_if_the_retry_would_go_to_another(
    event: ReceiptEvent,
) -> None:
    sent = Sent(K.AMBIGUOUS, provider="sns", outlet="sns")
    sent.hear(1, event)
    assert (sent.row.provider, sent.row.outlet) == ("twilio", "twilio")


@pytest.mark.parametrize("event", [E.SENT, E.DELIVERED])
def test_a_taken_message_has_the_outlet_of_its_host(event: ReceiptEvent) -> None:
    route = (RouteStep("twilio", per_host=True), RouteStep("sns"))
    sent = Sent(K.AMBIGUOUS, provider="sns", outlet="sns", address="https://a.example/hook")
    sent.hear(1, event, routes={Channel.SMS: route})
    assert sent.row.outlet == "twilio@acme/https://a.example"


@pytest.mark.parametrize("status", [S.FAILED, S.CANCELLED, S.EXPIRED, S.SKIPPED])
def test_a_taken_message_does_not_revive_a_notification_that_has_ended(status: Status) -> None:
    sent = Sent(K.AMBIGUOUS, status=status)
    sent.hear(1, E.SENT)
    assert sent.row.status is status


def test_a_late_report_about_a_message_that_failed_does_not_end_the_retry() -> None:
    sent = Sent(K.ACCEPTED, status=S.SENT)
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT)
    sent.hear(1, E.SENT)
    assert sent.row.status is S.RETRYING


def test_a_failure_report_about_an_unsure_attempt_moves_the_waiting_retry_at_once() -> None:
    sent = Sent(K.AMBIGUOUS)
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT, error_code="30008")
    assert (sent.row.status, sent.row.provider, sent.row.due_at) == (S.RETRYING, "sns", LATER)
    assert sent.row.error_code == "30008"


def test_a_provider_fault_reported_while_the_retry_waits_never_leads_back_to_that_provider() -> None:
    sent = Sent(K.AMBIGUOUS)
    sent.hear(1, E.FAILED, outcome=K.PROVIDER_FAULT)
    assert (sent.row.status, sent.row.provider) == (S.RETRYING, "sns")


def test_a_retry_that_already_goes_to_another_provider_keeps_its_time() -> None:
    sent = Sent(K.AMBIGUOUS, provider="sns", outlet="sns")
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT, retry_after_ms=HOUR)
    assert (sent.row.provider, sent.row.due_at, sent.row.holds) == (
        "sns",
        NOW + HOUR,
        {"twilio": LATER + HOUR},
    )


@pytest.mark.parametrize(
    ("spent", "after"),
    [({}, {}), ({"spare": 2}, {"spare": 2}), ({"spare": 1}, {"twilio": 1, "spare": 1})],
)
def test_a_late_failure_spends_its_provider_only_within_a_round(
    spent: dict[str, int], after: dict[str, int]
) -> None:
    sent = Sent(K.AMBIGUOUS, provider="sns", outlet="sns", spent=spent)
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT, retry_after_ms=HOUR)
    assert (sent.row.spent, sent.row.holds) == (after, {"twilio": LATER + HOUR})


def test_while_one_message_is_taken_the_failure_of_another_starts_no_attempt() -> None:
    sent = Sent(K.AMBIGUOUS, K.ACCEPTED, status=S.SENT)
    sent.hear(1, E.SENT)
    found = []
    for number in (2, 1):
        sent.hear(number, E.FAILED, outcome=K.TRANSIENT)
        found.append(sent.row.status)
    assert found == [S.SENT, S.RETRYING]


def test_the_reopened_notification_goes_on_at_the_provider_of_the_failed_message() -> None:
    sent = Sent(K.AMBIGUOUS, provider="sns", outlet="sns", pinned=True)
    sent.hear(1, E.SENT)
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT, routes={})
    assert (sent.row.provider, sent.row.outlet, sent.row.due_at) == ("twilio", "twilio", LATER + MINUTE)


def test_an_unknown_code_about_a_waiting_retry_counts_like_one_about_a_sent_message() -> None:
    waiting, taken = Sent(K.AMBIGUOUS), Sent(K.AMBIGUOUS)
    taken.hear(1, E.SENT)
    for sent in (waiting, taken):
        sent.hear(1, E.FAILED, outcome=None)
    assert waiting.row.unknown_bounce == taken.row.unknown_bounce == 1


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("later", [K.TRANSIENT, K.THROTTLED, K.PROVIDER_FAULT])
def test_a_final_failure_counts_although_a_later_attempt_was_rejected(
    later: OutcomeKind, taken: bool
) -> None:
    sent = Sent(K.AMBIGUOUS, later)
    if taken:
        sent.hear(1, E.SENT)
    sent.hear(1, E.FAILED, outcome=K.BAD_CONTENT)
    assert (sent.row.status, sent.row.reason) == (S.FAILED, Reason.RECEIPT_FAILED)


def test_an_unknown_code_counts_although_a_later_attempt_was_rejected() -> None:
    sent = Sent(K.AMBIGUOUS, K.TRANSIENT)
    sent.hear(1, E.SENT)
    sent.hear(1, E.FAILED, outcome=None)
    assert (sent.row.status, sent.row.unknown_bounce) == (S.RETRYING, 1)


def sent_again_after_an_unknown_code() -> Sent:
    """Returns a row whose first message failed with an unknown code and that was sent again since."""
    sent = Sent(K.ACCEPTED, K.ACCEPTED, status=S.SENT, unknown_bounce=1)
    sent.ranks[0] = RECEIPT_RANK[E.FAILED]
    return sent


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT, E.DELIVERED, E.OPEN])
def test_a_second_unknown_code_is_final_whatever_was_reported_in_between(event: ReceiptEvent) -> None:
    sent = sent_again_after_an_unknown_code()
    sent.hear(2, event)
    assert sent.row.unknown_bounce == 1
    if event is not E.DELIVERED:
        sent.hear(2, E.FAILED, outcome=None)
        assert (sent.row.status, sent.row.reason) == (S.FAILED, Reason.RECEIPT_FAILED)


def test_a_known_code_does_not_hide_the_unknown_code_of_an_earlier_message() -> None:
    sent = sent_again_after_an_unknown_code()
    sent.hear(2, E.FAILED, outcome=K.TRANSIENT)
    assert (sent.row.status, sent.row.unknown_bounce) == (S.RETRYING, 1)


def test_a_second_failure_report_about_a_message_keeps_the_idempotency_key() -> None:
    sent = Sent(K.AMBIGUOUS, K.ACCEPTED, status=S.SENT)
    found = []
    for outcome in (K.TRANSIENT, K.BAD_CONTENT):
        sent.hear(1, E.FAILED, outcome=outcome)
        found.append((sent.ranks[0], sent.row.bounce_floor))
    assert found == [(3, 3), (4, 3)]


@pytest.mark.parametrize("outcome", [K.TRANSIENT, K.BAD_CONTENT, None])
@pytest.mark.parametrize("kinds", [[K.AMBIGUOUS], [K.AMBIGUOUS, K.TRANSIENT]])
def test_a_failure_before_an_attempt_without_a_record_neither_reopens_nor_ends_the_doubt(
    kinds: list[OutcomeKind], outcome: OutcomeKind | None
) -> None:
    sent = Sent(*kinds, status=S.IN_DOUBT, reason=Reason.UNCONFIRMED)
    sent.row.attempts += 1  # its result could not be stored
    sent.hear(1, E.FAILED, outcome=outcome)
    assert (sent.row.status, sent.row.reason) == (S.IN_DOUBT, Reason.UNCONFIRMED)


@pytest.mark.parametrize("order", list(itertools.permutations([(2, E.FAILED), (1, E.SENT)])))
def test_after_a_requested_cancel_a_taken_message_counts_in_any_order(
    order: tuple[tuple[int, ReceiptEvent], ...],
) -> None:
    sent = Sent(K.AMBIGUOUS, K.ACCEPTED, status=S.SENT, cancel_requested=True)
    for number, event in order:
        sent.hear(number, event, outcome=K.TRANSIENT if event is E.FAILED else None)
    assert sent.row.status is S.SENT
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT)
    assert (sent.row.status, sent.row.reason) == (S.CANCELLED, Reason.OPERATOR)


kinds = st.lists(st.sampled_from([K.AMBIGUOUS, K.LOST, K.TRANSIENT]), max_size=2)
classes = st.sampled_from([None, K.TRANSIENT, K.PROVIDER_FAULT, K.BAD_CONTENT, K.BAD_RECIPIENT, K.THROTTLED])


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[OutcomeKind], Status, list[tuple[int, Receipt]], list[int]]:
    """Returns the outcomes of some attempts, the status after them, receipts about them, and an order."""
    last = draw(st.sampled_from([K.ACCEPTED, K.AMBIGUOUS, K.TRANSIENT]))
    attempts = [*draw(kinds), last]
    status = S.SENT if last is K.ACCEPTED else draw(st.sampled_from([S.RETRYING, S.FAILED, S.CANCELLED]))
    events = st.sampled_from([E.QUEUED, E.SENT, E.DELIVERED, E.FAILED, E.FAILED])
    sendable = [number for number, kind in enumerate(attempts, 1) if kind is not K.TRANSIENT]
    heard: dict[tuple[int, ReceiptEvent], Receipt] = {}
    for _ in range(draw(st.integers(1, 6)) if sendable else 0):
        number, event = draw(st.sampled_from(sendable)), draw(events)
        heard[number, event] = make_receipt(
            event, outcome=draw(classes) if event is E.FAILED else None, event_id=f"{number}/{event.value}"
        )
    receipts = [(number, receipt) for (number, _), receipt in heard.items()]
    places = list(range(len(receipts)))
    return attempts, status, receipts, draw(st.permutations(places + places))


@settings(max_examples=400)
@given(lives(), st.booleans(), st.booleans())
def test_receipts_about_all_messages_end_in_the_same_status_in_any_order(
    life: tuple[list[OutcomeKind], Status, list[tuple[int, Receipt]], list[int]], pinned: bool, cancel: bool
) -> None:
    attempts, status, receipts, order = life
    cancel = cancel and status is S.SENT
    one = Sent(*attempts, status=status, pinned=pinned, cancel_requested=cancel)
    for number, receipt in receipts:
        one.apply(number, receipt)
    other = Sent(*attempts, status=status, pinned=pinned, cancel_requested=cancel)
    for place in order:
        other.apply(*receipts[place])
    assert one.row.status is other.row.status


def test_an_unsure_attempt_stores_the_backoff_that_a_reported_failure_waits() -> None:
    row = make_row()
    lease(row, "w", MINUTE, NOW)
    claim = claim_of(row, MESSAGE, NOW)
    outcome = make_outcome(K.AMBIGUOUS)
    made = decide(claim, outcome, STEADY, ONE, elapsed_ms=0, latency_ms=0, u=0.0)
    assert settle(row, made, NOW) is not None
    assert (row.status, row.bounce_min_ms, row.bounce_max_ms) == (S.RETRYING, 10 * SECOND, 10 * SECOND)


def test_a_held_notification_is_resolved_by_a_report_that_it_was_taken() -> None:
    row = make_row()
    lease(row, "w", MINUTE, NOW)
    policy = STEADY.__class__(max_attempts=5, base_ms=SECOND, on_timeout=OnTimeout.HOLD)
    made = decide(
        claim_of(row, MESSAGE, NOW), make_outcome(K.LOST), policy, ONE, elapsed_ms=0, latency_ms=0, u=0.0
    )
    settle(row, made, NOW)
    assert (row.status, row.reason) == (S.IN_DOUBT, Reason.UNCONFIRMED)
    sent = Sent(K.LOST)
    sent.row = row
    sent.hear(1, E.QUEUED)
    assert (row.status, row.reason) == (S.SENT, None)


def test_a_wait_that_a_provider_asked_for_outlives_reports_about_an_earlier_message() -> None:
    """The second attempt is throttled elsewhere. Then the message of the first one is taken, and fails."""
    sent = Sent(K.AMBIGUOUS, K.THROTTLED, status=S.PENDING, provider="sns", outlet="sns")
    sent.row.attempts = 1
    lease(sent.row, "w", MINUTE, NOW)
    throttled = make_outcome(K.THROTTLED, retry_after_ms=HOUR)
    patient = replace(STEADY, failover_after=2)
    made = decide(
        claim_of(sent.row, MESSAGE, NOW), throttled, patient, TWO, elapsed_ms=0, latency_ms=0, u=0.0
    )
    settle(sent.row, made, NOW)
    assert (sent.row.status, sent.row.provider) == (S.RETRYING, "sns")
    sent.hear(1, E.SENT)
    sent.hear(1, E.FAILED, outcome=K.TRANSIENT)
    assert (sent.row.status, sent.row.holds) == (S.RETRYING, {"sns": NOW + HOUR})
