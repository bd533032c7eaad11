"""Tests that events are stored with the change they describe, in order, and delivered at least once."""

from __future__ import annotations

import asyncio

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, STATUS_CHANGED, Event
from homing.core.notifications import Reason, Status
from homing.core.ports.stores import Backend
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_notification,
    a_receipt,
    a_submission,
    an_id,
    dead,
    postponed,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept,
    accept_and_claim,
    accept_one,
    claim_one,
    close_to,
)


class EventTests:
    """Tests of `subscribe`, `emit`, `outbox` and `published`."""

    async def test_events_without_a_subscriber_are_not_stored(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        assert await _publish_events(store) == []
        store.subscribe([NOTIFICATION_FAILED])
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        assert [event.name for event in await _publish_events(store)] == [NOTIFICATION_FAILED]

    async def test_every_status_change_is_published_in_order(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0)])
        await store.settle([sent(await claim_one(store), "m-1")])
        await store.receipt([a_receipt("m-1")])
        events = await _publish_events(store)
        assert [(e.payload["statusBefore"], e.payload["status"]) for e in events] == [
            (None, "pending"),
            ("sending", "retrying"),
            ("sending", "sent"),
            ("sent", "delivered"),
        ]
        assert {(e.name, e.tenant, e.notification_id) for e in events} == {
            (STATUS_CHANGED, "default", claim.id)
        }
        assert [e.payload["attemptCount"] for e in events] == [0, 1, 2, 2]
        assert len({e.id for e in events}) == 4
        assert close_to(events[-1].at, await store.now_ms())

    async def test_events_are_in_commit_order(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        news = [a_notification() for _ in range(3)]
        for new in reversed(news):
            await accept(store, new)
        assert [e.notification_id for e in await _publish_events(store)] == [new.id for new in reversed(news)]

    async def test_a_dead_letter_raises_an_alert_with_its_attempts(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([NOTIFICATION_FAILED])
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, provider="acs", error_code="503")])
        await store.settle([dead(await claim_one(store), error="gone", error_code="550")])
        [event] = await _publish_events(store)
        assert event.notification_id == claim.id
        payload = event.payload
        assert (payload["attemptCount"], payload["reason"]) == (2, Reason.RETRIES_EXHAUSTED.value)
        assert (payload["userId"], payload["lastError"]) == ("u-1", "gone")
        assert [(a["provider"], a["error"]) for a in payload["providerAttempts"]] == [
            ("sendgrid", "503"),
            ("acs", "550"),
        ]

    async def test_a_stale_settlement_publishes_nothing(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED, NOTIFICATION_FAILED])
        claim = await accept_and_claim(store)
        await store.settle([sent(claim)])
        await _publish_events(store)
        await store.settle([dead(claim)])
        assert await _publish_events(store) == []

    async def test_a_repeated_request_publishes_nothing(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        for _ in range(2):
            await store.accept([a_submission(key="k")])
        assert len(await _publish_events(store)) == 1

    async def test_a_change_without_a_new_status_publishes_nothing(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        claim = await accept_and_claim(store)
        await store.settle([sent(claim, "m-1")])
        await _publish_events(store)
        await store.receipt([a_receipt("m-1"), a_receipt("m-1")])
        assert len(await _publish_events(store)) == 1

    async def test_commands_publish_events(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        claim = await accept_and_claim(store)
        await store.settle([postponed(claim, HOUR_MS)])
        await _publish_events(store)
        await store.amend("default", [claim.id], Command(name=CommandName.CANCEL, who="ada"))
        [event] = await _publish_events(store)
        assert event.payload["status"] == Status.CANCELLED.value

    async def test_the_event_of_an_early_receipt_follows_the_settlement(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        claim = await accept_and_claim(store)
        await store.receipt([a_receipt("m-1")])
        await store.settle([sent(claim, "m-1")])
        assert [e.payload["status"] for e in await _publish_events(store)] == ["pending", "sent", "delivered"]

    async def test_emitted_events_are_published_unchanged(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([ALERT])
        now = await store.now_ms()
        alerts = [_alert(now, number) for number in range(3)]
        await store.emit(alerts)
        assert await _publish_events(store) == alerts

    async def test_an_event_emitted_twice_is_published_once(self, harness: Harness) -> None:
        """A caller that lost the response may repeat the call."""
        store = harness.store
        store.subscribe([ALERT])
        alert = _alert(await store.now_ms(), 1)
        await store.emit([alert])
        await store.emit([alert])
        assert await _publish_events(store) == [alert]

    async def test_the_outbox_returns_the_oldest_events_up_to_its_limit(self, harness: Harness) -> None:
        store = harness.store
        alerts = await _alerts(store, 5)
        first = await store.outbox("relay-1", 2, HOUR_MS)
        second = await store.outbox("relay-2", 2, HOUR_MS)
        rest = await store.outbox("relay-3", 2, HOUR_MS)
        assert [*first, *second, *rest] == alerts
        assert [len(first), len(second), len(rest)] == [2, 2, 1]

    async def test_two_relays_never_lease_the_same_event(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        alerts = await _alerts(harness.store, 30)
        batches = await asyncio.gather(*(stores[n % 2].outbox(f"relay-{n}", 10, HOUR_MS) for n in range(4)))
        ids = [event.id for batch in batches for event in batch]
        assert sorted(ids) == sorted(alert.id for alert in alerts)

    async def test_an_unpublished_event_is_leased_again(self, harness: Harness) -> None:
        store = harness.store
        alerts = await _alerts(store, 3)
        taken = await store.outbox("relay-1", 3, MINUTE_MS)
        await store.published([taken[1].id])
        assert await store.outbox("relay-2", 3, MINUTE_MS) == ()
        await harness.advance(HOUR_MS)
        again = await store.outbox("relay-2", 3, MINUTE_MS)
        assert list(again) == [alerts[0], alerts[2]]

    async def test_a_published_event_is_never_returned_again(self, harness: Harness) -> None:
        store = harness.store
        await _alerts(store, 3)
        taken = await store.outbox("relay", 10, MINUTE_MS)
        await store.published([event.id for event in taken])
        await store.published([taken[0].id, "nothing"])
        await harness.advance(DAY_MS)
        assert await store.outbox("relay", 10, MINUTE_MS) == ()

    async def test_changing_a_returned_event_does_not_change_the_outbox(self, harness: Harness) -> None:
        store = harness.store
        [alert] = await _alerts(store, 1)
        alert.payload["number"] = 99
        [taken] = await store.outbox("relay", 1, MINUTE_MS)
        assert taken.payload["number"] == 0
        taken.payload.clear()
        await harness.advance(HOUR_MS)
        [again] = await store.outbox("relay", 1, MINUTE_MS)
        assert again.payload["number"] == 0

    async def test_all_events_of_a_batch_are_published(self, harness: Harness) -> None:
        store = harness.store
        store.subscribe([STATUS_CHANGED])
        await accept(store, *(a_notification() for _ in range(20)))
        await accept_one(store, tenant="b")
        events = await _publish_events(store)
        assert [e.tenant for e in events] == ["default"] * 20 + ["b"]


def _alert(at: int, number: int) -> Event:
    return Event(id=an_id(), name=ALERT, tenant="default", at=at, payload={"number": number})


async def _alerts(store: Backend, number: int) -> list[Event]:
    store.subscribe([ALERT])
    now = await store.now_ms()
    alerts = [_alert(now, n) for n in range(number)]
    await store.emit(alerts)
    return alerts


async def _publish_events(store: Backend) -> list[Event]:
    """Leases and publishes all events in the outbox, and returns them."""
    events = await store.outbox("relay", 1000, DAY_MS)
    await store.published([event.id for event in events])
    return list(events)
