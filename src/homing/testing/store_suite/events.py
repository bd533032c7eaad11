"""Tests that events are stored with the change they describe, in order, and delivered at least once."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, STATUS_CHANGED, Event
from homing.core.notifications import Reason, Status
from homing.core.ports.stores import Backend, Retention, SinkRegistration, relay_task
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
    subscribe,
)


class EventTests:
    """Tests of the registered sinks and of `emit`, `outbox` and `published`."""

    async def test_events_without_a_subscriber_are_not_stored(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        assert await _publish_events(store) == []
        await subscribe(store, NOTIFICATION_FAILED)
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        assert [event.name for event in await _publish_events(store)] == [NOTIFICATION_FAILED]

    async def test_every_status_change_is_published_in_order(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
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
        await subscribe(store, STATUS_CHANGED)
        news = [a_notification() for _ in range(3)]
        for new in reversed(news):
            await accept(store, new)
        assert [e.notification_id for e in await _publish_events(store)] == [new.id for new in reversed(news)]

    async def test_a_dead_letter_raises_an_alert_with_its_attempts(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, NOTIFICATION_FAILED)
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

    async def test_a_request_that_is_a_dead_letter_from_the_start_raises_an_alert(
        self, harness: Harness
    ) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED, NOTIFICATION_FAILED)
        refused = replace(a_notification(provider="", outlet=""), refused=True, last_error="no such channel")
        await store.accept([a_submission(a_notification(), refused, a_notification())])
        events = await _publish_events(store)
        [failed] = [event for event in events if event.name == NOTIFICATION_FAILED]
        assert (failed.notification_id, failed.payload["lastError"]) == (refused.id, "no such channel")

    async def test_a_stale_settlement_publishes_nothing(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED, NOTIFICATION_FAILED)
        claim = await accept_and_claim(store)
        await store.settle([sent(claim)])
        await _publish_events(store)
        await store.settle([dead(claim)])
        assert await _publish_events(store) == []

    async def test_a_repeated_request_publishes_nothing(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
        for _ in range(2):
            await store.accept([a_submission(key="k")])
        assert len(await _publish_events(store)) == 1

    async def test_a_change_without_a_new_status_publishes_nothing(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
        claim = await accept_and_claim(store)
        await store.settle([sent(claim, "m-1")])
        await _publish_events(store)
        await store.receipt([a_receipt("m-1"), a_receipt("m-1")])
        assert len(await _publish_events(store)) == 1

    async def test_commands_publish_events(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
        claim = await accept_and_claim(store)
        await store.settle([postponed(claim, HOUR_MS)])
        await _publish_events(store)
        await store.amend("default", [claim.id], Command(name=CommandName.CANCEL, who="ada"))
        [event] = await _publish_events(store)
        assert event.payload["status"] == Status.CANCELLED.value

    async def test_the_event_of_an_early_receipt_follows_the_settlement(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
        claim = await accept_and_claim(store)
        await store.receipt([a_receipt("m-1")])
        await store.settle([sent(claim, "m-1")])
        assert [e.payload["status"] for e in await _publish_events(store)] == ["pending", "sent", "delivered"]

    async def test_emitted_events_are_published_unchanged(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, ALERT)
        now = await store.now_ms()
        alerts = [_alert(now, number) for number in range(3)]
        await store.emit(alerts)
        assert await _publish_events(store) == alerts

    async def test_an_event_emitted_twice_is_published_once(self, harness: Harness) -> None:
        """A caller that lost the response may repeat the call."""
        store = harness.store
        await subscribe(store, ALERT)
        alert = _alert(await store.now_ms(), 1)
        await store.emit([alert])
        await store.emit([alert])
        assert await _publish_events(store) == [alert]

    async def test_the_outbox_returns_the_oldest_events_up_to_its_limit(self, harness: Harness) -> None:
        store = harness.store
        alerts = await _alerts(store, 5)
        taken: list[Event] = []
        for size in (2, 2, 1):
            batch = await store.outbox("sink", "relay", 2, HOUR_MS)
            assert len(batch) == size
            await store.published("sink", batch)
            taken += batch
        assert taken == alerts

    async def test_one_relay_at_a_time_gets_the_events_of_a_sink(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        alerts = await _alerts(harness.store, 30)
        batches = await asyncio.gather(
            *(stores[n % 2].outbox("sink", f"relay-{n}", 10, HOUR_MS) for n in range(4))
        )
        assert sorted(map(len, batches)) == [0, 0, 0, 10]
        [relay] = [f"relay-{n}" for n, batch in enumerate(batches) if batch]
        assert await harness.store.lead(relay_task("sink"), relay, 0)
        assert list(await harness.store.outbox("sink", "another", 30, HOUR_MS)) == alerts

    async def test_an_unpublished_event_is_leased_again(self, harness: Harness) -> None:
        store = harness.store
        alerts = await _alerts(store, 3)
        taken = await store.outbox("sink", "relay-1", 3, MINUTE_MS)
        await store.published("sink", [taken[1]])
        assert await store.outbox("sink", "relay-2", 3, MINUTE_MS) == ()
        await harness.advance(HOUR_MS)
        again = await store.outbox("sink", "relay-2", 3, MINUTE_MS)
        assert list(again) == [alerts[0], alerts[2]]

    async def test_a_published_event_is_never_returned_again(self, harness: Harness) -> None:
        store = harness.store
        await _alerts(store, 3)
        taken = await store.outbox("sink", "relay", 10, MINUTE_MS)
        await store.published("sink", taken)
        await store.published("sink", [taken[0], replace(taken[1], id="nothing")])
        await harness.advance(DAY_MS)
        assert await store.outbox("sink", "relay", 10, MINUTE_MS) == ()

    async def test_an_event_with_the_same_id_but_another_time_stays(self, harness: Harness) -> None:
        """The store went back to an earlier state while the sink published the event."""
        store = harness.store
        [alert] = await _alerts(store, 1)
        await store.published("sink", [replace(alert, at=alert.at - 1)])
        assert await store.outbox("sink", "relay", 10, MINUTE_MS) == (alert,)

    async def test_changing_a_returned_event_does_not_change_the_outbox(self, harness: Harness) -> None:
        store = harness.store
        [alert] = await _alerts(store, 1)
        alert.payload["number"] = 99
        [taken] = await store.outbox("sink", "relay", 1, MINUTE_MS)
        assert taken.payload["number"] == 0
        taken.payload.clear()
        await harness.advance(HOUR_MS)
        [again] = await store.outbox("sink", "relay", 1, MINUTE_MS)
        assert again.payload["number"] == 0

    async def test_every_sink_gets_its_own_copy_of_an_event(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED, sink="a")
        await subscribe(store, STATUS_CHANGED, NOTIFICATION_FAILED, sink="b")
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        both = {sink: await store.outbox(sink, "relay", 10, HOUR_MS) for sink in ("a", "b")}
        assert [e.name for e in both["a"]] == [STATUS_CHANGED] * 2
        assert [e.name for e in both["b"]] == [STATUS_CHANGED, STATUS_CHANGED, NOTIFICATION_FAILED]
        assert both["b"][:2] == both["a"]
        await store.published("a", both["a"])
        assert await store.outbox("a", "relay", 10, HOUR_MS) == ()
        assert await store.outbox("b", "relay", 10, HOUR_MS) == both["b"]
        assert (await store.size())["outbox"] == 3

    async def test_another_process_writes_the_events_of_a_sink(self, harness: Harness) -> None:
        """The process that registers a sink and the one that changes a notification differ."""
        store, other = harness.store, await harness.second()
        await accept_one(other)
        await subscribe(store, STATUS_CHANGED)
        id = await accept_one(other)
        assert [e.notification_id for e in await _publish_events(store)] == [id]

    async def test_a_sink_gets_what_is_committed_after_its_registration(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED, sink="a")
        first = await accept_one(store)
        await subscribe(store, STATUS_CHANGED, sink="b")
        second = await accept_one(store)
        assert await _waiting(store) == {"a": 2, "b": 1}
        assert [e.notification_id for e in await store.outbox("b", "relay", 10, HOUR_MS)] == [second]
        assert await store.remove_sink("a") == 2
        third = await accept_one(store)
        assert await _waiting(store) == {"b": 2}
        assert await store.outbox("a", "relay", 10, HOUR_MS) == ()
        assert [e.notification_id for e in await store.outbox("b", "relay", 10, HOUR_MS)] == [second, third]
        assert first not in (second, third)

    async def test_a_sink_that_registers_again_keeps_its_events(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
        await accept_one(store)
        [before] = await store.sinks()
        await harness.advance(MINUTE_MS)
        await subscribe(store, ALERT)
        await accept_one(store)
        [after] = await store.sinks()
        assert after.waiting == 1
        assert after.events == {ALERT}
        assert after.registered_at == before.registered_at
        assert after.last_seen_at >= before.last_seen_at + MINUTE_MS

    async def test_a_sink_is_seen_until_it_is_removed(self, harness: Harness) -> None:
        store = harness.store
        assert not await store.sink_seen("sink")
        assert await store.remove_sink("sink") is None
        assert await store.sinks() == ()
        await store.register_sink(
            SinkRegistration(name="sink", kind="log", events=frozenset({ALERT}), durable=False)
        )
        await harness.advance(MINUTE_MS)
        assert await store.sink_seen("sink")
        [sink] = await store.sinks()
        assert (sink.name, sink.kind, sink.events, sink.durable) == ("sink", "log", frozenset({ALERT}), False)
        assert sink.last_seen_at >= sink.registered_at + MINUTE_MS
        assert await store.remove_sink("sink") == 0
        assert not await store.sink_seen("sink")

    async def test_a_sink_can_register_and_publish_right_after_it_was_not_there_to_be_removed(
        self, harness: Harness
    ) -> None:
        store = harness.store
        assert await store.remove_sink("sink") is None
        await subscribe(store, STATUS_CHANGED)
        id = await accept_one(store)
        assert [e.notification_id for e in await store.outbox("sink", "relay", 10, HOUR_MS)] == [id]

    async def test_events_of_a_sink_end_with_their_retention(self, harness: Harness) -> None:
        store = harness.store
        await _alerts(store, 3)
        assert (await store.prune(Retention(outbox_ms=HOUR_MS), 10))["events"] == 0
        await harness.advance(2 * HOUR_MS)
        assert (await store.prune(Retention(outbox_ms=HOUR_MS), 2))["events"] == 2
        assert (await store.prune(Retention(outbox_ms=HOUR_MS), 2))["events"] == 1
        assert await store.outbox("sink", "relay", 10, HOUR_MS) == ()

    async def test_a_parked_event_waits_until_it_is_released(self, harness: Harness) -> None:
        store = harness.store
        events = await _alerts(store, 3)
        same_id = replace(events[0], at=events[0].at + 1)  # written before the store went back
        await store.park_events("sink", [events[1], same_id, replace(events[2], id="unknown")])
        assert [e.id for e in await store.outbox("sink", "w", 10, 1000)] == [events[0].id, events[2].id]
        [sink] = await store.sinks()
        assert (sink.waiting, sink.parked) == (2, 1)
        assert await store.release_events("sink") == 1
        assert await store.release_events("sink") == 0
        assert [e.id for e in await store.outbox("sink", "w", 10, 1000)] == [e.id for e in events]

    async def test_a_sink_reports_the_age_of_its_oldest_waiting_event(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, ALERT, sink="other")
        first = await _alerts(store, 2)
        await harness.advance(MINUTE_MS)
        second = await _alerts(store, 1)
        assert await _oldest(store) == {"other": first[0].at, "sink": first[0].at}
        await store.published("sink", first[:1])
        assert await _oldest(store) == {"other": first[0].at, "sink": first[1].at}
        await store.park_events("sink", first[1:])
        assert await _oldest(store) == {"other": first[0].at, "sink": second[0].at}
        await store.published("sink", second)
        assert await _oldest(store) == {"other": first[0].at, "sink": None}

    async def test_a_removed_sink_takes_all_its_events_along(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, ALERT, sink="other")
        for _ in range(5):
            events = await _alerts(store, 500)
        await store.park_events("sink", events)
        assert await store.remove_sink("sink") == 2500
        await subscribe(store, ALERT)
        assert await store.outbox("sink", "w", 10, 1000) == ()
        assert await store.release_events("sink") == 0
        assert await _waiting(store) == {"other": 2500, "sink": 0}

    async def test_all_events_of_a_batch_are_published(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, STATUS_CHANGED)
        await accept(store, *(a_notification() for _ in range(20)))
        await accept_one(store, tenant="b")
        events = await _publish_events(store)
        assert [e.tenant for e in events] == ["default"] * 20 + ["b"]


def _alert(at: int, number: int) -> Event:
    return Event(id=an_id(), name=ALERT, tenant="default", at=at, payload={"number": number})


async def _alerts(store: Backend, number: int) -> list[Event]:
    await subscribe(store, ALERT)
    now = await store.now_ms()
    alerts = [_alert(now, n) for n in range(number)]
    await store.emit(alerts)
    return alerts


async def _oldest(store: Backend) -> dict[str, int | None]:
    return {sink.name: sink.oldest_at for sink in await store.sinks()}


async def _waiting(store: Backend) -> dict[str, int]:
    return {sink.name: sink.waiting for sink in await store.sinks()}


async def _publish_events(store: Backend) -> list[Event]:
    """Leases and publishes all events in the outbox, and returns them."""
    events = await store.outbox("sink", "relay", 1000, DAY_MS)
    await store.published("sink", events)
    return list(events)
