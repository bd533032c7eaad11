"""Tests of `silent`: notifications without a receipt for so long that their status should be looked up."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Status
from homing.testing.builders import HOUR_MS, MINUTE_MS, a_notification, a_receipt, in_doubt, sent
from homing.testing.store_suite.harness import (
    Harness,
    accept_and_claim,
    accept_and_send,
    bring_to,
    make_in_doubt,
)


class MissingReceiptTests:
    """Tests of `silent`."""

    @pytest.mark.parametrize("status", [Status.SENT, Status.IN_DOUBT])
    async def test_notifications_unchanged_since_a_time_range_are_found(
        self, harness: Harness, status: Status
    ) -> None:
        store = harness.store
        ids = []
        for _ in range(3):
            ids.append(await bring_to(store, status))
            await harness.advance(HOUR_MS)
        now = await store.now_ms()
        ages = [3, 2, 1]
        for id, age in zip(ids, ages, strict=True):
            span = {"after": now - age * HOUR_MS - 30 * MINUTE_MS, "until": now - age * HOUR_MS + MINUTE_MS}
            assert await store.silent(status, ["sendgrid"], limit=10, **span) == (("default", id),)
        found = await store.silent(status, ["acs", "sendgrid"], after=0, until=now, limit=2)
        assert found == (("default", ids[0]), ("default", ids[1]))
        assert await store.silent(status, ["sendgrid"], after=now, until=now + HOUR_MS, limit=10) == ()

    async def test_only_the_given_status_and_providers_are_found(self, harness: Harness) -> None:
        store = harness.store
        for status in Status:
            await bring_to(store, status)
        await accept_and_send(store, "m-1", a_notification(provider="acs"))
        until = await store.now_ms() + HOUR_MS
        one = await store.silent(Status.SENT, ["acs"], after=0, until=until, limit=10)
        assert len(one) == 1
        assert len(await store.silent(Status.SENT, ["acs", "sendgrid"], after=0, until=until, limit=10)) == 2
        assert await store.silent(Status.SENT, [], after=0, until=until, limit=10) == ()
        assert await store.silent(Status.SENT, ["sendgrid"], after=0, until=until, limit=0) == ()

    async def test_notifications_of_all_tenants_are_found(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store, tenant=tenant) for tenant in ("acme", "initech")]
        await store.settle([in_doubt(claim) for claim in claims])
        until = await store.now_ms() + HOUR_MS
        found = await store.silent(Status.IN_DOUBT, ["sendgrid"], after=0, until=until, limit=10)
        assert set(found) == {(claim.tenant, claim.id) for claim in claims}

    async def test_a_notification_with_a_new_receipt_is_not_found(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1")
        await harness.advance(HOUR_MS)
        half = await store.now_ms() - 30 * MINUTE_MS
        assert len(await store.silent(Status.SENT, ["sendgrid"], after=0, until=half, limit=10)) == 1
        await store.receipt([a_receipt("m-1", ReceiptEvent.SENT)])
        assert await store.silent(Status.SENT, ["sendgrid"], after=0, until=half, limit=10) == ()

    async def test_a_resolved_notification_is_not_found(self, harness: Harness) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        await store.receipt([a_receipt("m-1", ReceiptEvent.DELIVERED, notification_id=id)])
        await store.settle([sent(await accept_and_claim(store))])
        until = await store.now_ms() + HOUR_MS
        assert await store.silent(Status.IN_DOUBT, ["sendgrid"], after=0, until=until, limit=10) == ()
