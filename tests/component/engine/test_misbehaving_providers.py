"""Providers and hooks that block, raise what ends a process, or ignore their cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from homing import Outcome, OutcomeKind, Status
from homing.core.errors import DeliveryTimeout, StoreUnavailable
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement
from homing.core.notifications import Reason, Recipient
from homing.core.ports.providers import Delivery
from homing.core.retry.decide import RecipientFacts
from homing.core.routing.breaker import BreakerPolicy
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import VirtualBlock
from support.batch_provider import BatchProvider
from support.engine_harness import (
    ADA,
    EngineHarness,
    K,
    RecipientHook,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
    text,
)

FATAL = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]


class BlockingFunction:
    """A plain function that blocks its thread for some seconds of virtual time, and then accepts."""

    def __init__(self, *blocks_s: float) -> None:
        self._blocks_s = list(blocks_s)
        self.started = 0
        self.running = 0
        self.busiest = 0

    def __call__(self, delivery: Delivery) -> Any:
        self.started += 1
        return VirtualBlock(
            self._block(f"m-{self.started}", self._blocks_s.pop(0) if self._blocks_s else 0.0)
        )

    async def _block(self, id: str, for_s: float) -> str:
        self.running += 1
        self.busiest = max(self.busiest, self.running)
        try:
            await asyncio.sleep(for_s)
        finally:
            self.running -= 1
        return id


class PlainProvider:
    """An object whose methods are plain ones. `send` blocks its thread for eight seconds of virtual time."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0

    def send(self, delivery: Delivery) -> Any:
        self.started += 1
        return VirtualBlock(self._block())

    def check(self) -> bool:
        return True

    async def _block(self) -> Outcome:
        self.running += 1
        await asyncio.sleep(8)
        self.running -= 1
        return Outcome(K.ACCEPTED, provider_message_id="m-1")


class StubbornProvider(ScriptedProvider):
    """Ignores its cancellation, and returns only when `release` is set."""

    def __init__(self) -> None:
        super().__init__("mail")
        self.release = asyncio.Event()
        self.calls = 0

    async def send(self, delivery: Delivery) -> Outcome:
        self.calls += 1
        if self.calls > 1:
            return await super().send(delivery)
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        return Outcome(K.ACCEPTED, provider_message_id="too-late")


@pytest.fixture
async def stubborn() -> AsyncIterator[StubbornProvider]:
    """A stubborn provider, which returns at the end of the test at the latest."""
    provider = StubbornProvider()
    yield provider
    provider.release.set()
    await asyncio.sleep(0)


# Blocking functions and methods -------------------------------------------------------------------------


async def test_a_blocking_function_delays_no_other_provider(harness: EngineHarness) -> None:
    slow, fast = BlockingFunction(8), TimedProvider()
    engine = await harness.open({"slow": serving("slow", slow), "fast": serving("fast", fast, "sms")})
    await mail(engine)
    await seconds(0.1)
    id = await text(engine)
    await seconds(0.1)
    assert await status(engine, id) is Status.SENT
    assert slow.running == 1


async def test_a_plain_method_that_sends_runs_in_a_thread_and_its_message_is_sent_once(
    harness: EngineHarness,
) -> None:
    plain, fast = PlainProvider(), TimedProvider()
    engine = await harness.open({"plain": plain, "fast": serving("fast", fast, "sms")})  # type: ignore[dict-item]
    id = await mail(engine)
    await seconds(0.1)
    other = await text(engine, provider="fast")
    await seconds(0.1)
    assert await status(engine, other) is Status.SENT
    assert plain.running == 1
    await seconds(10)
    (attempt,) = (await engine.history(id)).attempts
    assert (attempt.outcome, attempt.provider_message_id) == (K.ACCEPTED, "m-1")
    assert plain.started == 1
    assert [one.usable for one in await engine.check_providers("plain")] == [True]


