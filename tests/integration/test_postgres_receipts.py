"""Concurrent receipts and settlements: whichever commits first, no receipt is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Status
from homing.stores.postgres import PostgresStore
from homing.testing.builders import a_claim_request, a_notification, a_receipt, a_submission, in_doubt, sent
from homing.testing.store_suite.harness import count_by_status

ROUNDS, AT_ONCE = 15, 12


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two stores on one database, like two processes."""
    one, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    await one.open()
    await one.migrate()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


async def _claims(store: PostgresStore, number: int) -> tuple[Claim, ...]:
    await store.accept([a_submission(*(a_notification() for _ in range(number)))])
    return (await store.claim(a_claim_request())).claims


async def test_a_receipt_concurrent_with_its_settlement_is_applied(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = stores
    for _ in range(ROUNDS):
        claims = await _claims(one, AT_ONCE)
        settlements = [one.settle([sent(claim, claim.id)]) for claim in claims]
        receipts = [other.receipt([a_receipt(claim.id)]) for claim in claims]
        mixed = [call for pair in zip(settlements, receipts, strict=True) for call in pair]
        await asyncio.gather(*mixed)
    assert await count_by_status(one) == {Status.DELIVERED: ROUNDS * AT_ONCE}


async def test_a_receipt_concurrent_with_the_one_that_names_its_message_is_applied(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """One receipt brings the message id that the send never returned, another is about that message."""
    one, other = stores
    for _ in range(ROUNDS):
        claims = await _claims(one, AT_ONCE)
        await one.settle([in_doubt(claim) for claim in claims])
        naming = [
            one.receipt([a_receipt(f"m-{c.id}", ReceiptEvent.SENT, notification_id=c.id, attempt=1)])
            for c in claims
        ]
        about = [other.receipt([a_receipt(f"m-{claim.id}", ReceiptEvent.DELIVERED)]) for claim in claims]
        await asyncio.gather(*naming, *about)
    assert await count_by_status(one) == {Status.DELIVERED: ROUNDS * AT_ONCE}


async def test_an_event_received_twice_at_once_counts_once(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = stores
    claims = await _claims(one, 20)
    await one.settle([sent(claim, claim.id) for claim in claims])
    clicks = [a_receipt(claim.id, ReceiptEvent.CLICK) for claim in claims]
    results = await asyncio.gather(*(store.receipt(clicks) for store in (one, other, one, other)))
    assert sorted(len(result.applied) for result in results) == [0, 0, 0, 20]
    for claim in claims:
        history = await one.get("default", claim.id)
        assert history is not None
        assert history.notification.engagement == {"click": 1}
