"""A synchronous send: one attempt, two seconds, a result; and nothing sends it later."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from homing import (
    Channel,
    CommandRefused,
    Delivery,
    DeliveryFailed,
    DeliverySkipped,
    DeliveryTimeout,
    Homing,
    HomingError,
    Outcome,
    RateLimit,
    Reason,
    Status,
)
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import Filter, Mode
from homing.core.ports.stores import Entry
from homing.core.request_decoding import read_request
from homing.core.routing.breaker import BreakerPolicy, Phase
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    ADA,
    PHONE,
    EngineHarness,
    K,
    RecipientHook,
    TimedProvider,
    phase,
    seconds,
    serving,
    status,
    stored,
)

TIMED_OUT = "Synchronous delivery timed out after 2s. Notification NOT queued."


async def ring(engine: Homing, **fields: Any) -> Any:
    """Sends a text message synchronously."""
    return await engine.send(PHONE, **{"channel": "sms", "body": "123456", "synchronous": True, **fields})


async def only(engine: Homing) -> str:
    """Returns the id of the only notification."""
    (found,) = (await engine.list()).items
    return found.id


@pytest.mark.source("002", "103", "105")
async def test_it_returns_the_result_of_the_attempt(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider("sms", latency_ms=1200)})
    sent = await ring(engine)
    assert (sent.status, sent.provider_message_id) == ("sent", "sms-1")
    found = await engine.get(sent.id)
    assert (found.status, found.mode, found.attempt_count) == (Status.SENT, Mode.SYNCHRONOUS, 1)
    assert found.sent_at is not None
    assert sent.delivered_at is None, "a provider accepted it, but has not reported a delivery"
    assert (sent.sent_at, sent.provider) == (found.sent_at, "sms")


async def test_a_confirmed_delivery_is_returned_as_delivered(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider(usual=Outcome(K.ACCEPTED, delivered=True))})
    sent = await ring(engine)
    assert (sent.status, sent.delivered_at) == ("delivered", (await engine.get(sent.id)).delivered_at)
    assert sent.delivered_at is not None


@pytest.mark.source("002", "26")
@pytest.mark.parametrize("type_", ["otp", "2fa", "driver_assigned"])
async def test_some_types_are_synchronous_by_default(harness: EngineHarness, type_: str) -> None:
    engine = await harness.open({"sms": ScriptedProvider()}, working=False)
    assert (await ring(engine, type=type_, synchronous=None)).status == "sent"


async def test_the_synchronous_types_can_be_configured(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider()}, working=False, synchronous_types=["alarm"])
    assert (await ring(engine, type="alarm", synchronous=None)).status == "sent"
    assert (await ring(engine, type="otp", synchronous=None)).status == "queued"


@pytest.mark.parametrize("kind", [K.TRANSIENT, K.PROVIDER_FAULT, K.BAD_RECIPIENT, K.THROTTLED])
async def test_a_failure_is_raised_at_once_and_recorded(harness: EngineHarness, kind: Any) -> None:
    first, second = ScriptedProvider("first", usual=kind), ScriptedProvider("second")
    engine = await harness.open({"first": first, "second": second})
    with pytest.raises(DeliveryFailed, match=f"first returned {kind}") as caught:
        await ring(engine)
    assert caught.value.code == "DELIVERY_FAILED"
    found = await engine.get(caught.value.notification_id)
    assert found.status is Status.FAILED
    await seconds(600)
    assert (len(first.sent), len(second.sent)) == (1, 0)


@pytest.mark.source("002", "72-88", "90-94", "106")
async def test_after_two_seconds_it_has_failed_and_is_never_sent_later(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[HANG])
    engine = await harness.open({"sms": provider})
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeliveryTimeout) as caught:
        await ring(engine)
    assert round(asyncio.get_running_loop().time() - began, 1) == 2.0
    assert caught.value.message == TIMED_OUT
    assert caught.value.code == "DELIVERY_TIMEOUT"
    id = caught.value.notification_id
    await seconds(600)
    history = await engine.history(id)
    assert (history.notification.status, history.notification.reason) == (
        Status.FAILED,
        Reason.DELIVERY_TIMEOUT,
    )
    assert len(provider.sent) == 1


async def test_the_attempt_that_timed_out_is_recorded_as_ambiguous(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider(script=[HANG])}, working=False)
    with pytest.raises(DeliveryTimeout) as caught:
        await ring(engine)
    (attempt,) = (await engine.history(caught.value.notification_id)).attempts
    assert (attempt.outcome, attempt.error_code) == (K.AMBIGUOUS, "timeout")


async def test_five_timeouts_open_the_breaker(harness: EngineHarness) -> None:
    first, second = ScriptedProvider(usual=HANG), ScriptedProvider("second")
    engine = await harness.open({"first": first, "second": second}, working=False)
    for _ in range(5):
        with pytest.raises(DeliveryTimeout):
            await ring(engine)
    assert (await ring(engine)).provider_message_id == "second-1"
    assert len(first.sent) == 5


async def test_a_timeout_after_a_long_wait_for_a_slot_does_not_open_the_breaker(
    harness: EngineHarness,
) -> None:
    provider = ScriptedProvider("sms", latency_ms=1_500)
    engine = await harness.open({"sms": serving("sms", provider, "sms", max_in_flight=6)}, working=False)
    for _ in range(2):
        rings = await asyncio.gather(*(ring(engine) for _ in range(11)), return_exceptions=True)
        assert sorted(type(one).__name__ for one in rings) == ["DeliveryTimeout"] * 6 + ["SendResult"] * 5
        await seconds(10)
    assert await phase(harness, "sms") is Phase.CLOSED
    assert (await ring(engine)).status == "sent"


class Flood:
    """One tenant's synchronous sends, `size` at a time, until the end of the test."""

    def __init__(self, engine: Homing, size: int) -> None:
        self._sends = engine.of("flooding")
        self._tasks = [asyncio.create_task(self._repeat()) for _ in range(size)]

    async def _repeat(self) -> None:
        while True:
            with suppress(HomingError):
                await self._sends.submit(read_request({**CODE, "recipient": PHONE}))
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


