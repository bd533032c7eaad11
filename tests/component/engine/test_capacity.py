"""Capacity is never exceeded: in-flight limits, rate limits, lanes, tenants, hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from homing import Listed, RateLimit, Status
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel
from homing.core.ports.providers import Delivery
from homing.core.retry.decide import RecipientFacts
from homing.core.routing.breaker import BreakerPolicy, Phase
from homing.core.routing.rate_limits import provider_bucket
from homing.engine.delivery.capacity import Capacity
from homing.engine.delivery.timers import Timers
from homing.providers.local.scripted import HANG, ScriptedProvider
from homing.testing.builders import a_notification, a_submission
from support.engine_harness import (
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


def most_in_a_window(times: list[float], window: float) -> int:
    """Returns the largest number of starts within any window of this length."""
    return max(sum(1 for other in times if at <= other < at + window) for at in times)


async def test_no_more_attempts_are_in_flight_than_the_provider_allows(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=1000)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=7)})
    ids = [await mail(engine) for _ in range(40)]
    await seconds(10)
    assert provider.busiest == 5, "one slot is reserved for priority, one stays free for another tenant"
    assert {await status(engine, id) for id in ids} == {Status.SENT}


async def test_the_limit_covers_all_lanes_and_channels_together(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=1000)
    engine = await harness.open({"any": serving("any", provider, "email", "sms", max_in_flight=5)})
    for priority in ("critical", "medium", "low"):
        for _ in range(10):
            await mail(engine, priority=priority)
            await text(engine, priority=priority)
    await seconds(20)
    assert provider.busiest == 5
    assert len(provider.times) == 60


async def test_the_limit_holds_when_another_provider_s_messages_are_taken_over(
    harness: EngineHarness,
) -> None:
    stand_in = TimedProvider(latency_ms=1000)
    engine = await harness.open(
        {
            "first": serving("first", ScriptedProvider()),
            "second": serving("second", stand_in, max_in_flight=4),
        }
    )
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    for _ in range(10):
        await mail(engine)
        await mail(engine, provider="second")
    await seconds(20)
    assert stand_in.busiest <= 4
    assert len(stand_in.times) == 20


@pytest.mark.parametrize("rate", [RateLimit(5.0, 5), RateLimit(2.0, 1), RateLimit(20.0, 10)])
@pytest.mark.source("003", "439")
async def test_a_rate_limit_is_never_exceeded_and_nothing_is_dropped(
    harness: EngineHarness, rate: RateLimit
) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": serving("mail", provider, rate=rate)})
    for _ in range(50):
        await mail(engine)
    await seconds(40)
    assert len(provider.times) == 50
    for window in (1, 5, 10):
        assert most_in_a_window(provider.times, window) <= rate.burst + rate.per_second * window + 1e-6


async def test_a_provider_with_a_low_rate_limit_does_not_slow_down_one_with_a_higher_limit(
    harness: EngineHarness,
) -> None:
    quick, slow = TimedProvider(), TimedProvider()
    providers = {
        "mail": serving("mail", quick, rate=RateLimit(10.0, 1)),
        "sms": serving("sms", slow, "sms", rate=RateLimit(0.1, 1)),
    }
    engine = await harness.open(providers, working=False)
    for _ in range(30):
        await mail(engine)
        await text(engine)
    engine.start_worker()
    await seconds(3)
    assert len(quick.times) >= 25
    assert len(slow.times) == 1


async def test_a_rate_limit_covers_two_workers_together(harness: EngineHarness) -> None:
    provider, rate = TimedProvider(), RateLimit(4.0, 4)
    for _ in range(2):
        engine = await harness.open({"mail": serving("mail", provider, rate=rate)})
    for _ in range(40):
        await mail(engine)
    await seconds(30)
    assert len(provider.times) == 40
    for window in (1, 3):
        assert most_in_a_window(provider.times, window) <= 4 + 4 * window


async def test_a_rate_limit_holds_for_a_substitute_provider(harness: EngineHarness) -> None:
    stand_in, rate = TimedProvider(), RateLimit(1.0, 2)
    engine = await harness.open(
        {"first": serving("first", ScriptedProvider()), "second": serving("second", stand_in, rate=rate)}
    )
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    for _ in range(12):
        await mail(engine)
    await seconds(20)
    assert len(stand_in.times) == 12
    assert most_in_a_window(stand_in.times, 5) <= 7


async def test_a_rate_limit_holds_if_the_substitute_is_found_after_the_claim(harness: EngineHarness) -> None:
    """The provider stops between the claim of the first mails and their sends, and another claim follows."""

    async def slow_facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        await seconds(5)
        return {}

    second = TimedProvider()
    engine = await harness.open(
        {
            "first": serving("first", ScriptedProvider()),
            "second": serving("second", second, rate=RateLimit(0.1, 1)),
        },
        directory=RecipientHook(slow_facts),
    )
    for _ in range(4):
        await mail(engine)
    await seconds(2)
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    await mail(engine)
    await seconds(10)
    assert len(second.times) == 1


async def test_a_rate_limit_covers_all_hosts_of_a_webhook(harness: EngineHarness) -> None:
    provider = TimedProvider()
    hook = serving("hook", provider, "webhook", rate=RateLimit(1.0, 1), host_slots=4)
    engine = await harness.open({"hook": hook})
    for n in range(4):
        for priority in ("high", "medium", "low"):
            url = f"https://{priority}-{n}.example.org/hook"
            await engine.send(url, channel="webhook", body="x", priority=priority)
    await seconds(30)
    assert len(provider.times) == 12
    assert most_in_a_window(provider.times, 4) <= 5


async def test_tokens_of_the_reserve_are_taken_with_one_call_per_batch(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TimedProvider()
    listed = serving("mail", provider, rate=RateLimit(100.0, 800), max_in_flight=500)
    engine = await harness.open({"mail": listed}, working=False)
    calls, take = [], harness.store.take

    async def counted(*args: Any) -> Any:
        calls.append(args)
        return await take(*args)

    monkeypatch.setattr(harness.store, "take", counted)
    for _ in range(100):
        await mail(engine, priority="critical")
    engine.start_worker()
    await seconds(1)
    assert len(provider.times) == 100
    assert len(calls) < 20


async def test_no_more_is_claimed_than_the_bucket_has_tokens(harness: EngineHarness) -> None:
    listed = serving("mail", TimedProvider(), rate=RateLimit(0.1, 16))
    engine = await harness.open({"mail": listed}, working=False)
    for _ in range(20):
        await mail(engine, priority="critical")
    engine.start_worker()
    await seconds(12)
    starts = [claim.providers["mail"].starts for claim in harness.store.claims]
    assert max(starts) == 3, "one token is held at a time, and two are reserved for priority"


async def tokens_left(harness: EngineHarness, rate: RateLimit) -> int:
    """Returns the number of whole tokens in the bucket of the provider `mail`."""
    return int((await harness.store.take(provider_bucket("mail"), rate, 0)).left)


async def test_an_idle_worker_takes_no_tokens_and_does_not_claim_more_often(harness: EngineHarness) -> None:
    rate = RateLimit(10.0, 1)
    await harness.open({"mail": serving("mail", TimedProvider(), rate=rate)})
    await seconds(30)
    assert harness.store.calls["take"] == 0
    assert len(harness.store.claims) <= 31, "one at the start, and one per poll"


async def test_a_worker_takes_only_the_tokens_that_it_uses(harness: EngineHarness) -> None:
    provider, rate = TimedProvider(), RateLimit(0.001, 20)
    engine = await harness.open({"mail": serving("mail", provider, rate=rate)})
    for _ in range(3):
        await mail(engine)
        await seconds(10)
    assert len(provider.times) == 3
    assert await tokens_left(harness, rate) == 17


async def test_tokens_that_were_taken_in_advance_are_given_back(harness: EngineHarness) -> None:
    provider, rate = TimedProvider(), RateLimit(0.001, 20)
    engine = await harness.open({"mail": serving("mail", provider, rate=rate)})
    for _ in range(3):
        await mail(engine)
        await seconds(0.1)
    assert len(provider.times) == 3
    assert await tokens_left(harness, rate) == 16, "a worker that uses tokens holds one for the next start"
    await seconds(10)
    assert await tokens_left(harness, rate) == 17


async def test_a_limited_provider_is_used_as_soon_as_it_has_a_token_again(harness: EngineHarness) -> None:
    provider, rate = TimedProvider(latency_ms=60_000), RateLimit(4.0, 1)
    engine = await harness.open({"mail": serving("mail", provider, rate=rate)})
    await seconds(5)
    for _ in range(8):
        await mail(engine)
    await seconds(3)
    waits = [later - sooner for sooner, later in pairwise(provider.times)]
    assert len(waits) == 7
    assert max(waits) <= 0.26


async def test_slow_attempts_use_all_tokens_that_there_are(harness: EngineHarness) -> None:
    provider, rate = TimedProvider(latency_ms=60_000), RateLimit(40.0, 400)
    listed = serving("mail", provider, rate=rate, max_in_flight=500)
    engine = await harness.open({"mail": listed}, working=False)
    for _ in range(100):
        await mail(engine)
    engine.start_worker()
    await seconds(0.9)
    assert len(provider.times) == 100


async def test_workers_that_wake_at_once_postpone_few_notifications(harness: EngineHarness) -> None:
    provider, rate = TimedProvider(), RateLimit(4.0, 4)
    engines = [await harness.open({"mail": serving("mail", provider, rate=rate)}) for _ in range(4)]
    await seconds(30)
    ids = [await mail(engines[0]) for _ in range(40)]
    await seconds(30)
    assert {await status(engines[0], id) for id in ids} == {Status.SENT}
    assert most_in_a_window(provider.times, 1) <= 8
    assert provider.times[-1] - provider.times[0] <= 10


async def test_a_slow_host_delays_no_other(harness: EngineHarness) -> None:
    class Hosts(TimedProvider):
        async def send(self, delivery):  # type: ignore[no-untyped-def]
            self.latency_ms = 20_000 if "slow" in delivery.address else 0
            at_once[delivery.address] += 1
            busiest[delivery.address] = max(busiest[delivery.address], at_once[delivery.address])
            try:
                return await super().send(delivery)
            finally:
                at_once[delivery.address] -= 1

    at_once: Counter[str] = Counter()
    busiest: Counter[str] = Counter()
    provider = Hosts()
    hook = serving("hook", provider, "webhook", host_slots=2, max_in_flight=10)
    engine = await harness.open({"hook": hook})
    slow = [
        (await engine.send("https://slow.example.org", channel="webhook", body="x")).id for _ in range(30)
    ]
    await seconds(1)
    quick = [
        (await engine.send("https://user:pw@Quick.example.org/a", channel="webhook", body="x")).id
        for _ in range(10)
    ]
    await seconds(3)
    assert {await status(engine, id) for id in quick} == {Status.SENT}
    assert busiest["https://slow.example.org"] == 2
    assert Counter([await status(engine, id) for id in slow])[Status.SENDING] == 2


async def test_a_flood_of_bulk_messages_does_not_delay_priority(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=5000)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=200)}, slots={"bulk": 5})
    for _ in range(100):
        await mail(engine, bulk=True)
    await seconds(1)
    urgent = await mail(engine, priority="critical")
    await seconds(5.5)
    assert await status(engine, urgent) is Status.SENT
    assert (await engine.queue_counts())["sent"] <= 11


async def test_one_tenant_s_flood_leaves_capacity_for_another(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=HANG)
    listed = serving("mail", provider)
    rules = steady(timeout_ms="10m", max_age_ms="1d")
    engine = await harness.open({"mail": listed}, rules=rules, slots={"standard": 16}, tenant="loud")
    quiet = await harness.open({"mail": listed}, working=False, tenant="quiet")
    for _ in range(100):
        await mail(engine)
    await seconds(2)
    provider.usual = K.ACCEPTED
    id = await mail(quiet)
    await seconds(3)
    assert await status(quiet, id) is Status.SENT
    assert (await engine.queue_counts())["sending"] == 14


async def test_tenants_take_turns(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=1000)
    listed = serving("mail", provider, max_in_flight=3)  # one of them is reserved for priority
    engines = [await harness.open({"mail": listed}, working=False, tenant=f"t{n}") for n in range(3)]
    for _ in range(30):
        await mail(engines[0])
    for engine in engines[1:]:
        for _ in range(2):
            await mail(engine)
    engines[0].start_worker()
    await seconds(6)
    for engine in engines[1:]:
        assert (await engine.queue_counts())["sent"] == 2


async def test_a_worker_claims_only_what_it_can_start(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=1000)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=3)}, slots={"standard": 100})
    for _ in range(20):
        await mail(engine)
    for _ in range(7):
        await seconds(0.5)
        assert (await engine.queue_counts())["sending"] <= 3


async def test_slots_are_released_however_an_attempt_ends(harness: EngineHarness) -> None:
    script = [K.TRANSIENT, HANG, K.BAD_CONTENT, K.PROVIDER_FAULT, K.AMBIGUOUS, K.THROTTLED]
    provider = TimedProvider(script=script)
    engine = await harness.open(
        {"mail": Listed(id="mail", provider=provider, channels=(Channel.EMAIL,), max_in_flight=1)},
        rules=steady(timeout_ms="3s"),
        slots={"standard": 1},
    )
    ids = [await mail(engine) for _ in range(6)]
    await seconds(120)
    assert Counter([await status(engine, id) for id in ids]) == {Status.SENT: 5, Status.FAILED: 1}
    assert engine.worker.in_flight == 0


async def test_process_takes_at_most_its_limit_and_urgent_notifications_first(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"any": provider}, working=False)
    for priority in ("low", "medium", "high"):
        for _ in range(4):
            await mail(engine, priority=priority)
            await text(engine, priority=priority)
    done = await engine.process(10)
    assert (done.processed, done.succeeded) == (10, 10)
    assert Counter(d.priority.value for d in provider.sent) == {"high": 8, "medium": 2}
    assert (await engine.process(100)).processed == 14
    assert (await engine.process()).processed == 0


# Fair shares -----------------------------------------------------------------------------------------


class Ordered(TimedProvider):
    """Records the order of all starts as (tenant, priority, address)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order: list[tuple[str, str, str]] = []

    async def send(self, delivery: Delivery) -> Outcome:
        self.order.append((delivery.tenant, delivery.priority.value, delivery.address))
        return await super().send(delivery)


