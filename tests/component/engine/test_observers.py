"""Observers are called with what the store has written, batch by batch, and cannot change what happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

import pytest

from homing import StoreUnavailable
from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, Submission
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent, ReceiptResult
from homing.core.notifications import OutcomeKind, Status
from homing.core.ports.observers import SettledClaim
from homing.core.ports.stores import Retention
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.callback_provider import CallbackProvider, event_about, signed_callback
from support.engine_harness import (
    ADA,
    PHONE,
    EngineHarness,
    FailingProvider,
    K,
    mail,
    seconds,
    status,
    steady,
)


class RecordingObserver:
    """Records its calls."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int]] = []
        self.settlements: list[tuple[Status, OutcomeKind | None]] = []
        self.refused: list[str] = []
        self.phases: list[Phase] = []
        self.removed: Counter[str] = Counter()
        self.failed: list[str] = []

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        assert len(batch) == len(answers)
        self.batches.append(("accepted", len(batch)))

    def claimed(self, batch: ClaimBatch) -> None:
        self.batches.append(("claimed", len(batch.claims)))

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        self.batches.append(("settled", len(batch)))
        for settlement, claim in batch:
            assert (settlement.id, settlement.token) == (claim.id, claim.token)
            attempt = settlement.attempt
            self.settlements.append((settlement.status, None if attempt is None else attempt.outcome))
        self.refused += refused

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        self.batches.append(("receipts_applied", len(receipts)))

    def callback_unreadable(self, provider: str, events: int) -> None:
        self.batches.append(("callback_unreadable", events))

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        self.phases.append(phase)

    def purged(self, removed: Mapping[str, int]) -> None:
        self.removed.update(removed)

    def store_failed(self, call: str, error: StoreError) -> None:
        self.failed.append(call)


async def test_it_is_called_in_the_order_of_the_pipeline(harness: EngineHarness) -> None:
    diary = RecordingObserver()
    engine = await harness.open(
        {"mail": ScriptedProvider("mail", [K.TRANSIENT])}, observers=[diary], rules=steady()
    )
    await mail(engine)
    await seconds(30)
    assert [name for name, _ in diary.batches] == ["accepted", "claimed", "settled", "claimed", "settled"]
    assert diary.settlements == [(Status.RETRYING, K.TRANSIENT), (Status.SENT, K.ACCEPTED)]


async def test_one_call_covers_many_notifications(harness: EngineHarness) -> None:
    diary = RecordingObserver()
    engine = await harness.open(observers=[diary], working=False)
    requests = [{"recipient": ADA, "channel": "email", "content": {"body": str(n)}} for n in range(100)]
    assert len([result async for result in engine.send_many(requests)]) == 100
    engine.start_worker()
    await seconds(10)
    assert diary.batches[0] == ("accepted", 100)
    assert sum(number for name, number in diary.batches if name == "settled") == 100
    assert len(diary.batches) < 10


async def test_a_synchronous_send_is_reported_too(harness: EngineHarness) -> None:
    diary = RecordingObserver()
    engine = await harness.open({"sms": ScriptedProvider("sms")}, observers=[diary], working=False)
    await engine.send(PHONE, channel="sms", body="123456", synchronous=True)
    assert diary.batches == [("accepted", 1), ("settled", 1)]


async def test_a_notification_ended_by_the_guard_is_reported_without_an_attempt(
    harness: EngineHarness,
) -> None:
    diary = RecordingObserver()
    engine = await harness.open(observers=[diary], working=False)
    await mail(engine, expires_at=timedelta(seconds=5))
    await seconds(10)
    engine.start_worker()
    await seconds(10)
    assert diary.settlements == [(Status.EXPIRED, None)]


async def test_a_late_settlement_is_reported_as_refused(harness: EngineHarness) -> None:
    diary = RecordingObserver()
    provider = ScriptedProvider("mail", latency_ms=60_000)
    rules = steady(base_ms="5m", timeout_ms="70s")
    engine = await harness.open({"mail": provider}, observers=[diary], rules=rules)
    id = await mail(engine)
    await seconds(1)
    harness.clock.jump(3_600_000)  # the machine was suspended, and its lease expired meanwhile
    await seconds(70)
    assert diary.refused == [id]
    assert diary.settlements == [(Status.RETRYING, K.LOST), (Status.SENT, K.ACCEPTED)]


async def test_receipts_and_breakers_are_reported(harness: EngineHarness) -> None:
    diary, postman = RecordingObserver(), CallbackProvider("post")
    engine = await harness.open({"post": postman}, observers=[diary])
    await mail(engine)
    await seconds(1)
    await engine.handle_callback(
        "post", signed_callback([event_about(postman.sent[0], ReceiptEvent.DELIVERED)])
    )
    assert diary.batches[-1] == ("receipts_applied", 1)
    await engine.force_breaker("post", Phase.OPEN, who="ann", why="maintenance")
    await engine.force_breaker("post", None, who="ann")
    assert diary.phases == [Phase.OPEN, Phase.CLOSED]


