"""The trial of a half-open breaker, and how rarely a worker without capacity calls the store."""

from __future__ import annotations

from itertools import pairwise

import pytest

from homing import Delivery, Homing, Outcome, RateLimit, Status
from homing.core.routing.breaker import (
    BreakerGate,
    BreakerPolicy,
    Phase,
    begin_trial,
    check_gate,
    record_outcome,
)
from homing.providers.local.scripted import HANG
from support.engine_harness import (
    EngineHarness,
    FailingProvider,
    K,
    TimedProvider,
    mail,
    phase,
    seconds,
    serving,
    status,
    steady,
)


async def half_way(harness: EngineHarness) -> tuple[Homing, TimedProvider, TimedProvider]:
    """Provider `a` has failed and is due for a trial; `b` is forced open."""
    a, b = TimedProvider("a", usual=K.TRANSIENT), TimedProvider("b")
    a.up = False
    engine = await harness.open({"a": a, "b": b}, rules=steady(max_attempts=50, failover_after=50))
    await engine.force_breaker("b", Phase.OPEN, who="ada")
    ids = [await mail(engine) for _ in range(5)]
    await seconds(3)
    for id in ids:
        await engine.cancel(id)
    await seconds(60)
    a.times.clear()
    return engine, a, b


async def test_two_workers_share_one_trial(harness: EngineHarness) -> None:
    provider = FailingProvider(latency_ms=500)
    for _ in range(2):
        engine = await harness.open({"mail": provider}, rules=steady(max_attempts=99))
    for _ in range(30):
        await mail(engine)
    await seconds(20)
    tried = len(provider.times)
    await seconds(200)
    trials = provider.times[tried:]
    assert len(trials) in (3, 4)
    assert all(b - a >= 60 for a, b in pairwise(trials))


async def test_a_claim_that_lost_the_trial_to_another_worker_is_sent_soon_after_its_success(
    harness: EngineHarness,
) -> None:
    """The other trial may take a minute, but ends within a second."""
    provider, other = FailingProvider(), harness.store.twin()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=99, timeout_ms="60s"))
    ids = [await mail(engine) for _ in range(5)]
    await seconds(20)
    assert await phase(harness) is Phase.OPEN

    async def win_the_trial(operation: str) -> None:
        breaker = (await other.breakers())["mail"]
        if operation == "put_breaker" and check_gate(breaker, await other.now_ms()) is BreakerGate.TRIAL:
            harness.store.on_call = None
            assert await other.put_breaker("mail", begin_trial(breaker, "w9", await other.now_ms(), 60_000))

    harness.store.on_call = win_the_trial
    provider.repair()
    for _ in range(600):
        if await phase(harness) is Phase.HALF_OPEN:
            break
        await seconds(0.1)
    assert await phase(harness) is Phase.HALF_OPEN
    await seconds(0.5)
    assert Status.SENT not in [await status(engine, id) for id in ids]
    trial = (await other.breakers())["mail"]
    succeeded = record_outcome(trial, BreakerPolicy(), False, await other.now_ms())
    assert await other.put_breaker("mail", succeeded)
    await seconds(10)
    assert [await status(engine, id) for id in ids] == [Status.SENT] * 5


async def test_a_trial_of_a_dead_worker_is_granted_to_another(harness: EngineHarness) -> None:
    provider = FailingProvider()
    one = await harness.open({"mail": provider}, rules=steady(max_attempts=99, timeout_ms="5s"))
    for _ in range(5):
        await mail(one)
    await seconds(50)
    provider.usual = HANG
    await seconds(13)
    assert await phase(harness) is Phase.HALF_OPEN
    await one.stop_worker(hard=True)
    provider.repair()
    two = await harness.open({"mail": provider}, rules=steady(max_attempts=99, timeout_ms="5s"))
    await seconds(90)
    assert await phase(harness) is Phase.CLOSED
    assert {n.status for n in (await two.list()).items} == {Status.SENT}


async def test_a_notification_whose_hold_has_ended_can_be_the_trial(harness: EngineHarness) -> None:
    """The provider asked to wait, and its breaker opened meanwhile. No other notification waits for it."""
    a = TimedProvider("a", script=[Outcome(K.THROTTLED, retry_after_ms=5_000)], usual=K.TRANSIENT)
    engine = await harness.open({"a": a, "b": TimedProvider("b")}, rules=steady(max_attempts=50))
    await engine.force_breaker("b", Phase.OPEN, who="ada")
    held = await mail(engine)
    await seconds(1)
    others = [await mail(engine) for _ in range(5)]
    await seconds(1)
    for id in others:
        await engine.cancel(id)
    assert await phase(harness, "a") is Phase.OPEN
    a.usual = K.ACCEPTED
    await seconds(120)
    assert await status(engine, held) is Status.SENT


async def test_a_notification_waits_no_longer_than_until_its_hold_and_the_breaker_there_have_ended(
    harness: EngineHarness,
) -> None:
    """Its other provider is stopped until an operator releases it, which alone would mean 30 seconds."""
    a = TimedProvider("a", script=[Outcome(K.THROTTLED, retry_after_ms=20_000)], usual=K.TRANSIENT)
    engine = await harness.open(
        {
            "a": serving("a", a, breaker=BreakerPolicy(failures=1, open_ms=15_000)),
            "b": TimedProvider("b", usual=K.TRANSIENT),
        },
        rules=steady(max_attempts=50),
    )
    held = await mail(engine)
    await seconds(1)
    await engine.force_breaker("b", Phase.OPEN, who="ada")
    other = await mail(engine, provider="a")
    await seconds(1)
    await engine.cancel(other)
    assert await phase(harness, "a") is Phase.OPEN
    a.usual = K.ACCEPTED
    await seconds(28)
    done = await engine.get(held)
    assert (done.status, done.provider_names) == (Status.SENT, ("a", "b", "a"))


