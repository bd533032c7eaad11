"""Metrics of an engine: correct numbers, with a limited number of label values."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from homing import CallbackUnreadable, Homing, IdempotencyConflict, Outcome, StoreUnavailable
from homing.core.lifecycle.claims import Submission
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.ports.bridges import BridgeState
from homing.core.ports.observers import ProcessSnapshot, QueueDepths, SinkBacklogs
from homing.core.ports.providers import Delivery
from homing.core.ports.stores import Entry, Retention, SinkRegistration
from homing.core.ports.timers import TimerState
from homing.core.request_decoding import read_request
from homing.core.routing.breaker import Phase
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.send_request import SendRequest
from homing.engine.intake.requests import PriorAttempts
from homing.providers.local.scripted import HANG, ScriptedProvider
from homing.rehearsal.virtual_time import VirtualBlock
from homing.telemetry.metric_catalog import CATALOGUE
from homing.telemetry.metrics import Metrics
from homing.testing.builders import a_notification, a_submission
from support.callback_provider import CallbackProvider, event_about, signed_callback
from support.engine_harness import (
    ADA,
    PHONE,
    EngineHarness,
    FailingProvider,
    K,
    mail,
    seconds,
    serving,
    steady,
)


class Page:
    """Scrapes the metrics once."""

    def __init__(self, text: bytes) -> None:
        self.text = text.decode()
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def sum(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(v for (found, has), v in self.samples.items() if found == name and wanted <= has)

    def values(self, label: str) -> set[str]:
        return {dict(labels)[label] for _, labels in self.samples if label in dict(labels)}


async def watched(harness: EngineHarness, providers: Any = None, **settings: Any) -> tuple[Homing, Metrics]:
    metrics = Metrics(tenants=settings.pop("tenants", 50))
    engine = await harness.open(providers, observers=[metrics], **settings)
    metrics.watch(engine)
    return engine, metrics


async def scrape(metrics: Metrics) -> Page:
    await seconds(6)  # numbers read from the store earlier are not shown again
    return Page(await metrics.page())


@pytest.mark.source("000", "10-15", "65-68", "70-71", "90", "133", "142")
@pytest.mark.source("004", "176-198", "234")
async def test_the_four_named_metrics_follow_a_retry_to_its_end(harness: EngineHarness) -> None:
    engine, metrics = await watched(harness, {"mail": FailingProvider("mail")}, rules=steady(max_attempts=3))
    await mail(engine)
    await seconds(1)
    queue = "homing-standard"
    page = Page(await metrics.page())
    assert (page("retries_scheduled_total", queue=queue), page("retry_queue_depth")) == (1, 1)
    assert page("retries_executed_total", queue=queue, status="failed") == 0
    await seconds(60)
    page = await scrape(metrics)
    assert page("retries_scheduled_total", queue=queue) == 2
    assert page("retries_executed_total", queue=queue, status="failed") == 2
    assert page("retries_executed_total", queue=queue, status="success") == 0
    assert page("retries_exhausted_total", queue=queue) == 1
    assert page("retry_queue_depth") == 0
    assert page("retries_scheduled_total", queue="homing-bulk") == 0


async def test_a_retry_that_an_inactive_device_prevents_is_not_counted_as_scheduled(
    harness: EngineHarness,
) -> None:
    entry = Entry(tenant="default", kind="device", key="token-1", value={"active": False}, version=-1)

    async def fail(delivery: Delivery) -> Outcome:
        assert await harness.store.put([entry], who="test") is not None
        return Outcome(K.TRANSIENT)

    engine, metrics = await watched(harness, {"fcm": serving("fcm", fail, "push")}, rules=steady())
    await engine.send({"deviceToken": "token-1"}, channel="push", body="x")
    await seconds(2)
    page = await scrape(metrics)
    assert (page.sum("retries_scheduled_total"), page("retry_queue_depth")) == (0, 0)
    assert page.sum("homing_settled_total", status="skipped") == 1


async def test_a_successful_retry_counts_as_a_success(harness: EngineHarness) -> None:
    engine, metrics = await watched(
        harness, {"mail": ScriptedProvider("mail", [K.TRANSIENT])}, rules=steady()
    )
    await mail(engine)
    await seconds(20)
    page = await scrape(metrics)
    assert page("retries_executed_total", queue="homing-standard", status="success") == 1
    assert page.sum("retries_exhausted_total") == 0


async def test_a_first_attempt_does_not_count_as_a_retry(harness: EngineHarness) -> None:
    engine, metrics = await watched(harness)
    await mail(engine)
    await seconds(2)
    page = await scrape(metrics)
    assert page.sum("retries_executed_total") == page.sum("retries_scheduled_total") == 0
    lane = "standard.email"
    assert page("homing_accepted_total", lane=lane, tenant="default") == 1
    assert page("homing_attempts_total", lane=lane, provider="mail", outcome="accepted") == 1
    assert page("homing_settled_total", lane=lane, tenant="default", status="sent") == 1
    assert page("homing_notifications", status="sent") == 1


async def test_duplicates_and_conflicts_are_counted_separately(harness: EngineHarness) -> None:
    engine, metrics = await watched(harness, working=False)
    await mail(engine, idempotency_key="k")
    await mail(engine, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await mail(engine, body="Something else", idempotency_key="k")
    page = await scrape(metrics)
    assert page.sum("homing_accepted_total") == 1
    assert page.sum("homing_duplicates_total") == 1
    assert page("homing_conflicts_total", tenant="default") == 1


async def test_latency_and_lateness_are_in_seconds(harness: EngineHarness) -> None:
    engine, metrics = await watched(
        harness, {"mail": ScriptedProvider("mail", latency_ms=1_500)}, working=False
    )
    await mail(engine)
    await seconds(7)
    engine.start_worker()
    await seconds(5)
    page = await scrape(metrics)
    assert page("homing_attempt_seconds_sum", channel="email", provider="mail") == pytest.approx(1.5, abs=0.1)
    assert page("homing_schedule_lateness_seconds_sum", lane="standard.email") == pytest.approx(7, abs=0.1)
    assert page("homing_delivery_seconds_sum", lane="standard.email") == pytest.approx(8.5, abs=0.1)


async def test_a_scheduled_delay_does_not_count_as_slow_delivery(
    poll_rarely: None, harness: EngineHarness
) -> None:
    engine, metrics = await watched(harness)
    await mail(engine, send_at=timedelta(hours=1))
    await seconds(3700)
    page = await scrape(metrics)
    assert page("homing_delivery_seconds_count", lane="standard.email") == 1
    assert page.sum("homing_delivery_seconds_sum") < 2


async def test_attempts_in_flight_and_the_worker_s_state_are_shown(harness: EngineHarness) -> None:
    engine, metrics = await watched(harness, {"mail": ScriptedProvider("mail", [HANG])})
    await mail(engine)
    await seconds(2)
    page = Page(await metrics.page())
    assert page("homing_in_flight", lane="standard.email", provider="mail") == 1
    assert page("homing_worker_up") == 1
    await engine.stop_worker(hard=True)
    assert Page(await metrics.page())("homing_worker_up") == 0


async def test_a_breaker_s_phase_is_shown_and_its_changes_are_counted(harness: EngineHarness) -> None:
    engine, metrics = await watched(harness)
    await engine.force_breaker("mail", Phase.OPEN, who="ann", why="maintenance")
    page = await scrape(metrics)
    shown = {phase: page("homing_breaker_state", provider="mail", phase=phase.value) for phase in Phase}
    assert shown == {Phase.OPEN: 1, Phase.CLOSED: 0, Phase.HALF_OPEN: 0}
    assert page("homing_breaker_changes_total", provider="mail", phase="open") == 1


async def test_receipts_are_counted_by_event_and_effect(harness: EngineHarness) -> None:
    postman = CallbackProvider("post")
    engine, metrics = await watched(harness, {"post": postman})
    await mail(engine)
    await seconds(1)
    event = event_about(postman.sent[0], ReceiptEvent.DELIVERED)
    await engine.handle_callback("post", signed_callback([event]))
    await engine.handle_callback("post", signed_callback([event]))
    page = await scrape(metrics)
    assert page("homing_receipts_total", provider="post", event="delivered", fate="applied") == 1
    assert page("homing_receipts_total", provider="post", event="delivered", fate="unchanged") == 1


async def test_unreadable_events_of_callbacks_are_counted_by_provider(harness: EngineHarness) -> None:
    postman = CallbackProvider("post")
    engine, metrics = await watched(harness, {"post": postman})
    await mail(engine)
    await seconds(1)
    good = event_about(postman.sent[0], ReceiptEvent.DELIVERED)
    await engine.handle_callback("post", signed_callback([good, None]))
    for events in ([None, {**good, "event_id": ""}], [{"event": "raises"}]):
        with pytest.raises(CallbackUnreadable):
            await engine.handle_callback("post", signed_callback(events))
    assert (await scrape(metrics))("homing_unreadable_events_total", provider="post") == 4


async def test_an_unavailable_store_is_shown_and_its_old_numbers_are_not(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, metrics = await watched(harness)
    assert (await scrape(metrics))("homing_store_up") == 1
    harness.store.away.add("everything")

    async def away(tenant: str | None) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(harness.store, "tallies", away)
    with pytest.raises(StoreUnavailable):
        await mail(engine)
    page = await scrape(metrics)
    assert page("homing_store_up") == 0
    assert page("retry_queue_depth") is None
    assert page("homing_store_errors_total", call="accept", code="STORE_UNAVAILABLE") == 1
    harness.store.away.clear()


async def test_a_hanging_store_delays_the_page_by_at_most_two_seconds(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, metrics = await watched(harness)

    async def silent(tenant: str | None) -> None:
        await seconds(1_000)

    monkeypatch.setattr(harness.store, "tallies", silent)
    before = harness.clock.monotonic_ms()
    assert Page(await metrics.page())("homing_store_up") == 0
    assert harness.clock.monotonic_ms() - before <= 2_000


async def test_the_store_is_read_at_most_every_five_seconds(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, metrics = await watched(harness, working=False)
    asked, depths = [], engine.queue_depths

    async def counted() -> Any:
        asked.append(1)
        return await depths()

    monkeypatch.setattr(engine, "queue_depths", counted)
    for _ in range(50):
        await metrics.page()
        await seconds(0.2)
    assert 2 <= len(asked) <= 3


async def test_tenants_beyond_the_limit_share_one_series(harness: EngineHarness) -> None:
    _, metrics = await watched(harness, tenants=3, working=False)
    for number in range(20):
        batch = [a_submission(a_notification(), tenant=f"t{number}")]
        metrics.accepted(batch, await harness.store.accept(batch))
    page = await scrape(metrics)
    assert page.values("tenant") == {"t0", "t1", "t2", "other"}
    assert page("homing_accepted_total", lane="standard.email", tenant="other") == 17
    assert page("homing_accepted_total", lane="standard.email", tenant="t1") == 1


async def test_an_unconfigured_provider_is_labelled_other(harness: EngineHarness) -> None:
    _, metrics = await watched(harness)
    for number in range(20):
        metrics.breaker_changed(f"made-up-{number}", Phase.OPEN)
    page = await scrape(metrics)
    assert page("homing_breaker_changes_total", provider="other", phase="open") == 20


async def test_deleted_records_are_counted_by_kind(harness: EngineHarness) -> None:
    engine, metrics = await watched(harness)
    await mail(engine)
    await seconds(1)
    await engine.purge(Retention(sent_ms=0))
    page = await scrape(metrics)
    assert page("homing_purged_total", kind="notifications") == 1
    assert page("homing_purged_total", kind="events") == 0


async def test_the_page_contains_no_recipient_id_or_error(harness: EngineHarness) -> None:
    script = [K.TRANSIENT, K.BAD_RECIPIENT, K.AMBIGUOUS]
    providers = {
        "mail": serving("mail", ScriptedProvider("mail", script)),
        "sms": serving("sms", ScriptedProvider("sms"), "sms"),
    }
    engine, metrics = await watched(harness, providers, rules=steady())
    ids = [await mail(engine, metadata={"order": "order-4711"}, type="invoice") for _ in range(5)]
    ids.append((await engine.send(PHONE, channel="sms", body="secret words", synchronous=True)).id)
    await seconds(60)
    page = (await scrape(metrics)).text
    for private in (*ids, ADA, "example.org", PHONE, "4711", "secret words", "invoice", engine.settings.name):
        assert private not in page


async def test_the_first_retry_of_what_another_system_attempted_is_counted_as_scheduled(
    harness: EngineHarness,
) -> None:
    engine, metrics = await watched(harness, working=False)
    request = read_request({"recipient": ADA, "channel": "email", "content": {"body": "x"}})
    await engine.submit(request, earlier=PriorAttempts(attempts=1))
    await mail(engine)
    page = await scrape(metrics)
    assert page("retries_scheduled_total", queue="homing-standard") == 1


@pytest.mark.source("002", "63-68")
async def test_deliveries_within_the_latency_goal_of_their_mode_and_later_ones_are_counted(
    harness: EngineHarness,
) -> None:
    engine, metrics = await watched(
        harness, {"mail": ScriptedProvider("mail", [K.TRANSIENT] * 2)}, rules=steady(base_ms="20s")
    )
    await mail(engine, priority="high")
    await mail(engine)
    await mail(engine)
    await seconds(60)
    page = await scrape(metrics)
    met, missed = (
        {
            mode: page("homing_latency_goal_total", mode=mode, result=result)
            for mode in ("priority", "standard")
        }
        for result in ("met", "missed")
    )
    assert (met, missed) == ({"priority": 0, "standard": 2}, {"priority": 1, "standard": 0})
    goals_s = {info.latency_goal_ms / 1000 for info in MODE_INFO.values()}
    assert goals_s == {2, 5, 30, 300}
    bounds = {
        float(bound) for bound in re.findall(r'homing_delivery_seconds_bucket{.*le="([0-9.]+)"', page.text)
    }
    assert goals_s <= bounds, "each goal is the bound of a bucket"


async def test_every_sample_is_in_the_catalogue_with_its_labels(harness: EngineHarness) -> None:
    engine, metrics = await watched(
        harness, {"mail": ScriptedProvider("mail", [K.TRANSIENT])}, rules=steady()
    )
    await mail(engine)
    await seconds(20)
    page = await scrape(metrics)
    known = {metric.name.removesuffix("_total"): metric for metric in CATALOGUE}
    families = list(text_string_to_metric_families(page.text))
    assert {family.name for family in families} == set(known)
    for family in families:
        metric = known[family.name]
        assert (family.documentation, family.type) == (metric.help, metric.kind)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
            assert not sample.name.endswith("_created")


async def test_one_registry_serves_one_engine(harness: EngineHarness) -> None:
    _, metrics = await watched(harness)
    with pytest.raises(AssertionError, match="one engine per registry"):
        metrics.watch(harness.make())


async def test_calls_that_run_on_after_their_deadline_are_shown(harness: EngineHarness) -> None:
    def hangs(delivery: Delivery) -> Any:
        return VirtualBlock(asyncio.sleep(60))

    engine, metrics = await watched(harness, {"mail": hangs}, rules=steady(timeout_ms=5_000))
    await mail(engine)
    await seconds(6)
    page = Page(await metrics.page())
    assert page("homing_abandoned_calls", provider="mail") == 1
    assert page.sum("homing_in_flight") == 0


async def take_over(engine: Homing, request: SendRequest, earlier: PriorAttempts) -> None:
    """Accepts a request that another system has tried before, as bridges do."""
    submission = await engine._intake.prepare("default", request, earlier=earlier)
    assert isinstance(submission, Submission)
    await engine._sends.accept_prepared([submission])


async def test_tasks_of_a_bridge_are_counted_by_the_queue_they_go_back_to(harness: EngineHarness) -> None:
    metrics = Metrics()
    rabbit = serving("rabbit", ScriptedProvider("rabbit", ["transient"]), "queue")
    engine = await harness.open({"rabbit": rabbit}, observers=[metrics], rules=steady(max_attempts=4))
    metrics.watch(engine)
    for number, earlier in enumerate((1, 1, 4)):  # the last one is used up
        request = read_request(
            {"recipient": {"url": "orders"}, "channel": "queue", "content": {"data": {"n": number}}}
        )
        prior = PriorAttempts(attempts=earlier, last_error="timeout")
        await take_over(engine, request, prior)
    page = Page(await metrics.page())
    assert page("retries_scheduled_total", queue="orders") == 3
    assert page("retry_queue_depth") == 2, "the third one is a dead letter already"
    await asyncio.sleep(60)
    page = Page(await metrics.page())
    assert page("retries_scheduled_total", queue="orders") == 3, "a task is scheduled once"
    assert page("retries_executed_total", queue="orders", status="success") == 2
    assert page("retries_executed_total", queue="orders", status="failed") == 1
    assert page("retries_exhausted_total", queue="orders") == 1, "without an attempt"
    assert page("retries_exhausted_total", queue="homing-standard") == 0


async def test_there_are_at_most_a_hundred_labels_for_queues_of_a_broker(harness: EngineHarness) -> None:
    metrics = Metrics()
    rabbit = serving("rabbit", ScriptedProvider("rabbit"), "queue")
    engine = await harness.open({"rabbit": rabbit}, observers=[metrics], working=False)
    metrics.watch(engine)
    for number in range(120):
        request = read_request(
            {"recipient": {"url": f"q{number}"}, "channel": "queue", "content": {"body": "x"}}
        )
        await take_over(engine, request, PriorAttempts(attempts=1))
    page = Page(await metrics.page())
    assert page("retries_scheduled_total", queue="other") == 20
    assert page("retries_scheduled_total", queue="q99") == 1
    assert page("retries_scheduled_total", queue="q100") is None


async def test_every_sink_has_its_own_lag(harness: EngineHarness) -> None:
    metrics = Metrics()
    engine = await harness.open({"mail": ScriptedProvider()}, observers=[metrics])
    metrics.watch(engine)
    dead = SinkRegistration(name="dead", kind="kafka", events=frozenset({"StatusChanged"}))
    await harness.store.register_sink(dead)
    await mail(engine)
    await seconds(100)
    page = await scrape(metrics)
    assert page("homing_sink_waiting", sink="dead") == 2
    assert page("homing_sink_parked", sink="dead") == 0
    lag = page("homing_sink_lag_seconds", sink="dead")
    assert lag is not None
    assert 90 < lag < 200
    assert (
        page("homing_sink_waiting", sink="callback") == page("homing_sink_lag_seconds", sink="callback") == 0
    )
    assert page("homing_sink_published_total", sink="callback") == 2
    assert page("homing_sink_failures_total", sink="callback") == 0
    assert page("homing_sink_published_total", sink="dead") is None, "this process does not have it"
    assert engine.snapshot().sinks["callback"].available


async def test_a_backlog_that_cannot_be_counted_hides_no_other_count(harness: EngineHarness) -> None:
    async def refuse(operation: str) -> None:
        if operation == "sinks":
            raise StoreUnavailable

    metrics = Metrics()
    engine = await harness.open({"mail": ScriptedProvider()}, observers=[metrics])
    metrics.watch(engine)
    harness.store.on_call = refuse
    page = Page(await metrics.page())
    assert page("homing_store_up") == 1
    assert page.sum("homing_sink_waiting") == 0
    assert not [name for name, _ in page.samples if name == "homing_sink_waiting"]


async def test_timers_and_bridges_are_counted() -> None:
    class Stub:
        def snapshot(self) -> ProcessSnapshot:
            return ProcessSnapshot(
                working=True,
                ms_since_last_claim=0,
                timers={
                    "heap": TimerState(connected=True, scheduled=7, discarded=2, failures=3),
                    "gone": TimerState(connected=False, scheduled=0, discarded=1, failures=1),
                },
                bridges={
                    "mq": BridgeState(status="ok", accepted=5, duplicates=4, rejected=3, failures=2),
                    "down": BridgeState(status="no connection"),
                },
            )

        async def queue_depths(self) -> QueueDepths:
            return QueueDepths(statuses={}, oldest_retry_ms=None)

        async def sink_backlogs(self) -> SinkBacklogs:
            return SinkBacklogs(now_ms=0, sinks=())

    metrics = Metrics()
    metrics.watch(Stub())
    page = Page(await metrics.page())
    assert (page("homing_timer_connected", timer="heap"), page("homing_timer_connected", timer="gone")) == (
        1,
        0,
    )
    assert page("homing_timer_scheduled_total", timer="heap") == 7
    assert page("homing_timer_discarded_total", timer="heap") == 2
    assert page("homing_timer_failures_total", timer="heap") == 3
    assert (page("homing_bridge_up", bridge="mq"), page("homing_bridge_up", bridge="down")) == (1, 0)
    results = ("accepted", "duplicate", "rejected")
    numbers = [page("homing_bridge_messages_total", bridge="mq", result=one) for one in results]
    assert numbers == [5, 4, 3]
    assert page("homing_bridge_failures_total", bridge="mq") == 2
