"""Tests of how a receipt finds its attempt, and of receipts that arrive early, repeatedly or in any order."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.effects import suppression_key
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.ports.stores import Backend
from homing.testing.builders import (
    FAILURE_CLASSES,
    a_receipt,
    a_settlement,
    an_attempt,
    an_id,
    dead,
    in_doubt,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept_and_claim,
    accept_and_send,
    claim_all,
    claim_one,
    count_by_status,
    get_notification,
    make_in_doubt,
    status_of,
)

E = ReceiptEvent


class NamedReceiptTests:
    """Tests of `receipt` with `notification_id`, mostly for attempts without a message id."""

    @pytest.mark.parametrize("attempt", [0, 1])
    @pytest.mark.parametrize(
        ("event", "status"),
        [(E.QUEUED, Status.SENT), (E.DELIVERED, Status.DELIVERED), (E.FAILED, Status.RETRYING)],
    )
    async def test_a_receipt_resolves_an_in_doubt_attempt_without_a_message_id(
        self, harness: Harness, event: ReceiptEvent, status: Status, attempt: int
    ) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        receipt = a_receipt("m-1", event, notification_id=id, attempt=attempt)
        assert (await store.receipt([receipt])).applied == (receipt.event_id,)
        found = await get_notification(store, id)
        assert (found.status, found.provider_message_ids) == (status, ("m-1",))

    async def test_the_message_id_of_a_receipt_is_stored_with_the_attempt(self, harness: Harness) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        await store.receipt([a_receipt("m-1", E.SENT, notification_id=id, attempt=1)])
        plain = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([plain])).applied == (plain.event_id,)
        assert await status_of(store, id) is Status.DELIVERED

    async def test_earlier_receipts_for_that_message_id_are_applied_too(self, harness: Harness) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        early = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([early])).orphaned == (early.event_id,)
        await store.receipt([a_receipt("m-1", E.QUEUED, notification_id=id)])
        assert await status_of(store, id) is Status.DELIVERED
        again = await (await harness.second()).receipt([early])
        assert again.unchanged == (early.event_id,)

    async def test_a_message_id_from_the_provider_is_never_overwritten(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        await store.receipt([a_receipt("other", E.DELIVERED, notification_id=id, attempt=1)])
        found = await get_notification(store, id)
        assert (found.status, found.provider_message_ids) == (Status.DELIVERED, ("m-1",))

    async def test_a_receipt_with_an_attempt_number_applies_to_that_attempt(self, harness: Harness) -> None:
        """Once a second attempt was sent, a failure of the first reopens nothing, but its delivery counts."""
        store = harness.store
        first = await accept_and_claim(store)
        await store.settle([retry_in(first, 0)])
        await store.settle([sent(await claim_one(store), "m-2")])
        failed = a_receipt("m-1", E.FAILED, notification_id=first.id, attempt=1)
        await store.receipt([failed])
        found = await get_notification(store, first.id)
        assert (found.status, found.provider_message_ids) == (Status.SENT, ("m-1", "m-2"))
        await store.receipt([a_receipt("m-1", E.DELIVERED, notification_id=first.id, attempt=1)])
        assert await status_of(store, first.id) is Status.DELIVERED

    async def test_without_an_attempt_number_the_message_id_identifies_the_attempt(
        self, harness: Harness
    ) -> None:
        store = harness.store
        first = await accept_and_claim(store)
        await store.settle([retry_in(first, 0, message_id="m-1")])
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-1", E.FAILED, notification_id=first.id)])
        assert await status_of(store, first.id) is Status.SENT

    async def test_an_unknown_message_belongs_to_the_newest_attempt_without_one(
        self, harness: Harness
    ) -> None:
        store = harness.store
        first = await accept_and_claim(store)
        await store.settle([retry_in(first, 0)])
        await store.settle([in_doubt(await claim_one(store))])
        await store.receipt([a_receipt("m-2", E.SENT, notification_id=first.id)])
        await store.receipt([a_receipt("m-1", E.SENT, notification_id=first.id)])
        found = await get_notification(store, first.id)
        assert (found.status, found.provider_message_ids) == (Status.SENT, ("m-1", "m-2"))

    async def test_the_receipt_must_come_from_the_provider_of_the_attempt(self, harness: Harness) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        for attempt in (0, 1):
            receipt = a_receipt("m-1", E.DELIVERED, provider="acs", notification_id=id, attempt=attempt)
            assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, id) is Status.IN_DOUBT

    async def test_a_receipt_for_an_unknown_notification_is_kept(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.DELIVERED, notification_id=an_id(), attempt=1)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, id) is Status.SENT

    @pytest.mark.parametrize("attempt", [0, 1])
    async def test_a_receipt_before_the_settlement_is_applied_by_settle(
        self, harness: Harness, attempt: int
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        receipt = a_receipt("m-1", E.DELIVERED, notification_id=claim.id, attempt=attempt)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        await store.settle([in_doubt(claim)])
        found = await get_notification(store, claim.id)
        assert (found.status, found.provider_message_ids) == (Status.DELIVERED, ("m-1",))

    async def test_a_receipt_for_an_unsettled_attempt_waits_for_its_settlement(
        self, harness: Harness
    ) -> None:
        store = harness.store
        first = await accept_and_claim(store)
        await store.settle([retry_in(first, 0)])
        second = await claim_one(store)
        await store.receipt([a_receipt("m-2", E.FAILED, notification_id=first.id, attempt=2)])
        await store.settle([in_doubt(second)])
        assert await status_of(store, first.id) is Status.RETRYING
        assert (await claim_one(store)).provider == "acs"

    async def test_a_delivery_of_an_ambiguous_attempt_prevents_another_send(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0)])
        await store.receipt([a_receipt("m-1", E.DELIVERED, notification_id=claim.id, attempt=1)])
        assert await claim_all(store) == ()

    async def test_two_attempts_may_share_one_message(self, harness: Harness) -> None:
        """A provider with idempotency keys returns the same message id for both attempts.

        A reported failure of that message counts for the newest attempt.
        """
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        await store.settle([sent(await claim_one(store), "m-1")])
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert await status_of(store, claim.id) is Status.RETRYING
        await store.settle([sent(await claim_one(store), "m-3")])
        repeat = a_receipt("m-1", E.FAILED)
        assert (await store.receipt([repeat])).unchanged == (repeat.event_id,)


class ReceiptOrderTests:
    """Tests of receipts that arrive before the settlement, and of the order of receipts."""

    async def test_an_early_receipt_is_kept_and_applied_by_settle(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        receipt = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, claim.id) is Status.SENDING
        assert (await store.settle([sent(claim, "m-1")])).applied == (claim.id,)
        assert await status_of(store, claim.id) is Status.DELIVERED
        assert await count_by_status(store) == {Status.DELIVERED: 1}
        history = await store.get("default", claim.id)
        assert history is not None
        assert [cause.name for cause in history.causes] == ["delivered"]

    async def test_a_receipt_at_the_same_time_as_its_settlement_is_applied(self, harness: Harness) -> None:
        store, other = harness.store, await harness.second()
        for _ in range(3):
            claims = [await accept_and_claim(store) for _ in range(6)]
            settlements = [store.settle([sent(claim, claim.id)]) for claim in claims]
            receipts = [other.receipt([a_receipt(claim.id)]) for claim in claims]
            mixed = [call for pair in zip(settlements, receipts, strict=True) for call in pair]
            await asyncio.gather(*mixed)
        assert await count_by_status(store) == {Status.DELIVERED: 18}

    async def test_a_receipt_at_the_same_time_as_the_one_that_names_its_message_is_applied(
        self, harness: Harness
    ) -> None:
        """One receipt brings the message id that the send never returned, another is about that message."""
        store, other = harness.store, await harness.second()
        for _ in range(3):
            ids = [await make_in_doubt(store) for _ in range(6)]
            naming = [
                store.receipt([a_receipt(f"m-{id}", E.SENT, notification_id=id, attempt=1)]) for id in ids
            ]
            about = [other.receipt([a_receipt(f"m-{id}", E.DELIVERED)]) for id in ids]
            await asyncio.gather(*naming, *about)
        assert await count_by_status(store) == {Status.DELIVERED: 18}

    async def test_an_early_failure_reopens_the_row_right_after_settle(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.receipt([a_receipt("m-1", E.FAILED)])
        await store.settle([sent(claim, "m-1")])
        assert await status_of(store, claim.id) is Status.RETRYING
        assert (await claim_one(store)).provider == "acs"

    async def test_settle_returns_the_failures_that_were_reported_before_it(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        result = await store.receipt([a_receipt("m-1", E.FAILED, error_code="30005")])
        assert result.failures == ()
        [failure] = (await store.settle([sent(claim, "m-1")])).failures
        assert (failure.id, failure.provider, failure.error_code) == (claim.id, "sendgrid", "30005")
        assert (failure.status, failure.next_provider, failure.delay_ms) == (Status.RETRYING, "acs", 0)

    async def test_reference_data_of_an_early_receipt_is_written_by_settle(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.receipt([a_receipt("m-1", E.SPAM_REPORT)])
        key = suppression_key(claim.channel, claim.address, "*")
        assert await store.get_many("default", "suppression", [key]) == {}
        await store.settle([sent(claim, "m-1")])
        assert key in await store.get_many("default", "suppression", [key])

    async def test_a_repeated_early_receipt_is_applied_once(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        receipt = a_receipt("m-1", E.OPEN)
        await store.receipt([receipt])
        assert (await store.receipt([receipt])).unchanged == (receipt.event_id,)
        await store.settle([sent(claim, "m-1")])
        assert (await store.receipt([receipt])).unchanged == (receipt.event_id,)
        assert (await get_notification(store, claim.id)).engagement == {"open": 1}

    async def test_a_receipt_for_an_earlier_attempt_waits_while_the_next_is_in_flight(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        second = await claim_one(store)
        receipt = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, claim.id) is Status.SENDING
        await store.settle([dead(second)])
        assert await status_of(store, claim.id) is Status.DELIVERED

    @pytest.mark.parametrize("kind", FAILURE_CLASSES)
    async def test_a_failure_of_any_class_has_the_same_result_early_and_late(
        self, harness: Harness, kind: OutcomeKind | None
    ) -> None:
        store = harness.store
        early, late = await accept_and_claim(store), await accept_and_claim(store)
        receipt = a_receipt("m-early", E.FAILED, outcome=kind)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        await store.settle([sent(early, "m-early"), sent(late, "m-late")])
        await store.receipt([a_receipt("m-late", E.FAILED, outcome=kind)])
        one, other = await get_notification(store, early.id), await get_notification(store, late.id)
        assert (one.status, one.reason, one.provider) == (other.status, other.reason, other.provider)

    @pytest.mark.parametrize("seed", range(40))
    @pytest.mark.parametrize("start", [Status.SENT, Status.IN_DOUBT, Status.FAILED])
    async def test_order_and_repetition_of_receipts_do_not_change_the_final_status(
        self, harness: Harness, start: Status, seed: int
    ) -> None:
        """The same events about one message are shuffled, repeated, and partly sent before the settlement."""
        store, rng = harness.store, random.Random(seed)
        events = [
            (event, rng.choice(FAILURE_CLASSES))
            for event in rng.choices([*E, E.DELIVERED, E.FAILED, E.FAILED], k=rng.randint(1, 5))
        ]
        always = rng.random() < 0.5
        endings = set()
        for way in range(4):
            endings.add(
                await _apply_in_some_order(store, start, events, always, random.Random(100 * seed + way), way)
            )
        assert len(endings) == 1, f"{events} ended as {endings}"


async def _apply_in_some_order(
    store: Backend,
    start: Status,
    events: list[tuple[ReceiptEvent, OutcomeKind | None]],
    always: bool,
    rng: random.Random,
    way: int,
) -> tuple[Status, Reason | None, int, tuple[tuple[str, int], ...]]:
    """Sends receipts of these events in the order given by `way` and `rng`. Returns the final state."""
    message_id = an_id()
    receipts = [
        a_receipt(message_id, event, event_id=f"{message_id}-{number}", outcome=outcome)
        for number, (event, outcome) in enumerate(events)
    ]
    if way:
        receipts += rng.choices(receipts, k=rng.randint(0, 4))
        rng.shuffle(receipts)
    early = rng.randint(0, len(receipts)) if way > 1 else 0
    claim = await accept_and_claim(store)
    await store.receipt(receipts[:early])
    match start:
        case Status.SENT:
            settlement = sent(claim, message_id, bounce_always=always)
        case Status.IN_DOUBT:
            settlement = replace(in_doubt(claim, message_id), bounce_always=always)
        case _:
            record = an_attempt(claim, message_id=message_id)
            settlement = a_settlement(
                claim, start, attempt=record, reason=Reason.BAD_CONTENT, bounce_always=always
            )
    await store.settle([settlement])
    for receipt in receipts[early:]:
        await store.receipt([receipt])
    found = await get_notification(store, claim.id)
    await _leave_nothing_due(store, claim.id)
    return found.status, found.reason, found.attempt_count, tuple(sorted(found.engagement.items()))


async def _leave_nothing_due(store: Backend, id: str) -> None:
    for claim in await claim_all(store):
        assert claim.id == id
        await store.settle([dead(claim)])