async def test_a_throttled_trial_neither_closes_nor_reopens_it(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=99, timeout_ms="5s"))
    ids = [await mail(engine) for _ in range(5)]
    await seconds(30)
    provider.script.append(Outcome(K.THROTTLED, retry_after_ms=1000))
    provider.usual = K.ACCEPTED
    await seconds(180)
    assert {await status(engine, id) for id in ids} == {Status.SENT}


async def test_a_failed_trial_opens_it_for_another_minute(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=50))
    for _ in range(5):
        await mail(engine)
    await seconds(200)
    trials = provider.times[5:]
    assert len(trials) == 3
    for before, after in pairwise(trials):
        assert 60 <= after - before < 63
    assert await phase(harness) is Phase.OPEN


async def test_after_a_minute_one_trial_goes_through_and_closes_it(harness: EngineHarness) -> None:
    provider = FailingProvider(latency_ms=3000)
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=20))
    ids = [await mail(engine) for _ in range(8)]
    await seconds(30)
    tried = len(provider.times)
    provider.usual = K.ACCEPTED
    await seconds(33.5)
    assert len(provider.times) == tried + 1
    assert await phase(harness) is Phase.HALF_OPEN
    await seconds(120)
    assert await phase(harness) is Phase.CLOSED
    assert {await status(engine, id) for id in ids} == {Status.SENT}


async def test_an_earlier_attempt_does_not_decide_the_trial(harness: EngineHarness) -> None:
    def slowly(delivery: Delivery) -> Outcome:
        return Outcome(K.ACCEPTED)

    class Mixed(FailingProvider):
        async def send(self, delivery: Delivery) -> Outcome:
            self.latency_ms = 65_000 if delivery.type == "slow" else 10_000 if len(self.times) > 5 else 0
            if delivery.type == "slow":
                self.script.appendleft(slowly)
            return await super().send(delivery)

    engine = await harness.open({"mail": Mixed()}, rules=steady(max_attempts=50, timeout_ms="100s"))
    slow = await mail(engine, type="slow")
    for _ in range(5):
        await mail(engine)
    await seconds(66)
    assert await status(engine, slow) is Status.SENT
    assert await phase(harness) is Phase.HALF_OPEN
    await seconds(8)
    assert await phase(harness) is Phase.OPEN


async def test_a_notification_pinned_elsewhere_leaves_the_trial_to_others(harness: EngineHarness) -> None:
    engine, a, _ = await half_way(harness)
    await mail(engine, provider="b")
    await seconds(3)
    assert (await harness.store.breakers())["a"].phase is Phase.OPEN
    a.usual = K.ACCEPTED
    id = await mail(engine)
    await seconds(3)
    assert await status(engine, id) is Status.SENT
    assert len(a.times) == 1


async def test_a_forced_state_overrides_a_trial(harness: EngineHarness) -> None:
    engine, a, _ = await half_way(harness)
    await mail(engine, provider="b")
    await seconds(3)
    await engine.force_breaker("a", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(60)
    assert await status(engine, id) is Status.PENDING
    assert a.times == []


async def test_a_provider_forced_open_gets_no_health_checks(harness: EngineHarness) -> None:
    class Asked(FailingProvider):
        checks = 0

        async def check(self) -> bool:
            self.checks += 1
            return False

    provider = Asked()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=50))
    for _ in range(5):
        await mail(engine)
    await seconds(3)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    before = provider.checks
    await seconds(50)
    assert provider.checks == before


async def test_a_running_trial_ends_even_if_the_operator_closes_the_breaker(harness: EngineHarness) -> None:
    engine, a, _ = await half_way(harness)
    a.usual, a.latency_ms = K.ACCEPTED, 5000
    first = await mail(engine)
    await seconds(2)
    await engine.force_breaker("a", Phase.CLOSED, who="ada")
    second = await mail(engine)
    await seconds(10)
    assert [await status(engine, id) for id in (first, second)] == [Status.SENT, Status.SENT]


@pytest.mark.parametrize("why", ["full", "slots", "rate", "paused", "pinned"])
async def test_a_worker_without_capacity_does_not_poll_the_store(harness: EngineHarness, why: str) -> None:
    provider = TimedProvider(usual=HANG)
    listed = {
        "full": serving("a", provider, max_in_flight=1),
        "rate": serving("a", TimedProvider(), rate=RateLimit(0.1, 1)),
    }.get(why, serving("a", provider))
    engine = await harness.open(
        {"a": listed, "b": serving("b", TimedProvider(), "sms", "push")}, slots={"standard": 8}
    )
    if why in ("paused", "pinned"):
        await engine.force_breaker("a", Phase.OPEN, who="ada")
    for _ in range(50):
        await mail(engine, **({"provider": "a"} if why == "pinned" else {}))
    await seconds(5)
    before = dict(harness.store.calls)
    await seconds(20)
    for call in ("claim", "take"):
        assert harness.store.calls[call] - before.get(call, 0) <= 25


async def test_a_process_that_runs_now_and_then_gets_through_after_a_recovery_too(
    harness: EngineHarness,
) -> None:
    provider = FailingProvider()
    listed = serving("a", provider, "sms", "email", "push")
    engine = await harness.open({"a": listed}, rules=steady(max_attempts=50), working=False)
    for _ in range(8):
        await mail(engine)
    for _ in range(3):
        await engine.process()
        await seconds(11)
    provider.repair()
    await seconds(60)
    succeeded = 0
    for _ in range(6):
        succeeded += (await engine.process()).succeeded
        await seconds(5)
    assert succeeded == 8
