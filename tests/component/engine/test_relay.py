"""Events reach every subscribed sink: at least once, in order, whatever other sinks do."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from homing import Outcome, Status
from homing.core.errors import EventsRefused, SinkError, SinkUnavailable
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, STATUS_CHANGED, Event, event_headers
from homing.core.ports.plug_ins import SubscribedSink
from homing.engine.upkeep.outbox_relay import OutboxRelay
from homing.providers.local.scripted import ScriptedProvider
from homing.sinks.callback import CallbackSink
from homing.sinks.log import LogSink
from support.engine_harness import ADA, EngineHarness, K, mail, seconds, steady

ALL = frozenset({STATUS_CHANGED, NOTIFICATION_FAILED, ALERT})


class RecordingSink:
    """Keeps its events, and fails while the test says so."""

    def __init__(self) -> None:
        self.taken: list[Event] = []
        self.fails = False
        self.asked = self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def publish(self, events: Sequence[Event]) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectionError("the broker is away")
        self.taken.extend(events)

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.taken]


def an_event(number: int, name: str = ALERT) -> Event:
    return Event(id=f"e-{number:05d}", name=name, tenant="*", at=number, payload={"number": number})


async def a_relay(harness: EngineHarness, worker: str = "w", **sinks: Any) -> OutboxRelay:
    """Returns a relay whose sinks are registered."""
    subscribed = {name: SubscribedSink(sink, ALL) for name, sink in sinks.items()}
    relay = OutboxRelay(harness.store, subscribed, harness.clock, worker)
    await relay.register()
    return relay


async def test_every_status_change_is_published_in_order(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[K.TRANSIENT])}, rules=steady())
    id = await mail(engine)
    await seconds(15)
    told = [e for e in harness.events if e.name == STATUS_CHANGED]
    assert [(e.payload["statusBefore"], e.payload["status"]) for e in told] == [
        (None, "pending"),
        ("sending", "retrying"),
        ("sending", "sent"),
    ]
    assert {e.notification_id for e in told} == {id}
    assert [e.payload["attemptCount"] for e in told] == [0, 1, 2]


@pytest.mark.source("002", "113")
async def test_a_dead_letter_raises_its_alert_with_the_fields_of_the_source(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider("m", [K.TRANSIENT, K.BAD_RECIPIENT])}, rules=steady()
    )
    sent = await engine.send({"id": "u-1", "email": ADA}, channel="email", body="x", type="t")
    await seconds(15)
    (event,) = [e for e in harness.events if e.name == NOTIFICATION_FAILED]
    payload = dict(event.payload)
    assert payload.pop("failedAt").endswith("Z")
    assert payload == {
        "eventType": "NotificationFailed",
        "notificationId": sent.id,
        "tenantId": "default",
        "userId": "u-1",
        "channel": "email",
        "templateKey": None,
        "attemptCount": 2,
        "reason": "BAD_RECIPIENT",
        "lastError": "m returned bad_recipient",
        "providerAttempts": [
            {"provider": "mail", "messageId": None, "error": "transient"},
            {"provider": "mail", "messageId": None, "error": "bad_recipient"},
        ],
    }


async def test_a_sink_gets_only_the_events_it_subscribed_to(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)}, events=[NOTIFICATION_FAILED])
    await mail(engine)
    await seconds(3)
    assert {event.name for event in harness.events} == {NOTIFICATION_FAILED}


async def test_a_sink_that_fails_gets_its_events_later_and_the_others_only_once(
    harness: EngineHarness,
) -> None:
    good, bad = RecordingSink(), RecordingSink()
    relay = await a_relay(harness, good=good, bad=bad)
    running = asyncio.create_task(relay.run())
    bad.fails = True
    await harness.store.emit([an_event(n) for n in range(5)])
    await seconds(5)
    assert good.ids == [f"e-{n:05d}" for n in range(5)]
    assert bad.taken == []
    assert (await harness.store.size())["outbox"] == 5
    bad.fails = False
    await harness.store.emit([an_event(5)])
    await seconds(60)
    assert sorted(bad.ids) == sorted(good.ids) == [f"e-{n:05d}" for n in range(6)]
    assert (await harness.store.size())["outbox"] == 0
    running.cancel()


async def test_a_sink_that_failed_gets_its_events_in_their_order(harness: EngineHarness) -> None:
    sink = RecordingSink()
    running = asyncio.create_task((await a_relay(harness, sink=sink)).run())
    sink.fails = True
    for number in range(3):
        await harness.store.emit([an_event(number)])
        await seconds(2)
    sink.fails = False
    for number in range(3, 6):
        await harness.store.emit([an_event(number)])
        await seconds(2)
    await seconds(60)
    assert list(dict.fromkeys(sink.ids)) == [f"e-{n:05d}" for n in range(6)]
    running.cancel()


async def test_a_sink_that_fails_for_long_does_not_delay_the_others(harness: EngineHarness) -> None:
    good, bad = RecordingSink(), RecordingSink()
    bad.fails = True
    running = asyncio.create_task((await a_relay(harness, good=good, bad=bad)).run())
    await harness.store.emit([an_event(n) for n in range(11_000)])
    await seconds(180)
    assert len(good.taken) == 11_000
    running.cancel()


async def test_a_sink_that_fails_for_long_is_asked_less_and_less_often(harness: EngineHarness) -> None:
    sink = RecordingSink()
    sink.fails = True
    running = asyncio.create_task((await a_relay(harness, sink=sink)).run())
    await harness.store.emit([an_event(1)])
    asked = []
    for _ in range(4):
        before = sink.asked
        await seconds(60)
        asked.append(sink.asked - before)
    assert asked[0] > asked[-1] > 0
    running.cancel()


async def test_events_left_behind_by_one_relay_are_published_by_another(harness: EngineHarness) -> None:
    first, second = RecordingSink(), RecordingSink()
    first.fails = True
    relay = await a_relay(harness, "w1", sink=first)
    await harness.store.emit([an_event(1)])
    assert await relay.run_once() == 0
    other = await a_relay(harness, "w2", sink=second)
    assert await other.run_once() == 1
    assert second.ids == ["e-00001"]


async def test_two_relays_do_not_publish_the_same_events_at_once(harness: EngineHarness) -> None:
    sink = RecordingSink()
    relays = [await a_relay(harness, f"w{n}", sink=sink) for n in range(2)]
    await harness.store.emit([an_event(n) for n in range(400)])
    assert sorted(await asyncio.gather(*(relay.run_once() for relay in relays))) == [0, 200]
    assert sorted(await asyncio.gather(*(relay.run_once() for relay in relays))) == [0, 200]
    assert sink.ids == [f"e-{n:05d}" for n in range(400)]


async def test_events_without_a_subscriber_are_not_written(harness: EngineHarness) -> None:
    await harness.store.emit([an_event(1)])
    assert (await harness.store.size())["outbox"] == 0


async def test_a_relay_leaves_the_events_of_other_sinks_alone(harness: EngineHarness) -> None:
    """Workers may have different sinks."""
    mine, theirs = RecordingSink(), RecordingSink()
    here, there = await a_relay(harness, "w1", mine=mine), await a_relay(harness, "w2", theirs=theirs)
    await harness.store.emit([an_event(1)])
    assert await here.run_once() == 1
    assert await here.run_once() == 0
    assert await there.run_once() == 1
    assert mine.ids == theirs.ids == ["e-00001"]


async def test_a_relay_that_dies_is_replaced_when_its_lease_expires(harness: EngineHarness) -> None:
    sink = RecordingSink()
    await a_relay(harness, "w1", sink=sink)
    await harness.store.emit([an_event(1)])
    assert len(await harness.store.outbox("sink", "w1", 10, 30_000)) == 1
    other = await a_relay(harness, "w2", sink=sink)
    assert await other.run_once() == 0
    await seconds(31)
    assert await other.run_once() == 1


async def test_a_sink_that_cannot_be_closed_is_logged_and_the_others_are_closed(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(RecordingSink):
        async def close(self) -> None:
            raise OSError("no")

    stubborn, other = Stubborn(), RecordingSink()
    relay = await a_relay(harness, a=stubborn, b=other)
    await harness.store.emit([an_event(1)])
    await relay.run_once()
    await relay.close()
    assert "sink a could not be closed: OSError" in caplog.text
    assert other.closed == 1


async def test_a_sink_is_opened_before_its_first_event_and_closed_once(harness: EngineHarness) -> None:
    used, unused = RecordingSink(), RecordingSink()
    relay = await a_relay(harness, used=used)
    assert used.opened == 0
    for number in range(2):
        await harness.store.emit([an_event(number)])
        await relay.run_once()
    await (await a_relay(harness, unused=unused)).run_once()
    await relay.close()
    await relay.close()
    assert (used.opened, used.closed, unused.opened, unused.closed) == (1, 1, 0, 0)


async def test_a_sink_that_cannot_be_opened_is_opened_again_later(harness: EngineHarness) -> None:
    class Unreachable(RecordingSink):
        async def open(self) -> None:
            await super().open()
            if self.opened < 3:
                raise ConnectionError("the broker is away")

    sink = Unreachable()
    running = asyncio.create_task((await a_relay(harness, sink=sink)).run())
    await harness.store.emit([an_event(1)])
    await seconds(30)
    assert (sink.opened, sink.ids) == (3, ["e-00001"])
    running.cancel()


async def test_a_removed_sink_gets_nothing_until_it_registers_again(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    sink = RecordingSink()
    running = asyncio.create_task((await a_relay(harness, sink=sink)).run())
    await seconds(1)
    await harness.store.remove_sink("sink")
    await harness.store.emit([an_event(1)])
    await seconds(61)
    assert "sink sink was removed" in caplog.text
    await a_relay(harness, sink=sink)
    await harness.store.emit([an_event(2)])
    await seconds(2)
    assert sink.ids == ["e-00002"]
    running.cancel()


async def test_a_change_of_the_history_registers_lost_sinks_but_not_removed_ones(
    harness: EngineHarness,
) -> None:
    names = ("removed here", "removed elsewhere", "lost")
    sinks: dict[str, Any] = {name: RecordingSink() for name in names}
    relay = await a_relay(harness, **sinks)
    running = asyncio.create_task(relay.run())
    await harness.store.remove_sink("removed here")
    relay.note_removed("removed here")
    await relay.register_again()
    assert {sink.name for sink in await harness.store.sinks()} == {"removed elsewhere", "lost"}
    await harness.store.remove_sink("removed elsewhere")
    await seconds(61)
    await harness.store.remove_sink("lost")
    await relay.register_again()
    assert [sink.name for sink in await harness.store.sinks()] == ["lost"]
    await relay.register()
    assert {sink.name for sink in await harness.store.sinks()} == set(names)
    running.cancel()


async def test_an_unavailable_store_only_delays_events(harness: EngineHarness) -> None:
    sink = RecordingSink()
    running = asyncio.create_task((await a_relay(harness, sink=sink)).run())
    await harness.store.emit([an_event(1)])
    harness.store.away.add("outbox")
    await seconds(10)
    assert sink.taken == []
    harness.store.away.clear()
    await seconds(2)
    assert sink.ids == ["e-00001"]
    running.cancel()


async def test_a_hanging_sink_does_not_prevent_closing_the_engine(harness: EngineHarness) -> None:
    async def hang(event: Event) -> None:
        await asyncio.Event().wait()

    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)}, on_event=hang)
    await mail(engine)
    await seconds(5)
    closing = asyncio.create_task(engine.close())
    done, _ = await asyncio.wait({closing}, timeout=300)
    assert done == {closing}
    await closing


async def test_a_closing_engine_publishes_its_events(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT, latency_ms=500)})
    await mail(engine)
    await seconds(0.1)
    await engine.stop_worker()
    assert [e.name for e in harness.events if e.name != STATUS_CHANGED] == [NOTIFICATION_FAILED]


# Built-in sinks ----------------------------------------------------------------------------------------


async def test_a_callback_may_be_plain_or_async() -> None:
    heard: list[str] = []

    async def listen(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(f"async {event.id}")

    await CallbackSink(lambda event: heard.append(f"plain {event.id}")).publish([an_event(1), an_event(2)])
    await CallbackSink(listen).publish([an_event(3)])
    assert heard == ["plain e-00001", "plain e-00002", "async e-00003"]


async def test_a_callback_that_raises_is_called_again(harness: EngineHarness) -> None:
    heard: list[str] = []

    def listen(event: Event) -> None:
        heard.append(event.id)
        if len(heard) == 1:
            raise RuntimeError("oops")

    running = asyncio.create_task((await a_relay(harness, callback=CallbackSink(listen))).run())
    await harness.store.emit([an_event(1)])
    await seconds(60)
    assert heard == ["e-00001", "e-00001"]
    running.cancel()


async def test_the_log_names_the_failure_and_never_the_recipient(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def refuse(delivery: Any) -> Any:
        error = f"550 {delivery.address} / {delivery.recipient.phone} unknown"
        return Outcome(K.BAD_RECIPIENT, error_code="550", error=error)

    engine = await harness.open({"mail": ScriptedProvider(usual=refuse)})
    who = {"id": "user-4711", "email": "ada.lovelace@example.org", "phone": "+15550123456"}
    sent = await engine.send(who, channel="email", body="Your secret is 42", subject="Hush")
    await seconds(3)
    assert (await engine.get(sent.id)).status is Status.FAILED
    assert sent.id in caplog.text
    assert "NotificationFailed" in caplog.text
    for secret in ("ada.lovelace", "5550123456", "user-4711", "secret", "Hush"):
        assert secret not in caplog.text


async def test_no_error_puts_a_recipient_into_the_log(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    class Leaky(ScriptedProvider):
        async def send(self, delivery: Any) -> Any:
            raise RuntimeError(f"cannot reach {delivery.address}")

    engine = await harness.open({"mail": Leaky()}, rules=steady(max_attempts=2))
    await mail(engine, to="ada.lovelace@example.org")
    await seconds(30)
    assert "provider mail raised" in caplog.text
    assert "ada.lovelace" not in caplog.text


async def test_the_log_warns_of_failures_and_logs_changes_at_a_lower_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await LogSink().publish([an_event(1, STATUS_CHANGED), an_event(2, NOTIFICATION_FAILED), an_event(3)])
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]
    assert msgspec.json.decode(caplog.records[0].getMessage().partition(" ")[2]) == {"number": 1}


class PickySink(RecordingSink):
    """Refuses some events for good, and takes the others."""

    def __init__(self, *refused: str, error: type[Exception] = ConnectionError) -> None:
        super().__init__()
        self.refused = set(refused)
        self.error = error

    async def publish(self, events: Sequence[Event]) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is TimeoutError and self.refused & {event.id for event in events}:
            await asyncio.sleep(1000)
        for event in events:
            if event.id in self.refused:
                raise self.error("refused")
            self.taken.append(event)


def about(number: int, notification: int) -> Event:
    return replace(an_event(number, STATUS_CHANGED), notification_id=f"n-{notification}")


@pytest.mark.parametrize("error", [ConnectionError, UnicodeEncodeError, TimeoutError])
async def test_a_refused_event_is_parked_and_the_others_are_published_in_order(
    harness: EngineHarness, error: type[Exception]
) -> None:
    class Refusal(error):  # type: ignore[misc, valid-type]
        def __init__(self, why: str) -> None:
            Exception.__init__(self, why)

    sink = PickySink("e-00004", "e-00030", error=TimeoutError if error is TimeoutError else Refusal)
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([about(number, number % 20) for number in range(60)])
    running = asyncio.create_task(relay.run())
    await seconds(5 if error is not TimeoutError else 600)
    assert {f"e-{number:05d}" for number in range(60) if number % 20 not in (4, 10)} <= set(sink.ids)
    for number in range(60, 120):  # a refusal counts only if the sink takes other events
        await harness.store.emit([about(number, number)])
        await seconds(20)
    assert set(sink.ids) == {f"e-{number:05d}" for number in range(120)} - sink.refused
    firsts = list(dict.fromkeys(sink.ids))
    for notification in range(20):
        ids = [f"e-{number:05d}" for number in range(60) if number % 20 == notification]
        assert [id for id in firsts if id in ids] == [id for id in ids if id not in sink.refused]
    (registered,) = await harness.store.sinks()
    assert (registered.waiting, registered.parked) == (0, 2)
    sink.refused.clear()
    assert await harness.store.release_events("sink") == 2
    await seconds(5)
    assert {"e-00004", "e-00030"} <= set(sink.ids)
    running.cancel()


async def test_later_events_of_a_notification_wait_for_one_that_the_sink_refuses_for_a_while(
    harness: EngineHarness,
) -> None:
    sink = PickySink("e-00004")
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([about(number, number % 20) for number in range(60)])
    running = asyncio.create_task(relay.run())
    await seconds(5)
    waiting = ["e-00004", "e-00024", "e-00044"]
    assert set(sink.ids) == {f"e-{number:05d}" for number in range(60)} - set(waiting)
    sink.refused.clear()
    await seconds(300)
    assert [id for id in sink.ids if id in waiting] == waiting
    running.cancel()


async def test_the_sinks_of_a_process_that_only_processes_now_and_then_stay_in_use(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(working=False)
    for _ in range(3):
        await seconds(600)
        await engine.process()
        assert {sink.last_seen_at for sink in await harness.store.sinks()} == {harness.clock.now_ms()}


async def test_many_refused_events_at_the_head_do_not_stop_the_others(harness: EngineHarness) -> None:
    sink = PickySink(*(f"e-{number:05d}" for number in range(150)))
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([about(number, number) for number in range(300)])
    running = asyncio.create_task(relay.run())
    await seconds(60)
    assert set(sink.ids) == {f"e-{number:05d}" for number in range(150, 300)}
    for number in range(300, 400):
        await harness.store.emit([about(number, number)])
        await seconds(5)
    (registered,) = await harness.store.sinks()
    assert (registered.waiting, registered.parked) == (0, 150)
    running.cancel()


async def test_an_unavailable_sink_parks_nothing(harness: EngineHarness) -> None:
    sink = RecordingSink()
    sink.fails = True
    running = asyncio.create_task((await a_relay(harness, sink=sink)).run())
    await harness.store.emit([about(number, number) for number in range(300)])
    await seconds(7200)
    (registered,) = await harness.store.sinks()
    assert (registered.waiting, registered.parked) == (300, 0)
    sink.fails = False
    await seconds(60)
    assert len(set(sink.ids)) == 300
    running.cancel()


class CertifiedSink(RecordingSink):
    """Cannot be opened, or refuses every event, because its broker's certificate has expired."""

    def __init__(self, fails_in: str) -> None:
        super().__init__()
        self.fails_in = fails_in

    async def open(self) -> None:
        if self.fails_in == "open":
            raise ssl.SSLCertVerificationError("certificate has expired")

    async def publish(self, events: Sequence[Event]) -> None:
        if self.fails_in == "publish":
            raise ssl.SSLCertVerificationError("certificate has expired")
        await super().publish(events)