async def test_a_blocking_function_past_its_timeout_is_ambiguous_and_its_late_result_is_ignored(
    harness: EngineHarness,
) -> None:
    function = BlockingFunction(60)
    engine = await harness.open({"mail": function}, rules=steady(timeout_ms=5_000))
    id = await mail(engine)
    await seconds(5.5)
    (attempt,) = (await engine.history(id)).attempts
    assert (attempt.outcome, attempt.error_code) == (K.AMBIGUOUS, "timeout")
    await seconds(120)
    history = await engine.history(id)
    assert history.notification.provider_message_ids == (None, "m-2")
    assert [one.outcome for one in history.attempts] == [K.AMBIGUOUS, K.ACCEPTED]


async def test_a_blocking_function_keeps_its_slot_until_it_returns(harness: EngineHarness) -> None:
    function = BlockingFunction(60, 60, 60)
    listed = serving("mail", function, max_in_flight=3)
    engine = await harness.open({"mail": listed}, rules=steady(timeout_ms=5_000))
    ids = [await mail(engine, f"p{n}@example.org") for n in range(6)]
    await seconds(50)
    hanging = function.running
    assert hanging > 0
    assert function.started == hanging == engine.worker.abandoned
    assert sum([len((await engine.history(id)).attempts) for id in ids]) == hanging
    await seconds(300)
    assert engine.worker.abandoned == 0
    assert function.busiest == hanging
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    histories = [await engine.history(id) for id in ids]
    assert Counter([a.outcome for one in histories for a in one.attempts]) == {K.ACCEPTED: 6, K.AMBIGUOUS: 3}


async def test_a_worker_stops_although_a_blocking_function_never_returns(harness: EngineHarness) -> None:
    function = BlockingFunction(10**6)
    engine = await harness.open({"mail": function}, rules=steady(timeout_ms=5_000))
    id = await mail(engine)
    await seconds(1)
    began = asyncio.get_running_loop().time()
    await engine.stop_worker()
    assert asyncio.get_running_loop().time() - began < 5
    (attempt,) = (await engine.history(id)).attempts
    assert attempt.outcome is K.AMBIGUOUS


# Cancellation that is ignored ---------------------------------------------------------------------------


async def test_a_provider_that_ignores_its_cancellation_is_left_behind_at_its_deadline(
    harness: EngineHarness, stubborn: StubbornProvider, caplog: pytest.LogCaptureFixture
) -> None:
    listed = serving("mail", stubborn, max_in_flight=1)
    engine = await harness.open({"mail": listed}, rules=steady(timeout_ms=5_000))
    first = await mail(engine)
    await seconds(1)
    second = await mail(engine, "b@example.org")
    await seconds(6)
    (attempt,) = (await engine.history(first)).attempts
    assert (attempt.outcome, attempt.error_code) == (K.AMBIGUOUS, "timeout")
    assert "provider mail has not returned after the timeout of an attempt; 1 of its calls" in caplog.text
    await seconds(60)
    assert (stubborn.calls, engine.worker.abandoned) == (1, 1)  # its only slot is taken
    assert await status(engine, second) is Status.PENDING
    stubborn.release.set()
    await seconds(60)
    assert (await status(engine, first), await status(engine, second)) == (Status.SENT, Status.SENT)
    assert "too-late" not in (await engine.get(first)).provider_message_ids


async def test_a_provider_that_ignores_its_cancellation_does_not_hold_up_a_hard_stop(
    harness: EngineHarness, stubborn: StubbornProvider
) -> None:
    engine = await harness.open({"mail": stubborn})
    await mail(engine)
    await seconds(1)
    began = asyncio.get_running_loop().time()
    await engine.stop_worker(hard=True)
    assert asyncio.get_running_loop().time() - began <= 1


async def test_a_synchronous_send_ends_in_time_although_its_provider_ignores_its_cancellation(
    harness: EngineHarness, stubborn: StubbornProvider
) -> None:
    engine = await harness.open({"mail": stubborn}, working=False)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeliveryTimeout) as caught:
        await mail(engine, synchronous=True)
    assert asyncio.get_running_loop().time() - began <= 2
    assert await status(engine, caught.value.notification_id) is Status.FAILED