def started(provider: Ordered, who: str) -> list[int]:
    """Returns the positions of a tenant's starts."""
    return [number for number, (tenant, _, _) in enumerate(provider.order) if tenant == who]


@pytest.mark.parametrize("burst", [1, 5])
async def test_priority_comes_before_bulk_on_another_channel_of_a_rate_limited_provider(
    harness: EngineHarness, burst: int
) -> None:
    """A burst of one token has no reserve, so only the order of the modes decides.

    The critical mail comes early: after 16 starts of others, a mode gets the next one whatever the order is.
    """
    provider = Ordered()
    listed = serving("any", provider, "sms", "email", rate=RateLimit(5.0, burst))
    engine = await harness.open({"any": listed}, working=False)
    for _ in range(150):
        await text(engine, bulk=True)
    engine.start_worker()
    await seconds(1)
    before = len(provider.order)
    urgent = await mail(engine, priority="critical")
    await seconds(1)
    assert await status(engine, urgent) is Status.SENT
    assert [priority for _, priority, _ in provider.order[before:]].index("critical") <= 1


async def test_priority_never_waits_for_a_slot_that_bulk_holds(harness: EngineHarness) -> None:
    provider = Ordered(latency_ms=10_000)
    engine = await harness.open({"any": serving("any", provider, "sms", "email", max_in_flight=8)})
    for _ in range(50):
        await text(engine, bulk=True)
    await seconds(1)
    held = len(provider.order)
    await mail(engine, priority="critical")
    await seconds(0.1)
    assert [priority for _, priority, _ in provider.order[held:]] == ["critical"]
    assert held == 6, "of eight slots, one is reserved for priority and one stays free for another tenant"