@pytest.mark.parametrize("fails_in", ["open", "publish"])
async def test_an_expired_certificate_pauses_the_sink_and_parks_nothing(
    harness: EngineHarness, fails_in: str
) -> None:
    sink = CertifiedSink(fails_in)
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([an_event(number) for number in range(3)])
    running = asyncio.create_task(relay.run())
    await seconds(900)
    sink.fails_in = ""
    await seconds(60)
    (registered,) = await harness.store.sinks()
    assert (registered.waiting, registered.parked) == (0, 0)
    assert sink.ids == ["e-00000", "e-00001", "e-00002"]
    running.cancel()


async def test_a_sink_that_cannot_be_opened_is_asked_once_per_round(harness: EngineHarness) -> None:
    class Closed(RecordingSink):
        async def open(self) -> None:
            self.opened += 1
            raise ValueError("the settings of the broker are wrong")

    sink = Closed()
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([an_event(number) for number in range(3)])
    assert await relay.run_once() == 0
    assert (sink.opened, sink.asked) == (1, 0)


# What sinks report --------------------------------------------------------------------------------------


class ReportingSink(RecordingSink):
    """Takes all events but some, and reports precisely what it did."""

    def __init__(self, error: Callable[[Sequence[Event], frozenset[str]], SinkError | None]) -> None:
        super().__init__()
        self.error = error
        self.calls: list[list[str]] = []

    async def publish(self, events: Sequence[Event]) -> None:
        self.calls.append([event.id for event in events])
        published = frozenset(event.id for event in events[: len(events) // 2])
        error = self.error(events, published)
        kept = events if error is None else [event for event in events if event.id in error.published]
        self.taken.extend(kept)
        if error is not None:
            raise error


async def test_what_an_unavailable_sink_has_published_is_not_published_again(harness: EngineHarness) -> None:
    sink = ReportingSink(lambda events, published: SinkUnavailable("it is away", published=published))
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([about(number, number) for number in range(8)])
    assert await relay.run_once() == 4
    assert len(sink.calls) == 1, "an unavailable sink is not called again in the same round"
    sink.error = lambda events, published: None
    assert await relay.run_once() == 4
    assert sorted(sink.ids) == [f"e-{number:05d}" for number in range(8)]


async def test_a_sink_is_not_called_before_the_time_that_it_asks_for(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ReportingSink(lambda events, published: SinkUnavailable("busy; password=x", retry_after_ms=90_000))
    relay, other = await a_relay(harness, sink=sink), await a_relay(harness, "w2", sink=sink)
    await harness.store.emit([an_event(1)])
    running = [asyncio.create_task(one.run()) for one in (relay, other)]
    await seconds(85)
    assert await relay.run_once() == await other.run_once() == 0
    assert len(sink.calls) == 1, "no process calls it meanwhile"
    assert "busy; password=•••" in caplog.text
    sink.error = lambda events, published: None
    await seconds(10)
    assert sink.ids == ["e-00001"]
    for one in running:
        one.cancel()


async def test_a_sink_cannot_ask_to_be_left_alone_for_ever(harness: EngineHarness) -> None:
    sink = ReportingSink(lambda events, published: SinkUnavailable(retry_after_ms=10**15))
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([an_event(1)])
    running = asyncio.create_task(relay.run())
    await seconds(5)
    sink.error = lambda events, published: None
    await seconds(600)
    assert sink.ids == ["e-00001"]
    running.cancel()


async def test_refused_events_that_a_sink_names_are_found_without_a_search(harness: EngineHarness) -> None:
    def refuse(events: Sequence[Event], published: frozenset[str]) -> SinkError | None:
        bad = [event.id for event in events if event.id == "e-00002"]
        good = [event.id for event in events if event.notification_id != "n-2"]
        return EventsRefused("400", refused=bad, published=good) if bad else None

    sink = ReportingSink(refuse)
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([about(number, number % 5) for number in range(10)])
    assert await relay.run_once() == 8
    assert len(sink.calls) == 1
    assert "e-00007" not in sink.ids, "it must wait for the refused event of its notification"
    running = asyncio.create_task(relay.run())
    for number in range(10, 40):
        await harness.store.emit([about(number, number)])
        await seconds(20)
    (registered,) = await harness.store.sinks()
    assert (registered.waiting, registered.parked) == (0, 1)
    assert len(sink.ids) == len(set(sink.ids)) == 39
    running.cancel()


async def test_a_sink_that_refuses_everything_parks_nothing(harness: EngineHarness) -> None:
    sink = ReportingSink(
        lambda events, published: EventsRefused("404", refused=[event.id for event in events])
    )
    relay = await a_relay(harness, sink=sink)
    await harness.store.emit([about(number, number) for number in range(3)])
    running = asyncio.create_task(relay.run())
    await seconds(1_200)
    (registered,) = await harness.store.sinks()
    assert (registered.waiting, registered.parked) == (3, 0)
    running.cancel()


async def test_events_carry_the_trace_of_their_notification(harness: EngineHarness) -> None:
    sink = RecordingSink()
    subscribed = {"sink": SubscribedSink(sink, ALL)}
    relay = OutboxRelay(harness.store, subscribed, harness.clock, "w", trace_share=1.0)
    await relay.register()
    id = "0193f1c2-aaaa-7bbb-8ccc-0123456789ab"
    await harness.store.emit([replace(an_event(1), notification_id=id), an_event(2)])
    await relay.run_once()
    traceparent = "00-0193f1c2aaaa7bbb8ccc0123456789ab-8ccc0123456789ab-01"
    assert [event_headers(event).get("traceparent") for event in sink.taken] == [traceparent, None]
