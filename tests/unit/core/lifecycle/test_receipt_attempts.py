"""Which attempt a receipt belongs to, and what it writes into the reference data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.effects import has_effects, receipt_effects
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipt_decision import attempt_of, receipt_context, same_message
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Channel, OutcomeKind, Recipient
from support.core_builders import NOW, make_receipt, make_row

E = ReceiptEvent


def made(number: int, message_id: str | None = None, provider: str = "twilio") -> AttemptRecord:
    return AttemptRecord(
        number=number,
        provider=provider,
        outcome=OutcomeKind.AMBIGUOUS,
        started_at=NOW,
        latency_ms=1,
        worker="w",
        provider_message_id=message_id,
    )


def about(message_id: str = "SM9", id: str | None = "n-1", attempt: int = 0, **changes: Any) -> Any:
    return make_receipt(
        E.DELIVERED, provider_message_id=message_id, notification_id=id, attempt=attempt, **changes
    )


@pytest.mark.parametrize(
    ("receipt", "attempts", "index"),
    [
        (about(attempt=1), [made(1), made(2)], 0),
        (about(attempt=2), [made(1), made(2, "SM2")], 1),
        (about(attempt=3), [made(1), made(2)], None),
        (about("SM1", attempt=3), [made(1, "SM1"), made(2)], 0),
        (about("SM1"), [made(1, "SM1"), made(2)], 0),
        (about(), [made(1), made(2), made(3, "SM3")], 1),
        (about(), [made(1, "SM1"), made(2, "SM2")], 1),
        (about(), [made(1, provider="sns")], None),
        (about(attempt=1), [made(1, provider="sns")], None),
        (about(), [], None),
        (about("SM1", id=None), [made(1, "SM1"), made(2, "SM1"), made(3)], 1),
        (about(id=None), [made(1), made(2)], None),
        (about(id=None, attempt=1), [made(1)], None),
    ],
)
def test_the_attempt_is_found_by_number_then_by_message_id_then_among_attempts_without_an_id(
    receipt: Any, attempts: list[AttemptRecord], index: int | None
) -> None:
    assert attempt_of(receipt, attempts) == index


attempts_made = st.lists(
    st.tuples(st.sampled_from([None, "SM1", "SM2"]), st.sampled_from(["twilio", "sns"])), max_size=5
).map(lambda drawn: [made(n, message, provider) for n, (message, provider) in enumerate(drawn, 1)])


@given(
    attempts_made,
    st.sampled_from(["SM1", "SM2", "SM9"]),
    st.sampled_from([None, "n-1"]),
    st.integers(0, 6),
)
def test_the_attempt_always_belongs_to_the_receipt_s_provider(
    attempts: list[AttemptRecord], message_id: str, id: str | None, attempt: int
) -> None:
    found = attempt_of(about(message_id, id, attempt), attempts)
    if found is not None:
        assert attempts[found].provider == "twilio"
        if id is None:
            assert attempts[found].provider_message_id == message_id


def test_attempts_with_the_same_message_id_share_its_receipts() -> None:
    attempts = [made(1, "SM1"), made(2), made(3, "SM1")]
    assert same_message(attempts, 0) == [0, 2]
    assert same_message(attempts, 1) == [1]
    standing = receipt_context(make_row(), attempts, [3, 0, 1], 0, NOW)
    assert (standing.rank, standing.newest) == (3, True)
    assert not receipt_context(make_row(), attempts, [3, 0, 1], 1, NOW).newest


ADA = Recipient(id="ada")


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT, E.DELIVERED, E.FAILED, E.OPEN, E.CLICK])
def test_most_events_write_nothing(event: ReceiptEvent) -> None:
    receipt = make_receipt(event, outcome=OutcomeKind.BAD_RECIPIENT)
    assert not has_effects(receipt)
    assert receipt_effects(make_row(), ADA, receipt) == ()


@pytest.mark.parametrize(
    ("channel", "kind", "key"),
    [(Channel.SMS, "suppression", "sms:+15550100:*"), (Channel.PUSH, "device", "+15550100")],
)
def test_a_dead_address_is_stored_for_its_channel(channel: Channel, kind: str, key: str) -> None:
    receipt = make_receipt(E.FAILED, outcome=OutcomeKind.DEAD_ADDRESS)
    [put] = receipt_effects(make_row(channel=channel), ADA, receipt)
    assert (put.tenant, put.kind, put.key) == ("acme", kind, key)


def test_an_address_that_will_be_tried_elsewhere_is_not_dead_yet() -> None:
    receipt = make_receipt(E.FAILED, outcome=OutcomeKind.DEAD_ADDRESS)
    assert has_effects(receipt)
    assert receipt_effects(make_row(bounce_always=True), ADA, receipt) == ()
    assert receipt_effects(make_row(), ADA, replace(receipt, always_failover=True)) == ()
    assert receipt_effects(make_row(bounce_always=False), ADA, replace(receipt, always_failover=True)) != ()


def test_an_unsubscribe_is_stored_for_the_address_and_for_the_recipient() -> None:
    receipt = make_receipt(E.UNSUBSCRIBE)
    suppressed, preference = receipt_effects(make_row(category="news"), ADA, receipt)
    assert (suppressed.key, suppressed.value["why"]) == ("sms:+15550100:news", "unsubscribe")
    assert (preference.key, preference.value) == ("ada:news:sms", {"allowed": False})
    [alone] = receipt_effects(make_row(category="news"), Recipient(), receipt)
    assert alone == suppressed