async def test_priority_never_waits_for_rate_limit_tokens_that_bulk_has_used(harness: EngineHarness) -> None:
    provider = Ordered()
    listed = serving("any", provider, "sms", "email", rate=RateLimit(0.05, 16), max_in_flight=64)
    engine = await harness.open({"any": listed}, working=False)
    for _ in range(50):
        await text(engine, bulk=True)
    engine.start_worker()
    await seconds(1)
    used = len(provider.order)
    for _ in range(2):
        await mail(engine, priority="critical")
    await seconds(0.5)
    assert [priority for _, priority, _ in provider.order[used:]] == ["critical", "critical"]
    assert used == 14, "of sixteen tokens, two are reserved for priority"


async def test_priority_does_not_wait_for_bulk_while_a_provider_is_ramped_up(harness: EngineHarness) -> None:
    """Eight attempts per second, in bursts of two, of which one is reserved for priority."""
    provider = Ordered()
    policy = BreakerPolicy(ramp_ms=3_600_000, ramp_per_second=8.0)
    listed = serving("any", provider, "sms", "email", max_in_flight=64, breaker=policy)
    engine = await harness.open({"any": listed}, working=False)
    await engine.force_breaker("any", Phase.OPEN, who="ada")
    await engine.force_breaker("any", None, who="ada")  # it starts closed, with a ramp
    for _ in range(200):
        await text(engine, bulk=True)
    engine.start_worker()
    for _ in range(10):
        await seconds(1.03)
        before = len(provider.order)
        await mail(engine, priority="critical")
        await seconds(0.01)
        assert [priority for _, priority, _ in provider.order[before:]].count("critical") == 1
    assert len(provider.order) >= 50


