"""Tests of receipts that carry a notification id and so need no message id to find their attempt."""

from __future__ import annotations

import pytest

from homing.core.model import ReceiptEvent, Status
from homing.testing.builders import (
    a_receipt,
    an_id,
    in_doubt,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.steps import (
    claim_all,
    claim_one,
    doubt,
    see,
    send,
    status_of,
    take,
)

E = ReceiptEvent


class NamedReceiptTests:
    """Tests of `receipt` with `notification_id`, for attempts whose message id was never returned."""

    @pytest.mark.parametrize("attempt", [0, 1])
    @pytest.mark.parametrize(
        ("event", "status"),
        [(E.QUEUED, Status.SENT), (E.DELIVERED, Status.DELIVERED), (E.FAILED, Status.RETRYING)],
    )
    async def test_it_resolves_a_doubt_that_has_no_message_id(
        self, harness: Harness, event: ReceiptEvent, status: Status, attempt: int
    ) -> None:
        store = harness.store
        id = await doubt(store)
        receipt = a_receipt("m-1", event, notification_id=id, attempt=attempt)
        assert (await store.receipt([receipt])).applied == (receipt.event_id,)
        found = await see(store, id)
        assert (found.status, found.provider_message_ids) == (status, ("m-1",))

    async def test_the_message_id_that_it_brings_is_known_from_then_on(self, harness: Harness) -> None:
        store = harness.store
        id = await doubt(store)
        await store.receipt([a_receipt("m-1", E.SENT, notification_id=id, attempt=1)])
        plain = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([plain])).applied == (plain.event_id,)
        assert await status_of(store, id) is Status.DELIVERED

    async def test_what_was_kept_for_that_message_is_applied_with_it(self, harness: Harness) -> None:
        store = harness.store
        id = await doubt(store)
        early = a_receipt("m-1", E.DELIVERED)
        assert (await store.receipt([early])).orphaned == (early.event_id,)
        await store.receipt([a_receipt("m-1", E.QUEUED, notification_id=id)])
        assert await status_of(store, id) is Status.DELIVERED
        again = await (await harness.second()).receipt([early])
        assert again.unchanged == (early.event_id,)

    async def test_a_message_id_that_came_back_is_never_overwritten(self, harness: Harness) -> None:
        store = harness.store
        id = await send(store, "m-1")
        await store.receipt([a_receipt("other", E.DELIVERED, notification_id=id, attempt=1)])
        found = await see(store, id)
        assert (found.status, found.provider_message_ids) == (Status.DELIVERED, ("m-1",))

    async def test_the_attempt_that_it_names_is_the_one(self, harness: Harness) -> None:
        """A failure of the first attempt reopens nothing. A delivery of the first attempt ends the wait."""
        store = harness.store
        first = await take(store)
        await store.settle([retry_in(first, 0)])
        await store.settle([sent(await claim_one(store), "m-2")])
        failed = a_receipt("m-1", E.FAILED, notification_id=first.id, attempt=1)
        await store.receipt([failed])
        found = await see(store, first.id)
        assert (found.status, found.provider_message_ids) == (Status.SENT, ("m-1", "m-2"))
        await store.receipt([a_receipt("m-1", E.DELIVERED, notification_id=first.id, attempt=1)])
        assert await status_of(store, first.id) is Status.DELIVERED

    async def test_without_a_number_the_message_id_tells_the_attempt(self, harness: Harness) -> None:
        store = harness.store
        first = await take(store)
        await store.settle([retry_in(first, 0, message_id="m-1")])
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-1", E.FAILED, notification_id=first.id)])
        assert await status_of(store, first.id) is Status.SENT

    async def test_without_a_number_an_unknown_message_is_of_the_newest_that_has_none(
        self, harness: Harness
    ) -> None:
        store = harness.store
        first = await take(store)
        await store.settle([retry_in(first, 0)])
        await store.settle([in_doubt(await claim_one(store))])
        await store.receipt([a_receipt("m-2", E.SENT, notification_id=first.id)])
        await store.receipt([a_receipt("m-1", E.SENT, notification_id=first.id)])
        found = await see(store, first.id)
        assert (found.status, found.provider_message_ids) == (Status.SENT, ("m-1", "m-2"))

    async def test_the_provider_must_be_the_attempt_s(self, harness: Harness) -> None:
        store = harness.store
        id = await doubt(store)
        for attempt in (0, 1):
            receipt = a_receipt("m-1", E.DELIVERED, provider="acs", notification_id=id, attempt=attempt)
            assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, id) is Status.IN_DOUBT

    async def test_one_about_an_unknown_notification_is_kept(self, harness: Harness) -> None:
        store = harness.store
        id = await send(store, "m-1")
        receipt = a_receipt("m-1", E.DELIVERED, notification_id=an_id(), attempt=1)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, id) is Status.SENT

    @pytest.mark.parametrize("attempt", [0, 1])
    async def test_one_that_comes_early_is_applied_by_the_settle(
        self, harness: Harness, attempt: int
    ) -> None:
        store = harness.store
        claim = await take(store)
        receipt = a_receipt("m-1", E.DELIVERED, notification_id=claim.id, attempt=attempt)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        await store.settle([in_doubt(claim)])
        found = await see(store, claim.id)
        assert (found.status, found.provider_message_ids) == (Status.DELIVERED, ("m-1",))

    async def test_one_of_an_attempt_that_is_not_settled_yet_waits_for_it(self, harness: Harness) -> None:
        store = harness.store
        first = await take(store)
        await store.settle([retry_in(first, 0)])
        second = await claim_one(store)
        await store.receipt([a_receipt("m-2", E.FAILED, notification_id=first.id, attempt=2)])
        await store.settle([in_doubt(second)])
        assert await status_of(store, first.id) is Status.RETRYING
        assert (await claim_one(store)).provider == "acs"

    async def test_an_arrival_of_an_ambiguous_attempt_keeps_it_from_being_sent_again(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await take(store)
        await store.settle([retry_in(claim, 0)])
        await store.receipt([a_receipt("m-1", E.DELIVERED, notification_id=claim.id, attempt=1)])
        assert await claim_all(store) == ()

    async def test_one_message_of_two_attempts_is_one_message(self, harness: Harness) -> None:
        """A provider with idempotency keys returns one message for both attempts.

        Its failure counts for the newest.
        """
        store = harness.store
        claim = await take(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        await store.settle([sent(await claim_one(store), "m-1")])
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert await status_of(store, claim.id) is Status.RETRYING
        await store.settle([sent(await claim_one(store), "m-3")])
        repeat = a_receipt("m-1", E.FAILED)
        assert (await store.receipt([repeat])).unchanged == (repeat.event_id,)