async def test_plain_health_checks_that_hang_leave_the_threads_of_sends_alone(harness: EngineHarness) -> None:
    class Hanging:
        """Its first sends fail, and its health check never returns."""

        def __init__(self) -> None:
            self.sends = 0

        def send(self, delivery: Delivery) -> Outcome:
            self.sends += 1
            return Outcome(K.ACCEPTED if self.sends > 5 else K.TRANSIENT)

        def check(self) -> Any:
            return VirtualBlock(asyncio.Event().wait())

    policy = BreakerPolicy(failures=5, open_ms=60_000, health_every_ms=10_000)
    listed = serving("plain", Hanging(), max_in_flight=2, breaker=policy)
    engine = await harness.open({"plain": listed}, rules=steady())
    ids = [await mail(engine) for _ in range(5)]
    await seconds(200)
    assert [await status(engine, id) for id in ids] == [Status.SENT] * 5


@pytest.mark.parametrize("taken", [True, False])
async def test_a_synchronous_send_whose_provider_cancels_its_task_has_a_result(
    harness: EngineHarness, taken: bool
) -> None:
    async def cancel(delivery: Delivery) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if not taken:
            await asyncio.sleep(1)
        return "m-1"

    engine = await harness.open({"mail": cancel}, working=False)
    if taken:
        assert (await engine.send(ADA, channel="email", body="x", synchronous=True)).status == "sent"
        return
    with pytest.raises(DeliveryTimeout) as caught:
        await engine.send(ADA, channel="email", body="x", synchronous=True)
    assert caught.value.notification_id is not None
    (attempt,) = (await engine.history(caught.value.notification_id)).attempts
    assert attempt.outcome is K.LOST


async def test_a_provider_that_is_tried_out_and_never_returns_is_left_behind(
    harness: EngineHarness, stubborn: StubbornProvider
) -> None:
    engine = await harness.open({"mail": stubborn}, working=False)
    tried = await engine.try_provider("mail", "a@example.org", "email")
    assert (tried.outcome, tried.error_code) == (OutcomeKind.AMBIGUOUS, "timeout")


# What would end the process -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
async def test_whatever_a_provider_raises_becomes_an_outcome_at_once(
    harness: EngineHarness, error: BaseException
) -> None:
    class Raising(ScriptedProvider):
        async def send(self, delivery: Delivery) -> Outcome:
            if delivery.attempt == 1:
                raise error
            return await super().send(delivery)

    engine = await harness.open({"mail": Raising("mail")}, rules=steady())
    id = await mail(engine)
    await seconds(0.1)
    (attempt,) = (await engine.history(id)).attempts
    assert (attempt.outcome, attempt.error_code) == (K.AMBIGUOUS, "provider_error")
    await seconds(60)
    assert await status(engine, id) is Status.SENT


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
async def test_a_batch_provider_that_raises_ends_its_attempts_and_no_others(
    harness: EngineHarness, error: BaseException
) -> None:
    class Raising(BatchProvider):
        def begin(self, batch: Any, ended: Any) -> None:
            raise error

        def give_up(self, marks: Any) -> None:
            raise error

    engine = await harness.open(
        {"mail": serving("mail", Raising()), "sms": serving("sms", ScriptedProvider("sms"), "sms")},
        rules=steady(),
    )
    id, other = await mail(engine), await text(engine)
    await seconds(0.1)
    (attempt,) = (await engine.history(id)).attempts
    assert (attempt.outcome, attempt.error_code) == (K.AMBIGUOUS, "provider_error")
    assert await status(engine, other) is Status.SENT