@pytest.mark.parametrize(("slots", "flooded"), [(72, 51), (40, 28)])
async def test_a_tenant_holds_at_most_seven_times_the_slots_that_stay_free_over_all_lanes_together(
    harness: EngineHarness, slots: int, flooded: int
) -> None:
    """The reserves of priority and bulk, 9 and 4 of 72 slots, are not free for standard."""
    provider = Ordered(latency_ms=60_000)
    engine = await harness.open(
        {"any": serving("any", provider, "sms", "email", max_in_flight=slots)}, working=False
    )
    for _ in range(slots):
        await mail(engine)
        await text(engine)
    engine.start_worker()
    await seconds(1)
    assert len(provider.order) == flooded


async def test_standard_gets_a_start_now_and_then_from_a_provider_that_priority_keeps_busy(
    harness: EngineHarness,
) -> None:
    provider = Ordered()
    engine = await harness.open({"any": serving("any", provider, rate=RateLimit(5.0, 1))}, working=False)
    for _ in range(100):
        await mail(engine, priority="critical")
    await mail(engine, priority="medium")
    await mail(engine, bulk=True, priority="low")
    engine.start_worker()
    await seconds(8)
    order = [priority for _, priority, _ in provider.order]
    assert order.index("medium") <= 20
    assert order.index("low") <= 20