CODE = {"channel": "sms", "content": {"body": "123456"}, "synchronous": True}


@pytest.mark.parametrize("latency_ms", [1_500, 60_000], ids=["slow", "hanging"])
async def test_one_tenant_s_flood_leaves_a_slot_for_each_other_tenant(
    harness: EngineHarness, latency_ms: int
) -> None:
    provider = TenantProvider("flooding", latency_ms)
    breaker = BreakerPolicy(failures=1_000_000)
    listed = serving("sms", provider, "sms", max_in_flight=16, breaker=breaker)
    engine = await harness.open({"sms": listed})
    flood = Flood(engine, 100)
    try:
        await seconds(9.9)
        other = engine.of("other")
        code = await other.submit(read_request({**CODE, "recipient": "+15550101"}))
        assert code.status == "sent"
        queued = {
            "channel": "sms",
            "content": {"body": "x"},
            "priority": "critical",
            "recipient": "+15550102",
        }
        mail = await other.submit(read_request(queued))
        await seconds(0.1)
        assert (await other.get(mail.id)).status is Status.SENT
    finally:
        await flood.stop()


async def test_one_tenant_s_flood_leaves_rate_limit_tokens_for_the_others(harness: EngineHarness) -> None:
    provider = TenantProvider("flooding", 10)
    listed = serving("sms", provider, "sms", rate=RateLimit(per_second=5, burst=8))
    engine = await harness.open({"sms": listed})
    flood = Flood(engine, 50)
    try:
        await seconds(9.9)
        other = engine.of("other")
        sends = (other.submit(read_request({**CODE, "recipient": f"+1555020{n}"})) for n in range(3))
        assert [one.status for one in await asyncio.gather(*sends)] == ["sent"] * 3
        queued = {
            "channel": "sms",
            "content": {"body": "x"},
            "priority": "critical",
            "recipient": "+15550102",
        }
        mail = await other.submit(read_request(queued))
        await seconds(1)
        assert (await other.get(mail.id)).status is Status.SENT
    finally:
        await flood.stop()