class Hook(RecipientHook):
    """A directory that raises something, or never returns, until it is repaired."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__(lambda claims: {})
        self.error = error
        self.broken = True

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        await self._act()
        return {}

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, RecipientFacts]:
        await self._act()
        return {}

    async def _act(self) -> None:
        if self.error is not None and self.broken:
            raise self.error
        while self.broken:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                continue


@pytest.mark.parametrize("error", [*FATAL, None], ids=lambda error: type(error).__name__)
async def test_a_directory_that_raises_anything_or_never_returns_postpones_only(
    harness: EngineHarness, error: BaseException | None
) -> None:
    hook = Hook(error)
    engine = await harness.open({"mail": ScriptedProvider("mail")}, directory=hook)
    id = await mail(engine)
    try:
        with pytest.raises(StoreUnavailable):
            await engine.send({"id": "u-1"}, channel="email", body="x")
        await seconds(12)
        assert (await engine.history(id)).attempts == ()
    finally:
        hook.broken = False
    await seconds(60)
    assert (await engine.get(id)).attempt_count == 1
    assert await status(engine, id) is Status.SENT


@pytest.mark.parametrize("found", [{"u-1": "ada@example.org"}, ["ada@example.org"], None])
async def test_a_directory_that_returns_something_else_than_recipients_is_unavailable(
    harness: EngineHarness, found: Any
) -> None:
    class Odd(RecipientHook):
        async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
            return found  # type: ignore[no-any-return]

    engine = await harness.open({"mail": ScriptedProvider("mail")}, directory=Odd(lambda claims: {}))
    with pytest.raises(StoreUnavailable, match="the recipient directory returned an invalid"):
        await engine.send({"id": "u-1"}, channel="email", body="x")


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
async def test_a_health_check_a_sink_and_a_callback_may_raise_anything(
    harness: EngineHarness, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Unhealthy(ScriptedProvider):
        async def check(self) -> bool:
            raise error

    def on_event(event: object) -> None:
        raise error

    def on_settled(settlement: Settlement, applied: bool) -> None:
        raise error

    engine = await harness.open(
        {"mail": Unhealthy("mail")}, on_event=on_event, events=["StatusChanged"], working=False
    )
    engine.on_settled = on_settled
    engine.start_worker()
    (health,) = await engine.check_providers()
    assert not health.usable
    first = await mail(engine)
    await seconds(5)
    second = await mail(engine, "b@example.org")
    await seconds(5)
    assert (await status(engine, first), await status(engine, second)) == (Status.SENT, Status.SENT)
    assert "failed to take" in caplog.text


# Attempts that never started ----------------------------------------------------------------------------


async def test_an_attempt_whose_lease_cannot_be_extended_is_given_back(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    provider, brief = TimedProvider("mail"), tmp_path / "homing.toml"
    brief.write_text('[worker]\nlease_ms = "20s"\n')
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms=30_000), config_file=brief)
    harness.store.away.add("extend")
    id = await mail(engine)
    await seconds(10)
    assert provider.sent == []
    assert "postponed" in caplog.text
    harness.store.away.clear()
    await seconds(60)
    history = await engine.history(id)
    assert [one.outcome for one in history.attempts] == [K.ACCEPTED]
    assert history.notification.attempt_count == 1


async def test_what_was_settled_before_its_batch_broke_off_is_not_given_back(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    skip = {ADA: RecipientFacts(skip=Reason.SUPPRESSED)}
    directory = RecipientHook(lambda claims: {c.id: skip.get(c.address, RecipientFacts()) for c in claims})
    engine = await harness.open({"mail": ScriptedProvider("mail")}, working=False, directory=directory)
    skipped, held = await mail(engine), await mail(engine, "b@example.org")
    route = engine._deliverer.route

    async def broken(ready: Any, settle: Any) -> Any:
        raise LookupError("a bug")

    monkeypatch.setattr(engine._deliverer, "route", broken)
    engine.start_worker()
    await seconds(3)
    assert await status(engine, skipped) is Status.SKIPPED
    assert {record.getMessage() for record in caplog.records} == {
        "1 claims could not be started; they are given back"
    }
    monkeypatch.setattr(engine._deliverer, "route", route)
    await seconds(30)
    assert await status(engine, held) is Status.SENT


async def test_claims_that_cannot_be_checked_are_given_back(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    engine = await harness.open({"mail": ScriptedProvider("mail")})
    guard = engine._deliverer.guard

    async def broken(claims: Any, settle: Any) -> Any:
        raise LookupError("a bug")

    monkeypatch.setattr(engine._deliverer, "guard", broken)
    id = await mail(engine)
    await seconds(3)
    assert "1 claims could not be started; they are given back" in caplog.text
    monkeypatch.setattr(engine._deliverer, "guard", guard)
    await seconds(30)
    assert (await engine.get(id)).attempt_count == 1
    assert await status(engine, id) is Status.SENT


class NeverReturningProvider(ScriptedProvider):
    """Ignores its cancellation, and returns only when `release` is set."""

    def __init__(self, name: str = "mail") -> None:
        super().__init__(name)
        self.release = asyncio.Event()
        self.calls = 0

    async def send(self, delivery: Delivery) -> Outcome:
        self.calls += 1
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        return await super().send(delivery)


@pytest.fixture
async def hanging() -> AsyncIterator[NeverReturningProvider]:
    """A provider whose calls return at the end of the test at the latest."""
    provider = NeverReturningProvider()
    yield provider
    provider.release.set()
    await asyncio.sleep(0)


async def test_calls_that_never_return_leave_the_lane_to_the_other_provider(
    harness: EngineHarness, hanging: NeverReturningProvider
) -> None:
    engine = await harness.open(
        {"first": serving("first", hanging), "second": serving("second", ScriptedProvider("second"))},
        rules=steady(timeout_ms=5_000, on_timeout="failover"),
    )
    ids = [await mail(engine, f"p{number}@example.org", bulk=True) for number in range(120)]
    await seconds(90)
    assert Counter([await status(engine, id) for id in ids]) == {Status.SENT: 120}
    assert engine.worker.abandoned == hanging.calls > 0


async def test_no_attempt_waits_forever_for_a_slot_that_a_hanging_call_keeps(
    harness: EngineHarness, hanging: NeverReturningProvider
) -> None:
    engine = await harness.open(
        {"mail": serving("mail", hanging, max_in_flight=8)}, rules=steady(timeout_ms=5_000)
    )
    ids = [await mail(engine, f"p{number}@example.org") for number in range(30)]
    await seconds(600)
    assert (hanging.calls, engine.worker.abandoned, engine.worker.in_flight) == (8, 8, 0)
    assert engine.snapshot().abandoned == {"mail": 8}
    async with asyncio.timeout(10):
        await engine.stop_worker()
    assert Status.SENDING not in [await status(engine, id) for id in ids]


async def test_a_later_worker_knows_the_calls_that_an_earlier_one_left_behind(
    harness: EngineHarness, hanging: NeverReturningProvider
) -> None:
    engine = await harness.open(
        {"mail": serving("mail", hanging, max_in_flight=1)}, rules=steady(timeout_ms=5_000)
    )
    await mail(engine, "b@example.org")
    await seconds(6)
    await engine.stop_worker()
    waiting = await mail(engine)
    async with asyncio.timeout(10):
        assert (await engine.process()).processed == 0
    assert await status(engine, waiting) is Status.PENDING
    engine.start_worker()
    await seconds(60)
    assert (hanging.calls, engine.worker.abandoned, engine.worker.in_flight) == (1, 1, 0)
    hanging.release.set()
    await seconds(120)
    assert await status(engine, waiting) is Status.SENT


async def test_a_draining_worker_gives_back_attempts_that_wait_for_a_slot(
    harness: EngineHarness, hanging: NeverReturningProvider
) -> None:
    """The worker does not count a synchronous send, so it claims a notification for the slot in use."""
    engine = await harness.open({"mail": serving("mail", hanging, max_in_flight=1)})
    sending = asyncio.create_task(mail(engine, "b@example.org", synchronous=True))
    await seconds(0.1)
    waiting = await mail(engine)
    await seconds(0.5)
    assert hanging.calls == 1
    assert await status(engine, waiting) is Status.SENDING
    async with asyncio.timeout(1):
        await engine.stop_worker()
    assert await status(engine, waiting) is Status.PENDING
    await asyncio.gather(sending, return_exceptions=True)