async def test_one_tenant_s_criticals_do_not_hold_another_tenant_s_mail(harness: EngineHarness) -> None:
    provider = Ordered()
    listed = serving("any", provider, "sms", "email", rate=RateLimit(5.0, 5))
    loud = await harness.open({"any": listed}, working=False, tenant="loud")
    quiet = await harness.open({"any": listed}, working=False, tenant="quiet")
    for _ in range(150):
        await text(loud, priority="critical")
    loud.start_worker()
    await seconds(2)
    before = len(provider.order)
    await mail(quiet, priority="critical")
    await seconds(1)
    assert started(provider, "quiet")[0] - before <= 1


async def test_hanging_hosts_leave_slots_for_others(harness: EngineHarness) -> None:
    """The small form of bench/flood.py: outcomes and order only."""

    class Hooks(Ordered):
        async def send(self, delivery: Delivery) -> Outcome:
            self.usual = HANG if "hang" in delivery.address else K.ACCEPTED
            return await super().send(delivery)

    provider = Hooks()
    listed = serving("any", provider, "sms", "email", "webhook", host_slots=8, max_in_flight=16)
    rules = steady(timeout_ms="10s", max_age_ms="1d")
    flood = await harness.open({"any": listed}, rules=rules, working=False, tenant="a")
    other = await harness.open({"any": listed}, rules=rules, working=False, tenant="b")
    flood.start_worker()
    first = (await flood.send("https://quick.example.org", channel="webhook", body="x")).id
    await seconds(1)
    assert await status(flood, first) is Status.SENT
    for n in range(60):
        await flood.send(f"https://hang{n}.example.org", channel="webhook", body="x")
        await text(flood, bulk=True)
    await seconds(1)
    probes = [await mail(other, priority="critical"), await text(other, priority="critical")]
    new_host = await other.send("https://new.example.org", channel="webhook", body="x", priority="critical")
    probes.append(new_host.id)
    await seconds(1.1)  # the worker of another process finds them by polling
    assert {await status(other, id) for id in probes} == {Status.SENT}
    quick = (await flood.send("https://quick.example.org", channel="webhook", body="x")).id
    await seconds(0.1)
    assert await status(flood, quick) is Status.SENT, "hosts that never answered leave half of the slots"
    await seconds(150)
    assert provider.busy <= 4, "all of them have timed out, and share a quarter of the slots"