async def test_single_sends_of_other_tenants_wait_for_no_send_that_has_to_leave_the_reserve(
    harness: EngineHarness,
) -> None:
    """One token a second comes, two are the reserve, and all sends of the other tenants need fewer."""
    provider = TenantProvider("flooding", 10)
    listed = serving("sms", provider, "sms", rate=RateLimit(per_second=1, burst=16))
    engine = await harness.open({"sms": listed})

    async def send(number: int, after_s: float = 0) -> str:
        await asyncio.sleep(after_s)
        request = {**CODE, "recipient": f"+155502{number:02}"}
        return (await engine.of(f"other{number}").submit(read_request(request))).status

    flood = Flood(engine, 50)
    try:
        await seconds(30.3)
        before = len(provider.sent)
        assert list(await asyncio.gather(send(0), send(1))) == ["sent"] * 2
        assert sorted(one.tenant for one in provider.sent[before:]) == ["other0", "other1"]
        later = [send(number, 1.1 * number) for number in range(12)]
        assert await asyncio.gather(*later) == ["sent"] * 12
    finally:
        await flood.stop()


class TenantProvider(ScriptedProvider):
    """Answers one tenant after `latency_ms`, and all others at once."""

    def __init__(self, slow_tenant: str, latency_ms: int) -> None:
        super().__init__("sms")
        self._slow_tenant = slow_tenant
        self._latency_ms = latency_ms

    async def send(self, delivery: Delivery) -> Outcome:
        if delivery.tenant == self._slow_tenant:
            await asyncio.sleep(self._latency_ms / 1000)
        return await super().send(delivery)


async def test_it_uses_the_first_provider_whose_breaker_is_not_open(harness: EngineHarness) -> None:
    first, second = ScriptedProvider("first"), ScriptedProvider("second")
    engine = await harness.open({"first": first, "second": second}, working=False)
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    sent = await ring(engine)
    assert sent.provider_message_id == "second-1"
    assert (await engine.get(sent.id)).provider_names == ("second",)
    assert first.sent == []


async def test_with_every_breaker_open_it_fails_without_an_attempt(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"sms": provider}, working=False)
    await engine.force_breaker("sms", Phase.OPEN, who="ada")
    with pytest.raises(DeliveryFailed):
        await ring(engine)
    found = await engine.get(await only(engine))
    assert (found.status, found.reason, found.attempt_count) == (Status.FAILED, Reason.DELIVERY_FAILED, 0)
    await engine.force_breaker("sms", None, who="ada")
    engine.start_worker()
    await seconds(600)
    assert provider.sent == []


async def test_a_suppressed_recipient_gets_nothing(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"sms": provider}, working=False)
    entry = Entry(tenant="default", kind="suppression", key=f"sms:{PHONE}:*", value={})
    await harness.store.put([entry], who="test")
    with pytest.raises(DeliverySkipped, match=r"skipped: SUPPRESSED\. Notification NOT queued") as caught:
        await ring(engine)
    assert caught.value.notification_id == await only(engine)
    assert await status(engine, await only(engine)) is Status.SKIPPED
    assert provider.sent == []


async def test_a_hanging_hook_takes_no_more_than_the_two_seconds(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    hook = RecipientHook(lambda claims: asyncio.Event().wait())
    engine = await harness.open({"sms": provider}, working=False, directory=hook)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeliveryFailed):
        await ring(engine)
    assert asyncio.get_running_loop().time() - began < 2.5
    assert await status(engine, await only(engine)) is Status.FAILED
    assert provider.sent == []