async def test_every_change_of_a_breaker_is_reported(harness: EngineHarness) -> None:
    diary, provider = RecordingObserver(), FailingProvider("mail")
    engine = await harness.open({"mail": provider}, observers=[diary], rules=steady(max_attempts=50))
    await mail(engine)
    await seconds(60)
    assert diary.phases == [Phase.OPEN]
    provider.repair()
    await seconds(120)
    assert diary.phases == [Phase.OPEN, Phase.HALF_OPEN, Phase.CLOSED]


async def test_an_unavailable_store_is_reported_by_the_failed_call(harness: EngineHarness) -> None:
    diary = RecordingObserver()
    engine = await harness.open(observers=[diary])
    await seconds(2)
    harness.store.away.add("everything")
    with pytest.raises(StoreUnavailable):
        await mail(engine)
    await seconds(30)
    harness.store.away.clear()
    assert {"accept", "claim", "upkeep"} <= set(diary.failed)


async def test_an_observer_that_raises_delays_nothing_and_no_other_observer(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RecordingObserver):
        def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
            raise RuntimeError("the disk of the observer is full")

        accepted = claimed = store_failed = settled  # type: ignore[assignment]

    diary = RecordingObserver()
    engine = await harness.open(observers=[Broken(), diary])
    id = await mail(engine)
    await seconds(5)
    assert await status(engine, id) is Status.SENT
    assert diary.settlements == [(Status.SENT, K.ACCEPTED)]
    assert "an observer raised" in caplog.text


async def test_a_snapshot_shows_attempts_in_flight(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider("mail", [HANG])}, working=False)
    assert (engine.snapshot().working, engine.snapshot().ms_since_last_claim) == (False, None)
    engine.start_worker()
    await mail(engine)
    await seconds(2)
    snapshot = engine.snapshot()
    assert snapshot.working
    assert snapshot.in_flight == {("standard.email", "mail"): 1}
    assert snapshot.breakers == {"mail": Phase.CLOSED}
    assert snapshot.ms_since_last_claim is not None
    assert snapshot.ms_since_last_claim <= 1_000
    await engine.stop_worker(hard=True)
    assert not engine.snapshot().working


async def test_the_queue_depths_cover_all_tenants(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": FailingProvider("mail")}, rules=steady(base_ms="1h"))
    other = await harness.open({"mail": FailingProvider("mail")}, rules=steady(base_ms="1h"), tenant="other")
    await mail(engine)
    await mail(other)
    await seconds(600)
    depths = await engine.queue_depths()
    assert depths.statuses[Status.RETRYING] == 2
    assert depths.oldest_retry_ms is not None
    assert 590_000 < depths.oldest_retry_ms <= 601_000


async def test_an_engine_is_ready_if_its_store_answers_and_its_worker_runs(harness: EngineHarness) -> None:
    engine = await harness.open()
    await seconds(3)
    assert (await engine.readiness()).ready

    async def hang(name: str) -> None:
        if name == "claim":
            await seconds(1_000)

    harness.store.on_call = hang
    await seconds(100)
    found = await engine.readiness()
    assert (found.ready, found.store) == (False, "ok")
    assert found.worker.startswith("made no claim for")


async def test_an_engine_with_an_unavailable_or_hanging_store_is_not_ready(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await harness.open()

    async def away(tenant: str | None) -> None:
        raise StoreUnavailable

    async def silent(tenant: str | None) -> None:
        await seconds(100)

    monkeypatch.setattr(harness.store, "tallies", away)
    assert (await engine.readiness()).store == "STORE_UNAVAILABLE"
    monkeypatch.setattr(harness.store, "tallies", silent)
    assert (await engine.readiness(timeout_ms=500)).store == "no answer within 500 ms"


async def test_an_engine_with_a_stopped_worker_is_not_ready(harness: EngineHarness) -> None:
    engine = await harness.open()
    await seconds(1)
    await engine.stop_worker()
    found = await engine.readiness()
    assert (found.ready, found.worker) == (False, "stopped")


async def test_it_is_told_what_a_purge_deletes(harness: EngineHarness) -> None:
    diary = RecordingObserver()
    engine = await harness.open({"mail": ScriptedProvider("mail")}, observers=[diary])
    await mail(engine)
    await seconds(1)
    await engine.purge(Retention(sent_ms=0))
    assert diary.removed["notifications"] == 1
    assert diary.removed["events"] == 0