async def test_sends_to_hosts_that_answer_leave_the_slots_of_new_hosts_free(harness: EngineHarness) -> None:
    provider = Ordered()
    listed = serving("hook", provider, "webhook", host_slots=8, max_in_flight=16)
    engine = await harness.open({"hook": listed}, rules=steady(timeout_ms="10s"))
    for _ in range(60):
        await engine.send("https://shop.example.org", channel="webhook", body="x")
        await seconds(0.1)
    provider.usual = HANG
    for _ in range(8):
        await engine.send("https://shop.example.org", channel="webhook", body="x")
    await seconds(1)
    assert provider.busy == 8
    for n in range(3):
        await engine.send(f"https://new{n}.example.org", channel="webhook", body="x")
    await seconds(1)
    assert provider.busy == 11


async def test_a_failing_endpoint_pauses_itself_and_nobody_else(harness: EngineHarness) -> None:
    class Hooks(Ordered):
        async def send(self, delivery: Delivery) -> Outcome:
            self.usual = K.TRANSIENT if "broken" in delivery.address else K.ACCEPTED
            return await super().send(delivery)

    provider = Hooks()
    engine = await harness.open({"hook": serving("hook", provider, "webhook", host_slots=4)}, rules=steady())
    for _ in range(20):
        await engine.send("https://broken.example.org", channel="webhook", body="x")
    await seconds(5)
    tried = len(provider.order)
    assert 5 <= tried <= 8, "the breaker opens after five failures, and four may be in flight"
    assert await harness.store.breakers() == {}
    fine = (await engine.send("https://fine.example.org", channel="webhook", body="x")).id
    await seconds(0.1)
    assert await status(engine, fine) is Status.SENT
    await seconds(61)
    assert tried + 2 <= len(provider.order) <= tried + 4, "one more to the fine endpoint, and a trial"