@pytest.mark.source("002", "185")
async def test_a_caller_that_is_cancelled_leaves_the_record(harness: EngineHarness) -> None:
    provider = ScriptedProvider(latency_ms=1500)
    engine = await harness.open({"sms": provider})
    call = asyncio.create_task(ring(engine))
    await seconds(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    id = await only(engine)
    history = await engine.history(id)
    assert history.notification.status is Status.FAILED
    assert len(history.attempts) == 1
    await seconds(600)
    assert len(provider.sent) == 1


async def test_a_caller_that_leaves_while_no_slot_is_free_leaves_no_lost_attempt(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(usual=HANG)
    engine = await harness.open({"any": serving("any", provider, "sms", "email", max_in_flight=1)})
    await engine.send(ADA, channel="email", body="x")
    await seconds(1)
    call = asyncio.create_task(ring(engine))
    await seconds(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (found,) = [one for one in (await engine.list()).items if one.channel is Channel.SMS]
    history = await engine.history(found.id)
    assert (history.notification.status, len(history.attempts)) == (Status.FAILED, 0)
    assert [d.channel for d in provider.sent if d.channel is Channel.SMS] == []


async def test_an_unexpected_error_after_the_caller_has_timed_out_is_logged(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.open({"sms": ScriptedProvider()})

    async def late(operation: str) -> None:
        if operation == "settle":
            await asyncio.sleep(3)
            raise KeyError("a bug in the store")

    harness.store.on_call = late
    with pytest.raises(DeliveryTimeout):
        await ring(engine)
    await seconds(3)
    harness.store.on_call = None
    assert "a synchronous send failed unexpectedly after its caller had timed out" in caplog.text
    assert "a bug in the store" in caplog.text


async def test_a_process_that_ends_waits_five_seconds_for_a_late_store(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider()}, working=False)

    async def never(operation: str) -> None:
        if operation == "settle":
            await asyncio.sleep(3600)

    harness.store.on_call = never
    with pytest.raises(DeliveryTimeout):
        await ring(engine)
    began = asyncio.get_running_loop().time()
    await engine.close()
    harness.store.on_call = None
    assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.5)


async def test_a_process_that_ends_aborts_a_send_that_the_store_has_not_accepted(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"sms": ScriptedProvider()}, working=False)
    aborted = []

    async def never(operation: str) -> None:
        if operation == "accept":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                aborted.append(operation)
                raise

    harness.store.on_call = never
    with pytest.raises(DeliveryTimeout):
        await ring(engine)
    assert aborted == []
    await engine.close()
    harness.store.on_call = None
    await seconds(1)
    assert aborted == ["accept"]


async def test_a_process_that_died_during_a_send_leaves_a_failure_that_is_never_sent(
    harness: EngineHarness,
) -> None:
    provider = ScriptedProvider(latency_ms=1500)
    engine = await harness.open({"sms": provider}, working=False)
    call = asyncio.create_task(ring(engine))
    await seconds(1)
    harness.store.away.add("settle")
    call.cancel()
    with pytest.raises((asyncio.CancelledError, StoreUnavailable)):
        await call
    harness.store.away.clear()
    other = await harness.open({"sms": provider})
    await seconds(60)
    assert await status(other, await only(other)) is Status.FAILED
    assert len(provider.sent) == 1


async def test_a_store_error_during_the_settlement_loses_no_success(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider("sms")}, working=False)
    harness.store.stumbles["settle"] = 2
    sent = await ring(engine)
    assert sent.status == "sent"
    assert await status(engine, sent.id) is Status.SENT


async def test_an_unavailable_store_refuses_it_and_nothing_is_sent_or_spooled(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"sms": provider}, working=False)
    harness.store.away.add("accept")
    with pytest.raises(StoreUnavailable):
        await ring(engine, if_unavailable="spool")
    assert provider.sent == []
    assert await stored(harness) == 0


async def test_retry_resend_and_bulk_commands_do_not_apply_to_it(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"sms": provider})
    with pytest.raises(DeliveryFailed) as caught:
        await ring(engine)
    id = caught.value.notification_id
    with pytest.raises(CommandRefused, match="synchronous"):
        await engine.retry(id)
    with pytest.raises(CommandRefused, match="synchronous"):
        await engine.resend(id)
    for name in (CommandName.RETRY, CommandName.RESEND, CommandName.ACKNOWLEDGE):
        done = [step async for step in engine.bulk(name, Filter(statuses=(Status.FAILED,)), who="ada")]
        assert [step.done for step in done if step.done] == []
    await engine.acknowledge(id, who="ada", why="known")
    await seconds(600)
    assert (await engine.get(id)).acknowledged_by == "ada"
    assert len(provider.sent) == 1


