"""Tests of what receipts write besides the notification: reference data and bounce counts."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.effects import DEVICE, PREFERENCE, SUPPRESSION
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Channel, Content, Message, OutcomeKind, Reason, Recipient, Status
from homing.testing.builders import HOUR_MS, a_notification, a_receipt, a_settlement, an_attempt, dead
from homing.testing.store_suite.harness import (
    Harness,
    accept_and_claim,
    accept_and_send,
    claim_all,
    claim_one,
    get_notification,
    status_of,
)

E, K = ReceiptEvent, OutcomeKind

ADA = "email:ada@example.com"


class ReceiptEffectTests:
    """Tests of the suppressions, preferences and devices that a receipt writes."""

    async def test_a_spam_report_suppresses_the_address_for_everything(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1", tenant="acme")
        await store.receipt([a_receipt("m-1", E.SPAM_REPORT)])
        entry = (await store.get_many("acme", SUPPRESSION, [f"{ADA}:*"]))[f"{ADA}:*"]
        assert entry.updated_by == "homing"
        assert entry.value == {
            "channel": "email",
            "address": "ada@example.com",
            "category": "*",
            "why": "spam_report",
        }
        assert await store.list_entries("default", SUPPRESSION) == ()

    @pytest.mark.parametrize(("all", "category"), [(False, "news"), (True, "*")])
    async def test_an_unsubscribe_applies_to_the_category_or_to_all(
        self, harness: Harness, all: bool, category: str
    ) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1", a_notification(category="news"))
        receipt = a_receipt("m-1", E.UNSUBSCRIBE, unsubscribed_from_all=all)
        assert (await store.receipt([receipt])).applied == (receipt.event_id,)
        assert await status_of(store, id) is Status.SENT
        [suppressed] = await store.list_entries("default", SUPPRESSION)
        assert suppressed.key == f"{ADA}:{category}"
        [preference] = await store.list_entries("default", PREFERENCE)
        assert (preference.key, preference.value) == (f"u-1:{category}:email", {"allowed": False})

    async def test_an_unsubscribe_of_a_recipient_without_an_id_writes_no_preference(
        self, harness: Harness
    ) -> None:
        store = harness.store
        nameless = Message(Recipient(email="ada@example.com"), Content(body="Hello"))
        await accept_and_send(store, "m-1", a_notification(message=nameless))
        await store.receipt([a_receipt("m-1", E.UNSUBSCRIBE)])
        assert await store.list_entries("default", PREFERENCE) == ()
        assert len(await store.list_entries("default", SUPPRESSION)) == 1

    async def test_a_repeated_receipt_does_not_write_reference_data_again(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.UNSUBSCRIBE)
        await store.receipt([receipt, receipt])
        await store.receipt([receipt])
        [preference] = await store.list_entries("default", PREFERENCE)
        assert preference.version == 1

    @pytest.mark.parametrize("order", [(E.DELIVERED, E.FAILED), (E.FAILED, E.DELIVERED)])
    async def test_a_dead_address_is_suppressed_despite_other_receipts(
        self, harness: Harness, order: tuple[ReceiptEvent, ...]
    ) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        for event in order:
            await store.receipt([a_receipt("m-1", event, outcome=K.DEAD_ADDRESS)])
        assert await status_of(store, id) is Status.DELIVERED
        [entry] = await store.list_entries("default", SUPPRESSION)
        assert (entry.key, entry.value["why"]) == (f"{ADA}:*", "dead_address")

    async def test_a_dead_address_is_not_retried(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=K.DEAD_ADDRESS)])
        found = await get_notification(store, id)
        assert (found.status, found.reason) == (Status.FAILED, Reason.RECEIPT_FAILED)

    async def test_if_bounces_always_fail_over_the_address_is_not_suppressed(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1", bounce_always=True)
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=K.DEAD_ADDRESS)])
        assert await store.list_entries("default", SUPPRESSION) == ()
        assert (await claim_one(store)).provider == "acs"

    async def test_a_dead_push_token_deactivates_its_device(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(channel=Channel.PUSH, provider="fcm", address="token-1")
        await accept_and_send(store, "m-1", new)
        await store.receipt([a_receipt("m-1", E.FAILED, provider="fcm", outcome=K.DEAD_ADDRESS)])
        [device] = await store.list_entries("default", DEVICE)
        assert device.value == {"token": "token-1", "active": False, "why": "dead at fcm"}

    async def test_a_dead_token_or_url_of_thousands_of_characters_is_stored(self, harness: Harness) -> None:
        store = harness.store
        long = "".join(map(str, range(1_100)))[:4_000]
        push = a_notification(channel=Channel.PUSH, provider="fcm", address=long)
        await accept_and_send(store, "m-1", push)
        await store.receipt([a_receipt("m-1", E.FAILED, provider="fcm", outcome=K.DEAD_ADDRESS)])
        [device] = await store.list_entries("default", DEVICE)
        assert device.value["token"] == long
        await accept_and_send(store, "m-2", a_notification(address=long))
        await store.receipt([a_receipt("m-2", E.FAILED, outcome=K.DEAD_ADDRESS)])
        [suppression] = await store.list_entries("default", SUPPRESSION)
        assert suppression.value["address"] == long

    async def test_a_bad_recipient_is_not_suppressed(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1")
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=K.BAD_RECIPIENT)])
        assert await store.list_entries("default", SUPPRESSION) == ()


class BounceCountTests:
    """Tests of the `bounced` counts in the roll-ups, which circuit breakers read."""

    async def test_a_failure_that_is_not_the_recipients_fault_counts_as_a_bounce(
        self, harness: Harness
    ) -> None:
        store = harness.store
        await accept_and_send(store, "m-1")
        await store.receipt([a_receipt("m-1", E.FAILED)])
        sums = {s.provider: s for s in await store.roll_ups("default", since_ms=HOUR_MS)}
        assert (sums["sendgrid"].bounced, sums["sendgrid"].retried, sums["sendgrid"].sent) == (1, 1, 1)
        assert "acs" not in sums

    async def test_a_failure_that_is_the_recipients_fault_does_not_count(self, harness: Harness) -> None:
        store = harness.store
        for kind in (K.BAD_RECIPIENT, K.DEAD_ADDRESS, K.OPTED_OUT):
            for always in (False, True):
                message = f"m-{kind}-{always}"
                await accept_and_send(store, message, bounce_always=always)
                await store.receipt([a_receipt(message, E.FAILED, outcome=kind)])
                for claim in await claim_all(store):
                    await store.settle([dead(claim)])
        assert sum(s.bounced for s in await store.roll_ups(None, since_ms=HOUR_MS)) == 0

    async def test_a_failure_that_reopens_nothing_counts_once(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        record = an_attempt(claim, message_id="m-1")
        await store.settle([a_settlement(claim, Status.FAILED, attempt=record)])
        await store.receipt([a_receipt("m-1", E.FAILED), a_receipt("m-1", E.FAILED)])
        assert sum(s.bounced for s in await store.roll_ups(None, since_ms=HOUR_MS)) == 1