async def test_a_paused_endpoint_does_not_slow_down_the_ramp_up_of_another_provider(
    harness: EngineHarness,
) -> None:
    """The ramp-up allows at most eight attempts per second, in bursts of two."""
    ramped = TimedProvider()
    policy = BreakerPolicy(ramp_ms=3_600_000, ramp_per_second=8.0)
    providers = {
        "hook": serving("hook", TimedProvider(usual=K.TRANSIENT), "webhook", host_slots=4),
        "mail": serving("mail", ramped, breaker=policy),
    }
    engine = await harness.open(providers, rules=steady())
    for _ in range(20):
        await engine.send("https://broken.example.org", channel="webhook", body="x")
    await seconds(5)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    await engine.force_breaker("mail", None, who="ada")  # it starts closed, with a ramp
    for _ in range(100):
        await mail(engine)
    await seconds(10)
    assert len(ramped.times) >= 40


async def test_a_paused_endpoint_does_not_make_every_ended_attempt_ask_for_a_claim(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hooks(Ordered):
        async def send(self, delivery: Delivery) -> Outcome:
            self.usual = K.TRANSIENT if "broken" in delivery.address else K.ACCEPTED
            return await super().send(delivery)

    answers: list[bool] = []
    asked = Capacity.may_have_left_work

    def recorded(self: Capacity, *args: Any) -> bool:
        answers.append(asked(self, *args))
        return answers[-1]

    monkeypatch.setattr(Capacity, "may_have_left_work", recorded)
    hook = serving("hook", Hooks(), "webhook", host_slots=4)
    engine = await harness.open({"hook": hook}, rules=steady())
    monkeypatch.setattr(Timers, "is_notified", True)  # by a store that reports what other processes accept
    for _ in range(20):
        await engine.send("https://broken.example.org", channel="webhook", body="x")
    await seconds(5)
    answers.clear()
    await engine.send("https://fine.example.org", channel="webhook", body="x")
    await seconds(2)
    assert answers
    assert not any(answers)


async def test_a_quick_host_gets_more_slots_and_a_host_that_times_out_has_one(harness: EngineHarness) -> None:
    provider = Ordered(latency_ms=100)
    never_opens = BreakerPolicy(failures=1_000)
    listed = serving("hook", provider, "webhook", host_slots=16, breaker=never_opens)
    engine = await harness.open({"hook": listed}, rules=steady(timeout_ms="5s", max_age_ms="1d"))
    for _ in range(600):
        await engine.send("https://shop.example.org", channel="webhook", body="x")
    await seconds(0.05)
    assert provider.busiest == 2
    await seconds(2)
    assert provider.busiest == 16
    provider.usual = HANG
    await seconds(15.5)
    assert provider.busy == 1


async def test_a_freed_slot_is_refilled_at_once(harness: EngineHarness) -> None:
    """Attempts end at different times. Each makes room for the next, without a wait for a claim round."""

    class Staggered(Ordered):
        async def send(self, delivery: Delivery) -> Outcome:
            self.latency_ms = 1_000 + 70 * len(self.times)
            return await super().send(delivery)

    provider = Staggered()
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=10)}, working=False)
    for _ in range(40):
        await mail(engine)
    engine.start_worker()
    await seconds(3)
    ends = sorted(at + (1_000 + 70 * number) / 1000 for number, at in enumerate(provider.times))
    held = provider.busiest
    for start, freed in zip(provider.times[held:], ends, strict=False):
        assert 0 <= start - freed <= 0.03
    assert len(provider.times) > 2 * held


async def test_rows_of_an_earlier_release_keep_their_outlet(harness: EngineHarness) -> None:
    provider = Ordered()
    engine = await harness.open({"hook": serving("hook", provider, "webhook", host_slots=4)}, working=False)
    url = "https://shop.example.org"
    old = a_notification(
        channel=Channel.WEBHOOK, provider="hook", outlet="hook@shop.example.org", address=url
    )
    await harness.store.accept([a_submission(old)])
    engine.start_worker()
    await seconds(1)
    assert await status(engine, old.id) is Status.SENT