async def test_the_same_key_returns_the_same_delivery(harness: EngineHarness) -> None:
    provider = ScriptedProvider("sms")
    engine = await harness.open({"sms": provider}, working=False)
    first = await ring(engine, idempotency_key="k")
    again = await ring(engine, idempotency_key="k")
    assert (again.id, again.status, again.provider_message_id) == (first.id, "sent", "sms-1")
    assert again.duplicate
    assert len(provider.sent) == 1


async def test_the_same_key_at_the_same_time_waits_for_the_one_delivery(harness: EngineHarness) -> None:
    provider = ScriptedProvider("sms", latency_ms=700)
    engine = await harness.open({"sms": provider}, working=False)
    answers = await asyncio.gather(*(ring(engine, idempotency_key="k") for _ in range(3)))
    assert {(a.id, a.status) for a in answers} == {(answers[0].id, "sent")}
    assert len(provider.sent) == 1


async def test_the_same_key_repeats_a_failure_as_a_failure(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider(script=[HANG])}, working=False)
    for _ in range(2):
        with pytest.raises(DeliveryTimeout, match="timed out after 2s"):
            await ring(engine, idempotency_key="k")


async def test_a_send_for_another_tenant_is_read_back_as_that_tenant(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider("sms")}, working=False)
    raw = {"recipient": ADA, "channel": "email", "content": {"body": "x"}, "synchronous": True}
    sent = await engine.of("acme").submit(read_request(raw))
    assert sent.status == "sent"
    assert await harness.store.get("acme", sent.id) is not None


async def test_it_respects_the_provider_s_rate_limit(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open(
        {"sms": serving("sms", provider, "sms", rate=RateLimit(1.0, 1))}, working=False
    )
    await asyncio.gather(ring(engine), ring(engine))
    assert provider.gaps == [1.0]


async def test_each_one_takes_one_token_of_the_provider_s_rate_limit(harness: EngineHarness) -> None:
    """A token that a process keeps would be missing in the others."""
    provider = TimedProvider()
    for _ in range(2):
        listed = serving("sms", provider, "sms", rate=RateLimit(8.0, 2))
        await ring(await harness.open({"sms": listed}, working=False))
    assert provider.gaps == [0.0]


async def test_it_does_not_wait_for_a_busy_worker(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=500)
    engine = await harness.open({"sms": serving("sms", provider, "sms", "email")}, slots={"bulk": 1})
    for n in range(20):
        await engine.send(f"p{n}@example.org", channel="email", body="x", bulk=True)
    await seconds(0.1)
    assert (await ring(engine)).status == "sent"


async def test_a_provider_at_its_limit_takes_no_more_than_the_two_seconds(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=HANG)
    listed = serving("any", provider, "sms", "email", max_in_flight=1)
    engine = await harness.open({"any": listed})
    await engine.send(ADA, channel="email", body="x")
    await seconds(1)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeliveryFailed) as caught:
        await ring(engine)
    assert asyncio.get_running_loop().time() - began < 2.5
    await seconds(1)  # the slot is still taken
    history = await engine.history(caught.value.notification_id)
    assert (history.notification.status, len(history.attempts)) == (Status.FAILED, 0)
    await seconds(60)
    assert [d.channel for d in provider.sent if d.channel is Channel.SMS] == []


async def test_a_hanging_recipient_service_takes_no_more_than_the_two_seconds(harness: EngineHarness) -> None:
    class Slow(RecipientHook):
        async def resolve(self, tenant: str, ids: Any) -> Any:
            await asyncio.sleep(60)
            return {}

    engine = await harness.open({"sms": ScriptedProvider()}, working=False, directory=Slow(lambda claims: {}))
    began = asyncio.get_running_loop().time()
    with pytest.raises(HomingError):
        await engine.send({"id": "u-1", "phone": PHONE}, channel="sms", body="x", synchronous=True)
    assert asyncio.get_running_loop().time() - began < 2.5
    assert await stored(harness) == 0


async def test_an_expiry_is_allowed_and_stored(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": ScriptedProvider()}, working=False)
    sent = await ring(engine, expires_at=timedelta(minutes=1))
    assert (await engine.get(sent.id)).expires_at is not None
