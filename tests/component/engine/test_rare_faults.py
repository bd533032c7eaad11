"""Rare faults that must do no harm: store errors at the worst moment, and removed providers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homing import RateLimit, Reason, Status
from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.ports.stores import Retention
from homing.core.routing.breaker import Phase
from homing.core.statistics import Tally
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    EngineHarness,
    K,
    TimedProvider,
    WatchedStore,
    mail,
    seconds,
    serving,
    status,
    steady,
    text,
)


async def outcomes(harness: EngineHarness, id: str) -> list[str]:
    history = await harness.store.get("default", id)
    assert history is not None
    return [attempt.outcome.value for attempt in history.attempts]


# Store errors at the worst moment ----------------------------------------------------------------------


async def test_a_failover_that_cannot_be_recorded_waits_and_costs_no_attempt(harness: EngineHarness) -> None:
    second = TimedProvider()
    engine = await harness.open({"first": ScriptedProvider(), "second": second}, rules=steady(max_attempts=1))
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    harness.store.away.update(("extend", "settle"))
    id = await mail(engine)
    await seconds(5)
    assert second.times == []
    harness.store.away.clear()
    await seconds(5)
    assert await outcomes(harness, id) == ["accepted"]


async def test_a_rate_limit_that_cannot_be_checked_costs_no_attempt(harness: EngineHarness) -> None:
    second = serving("second", TimedProvider(), rate=RateLimit(1.0, 1))
    engine = await harness.open(
        {"first": serving("first", ScriptedProvider()), "second": second}, rules=steady(max_attempts=1)
    )
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    ids = [await mail(engine) for _ in range(3)]
    for _ in range(4):
        harness.store.stumbles["take"] += 1
        await seconds(1)
    await seconds(60)
    assert [await outcomes(harness, id) for id in ids] == [["accepted"]] * 3


async def test_a_trial_that_the_store_cannot_grant_is_granted_later(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[K.TRANSIENT] * 5)
    provider.up = False
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=9))
    ids = [await mail(engine) for _ in range(5)]
    await seconds(30)
    harness.store.away.add("put_breaker")
    await seconds(60)
    assert len(provider.times) == 5
    harness.store.away.clear()
    await seconds(120)
    assert {await status(engine, id) for id in ids} == {Status.SENT}


async def test_a_short_lease_is_extended_before_the_send(harness: EngineHarness, tmp_path: Path) -> None:
    brief = tmp_path / "brief.toml"
    brief.write_text('[worker]\nlease_ms = "2s"\n')
    provider = TimedProvider(latency_ms=15_000)
    engine = await harness.open({"mail": provider}, config_file=brief, rules=steady(timeout_ms="20s"))
    await harness.open({"mail": provider}, config_file=brief, rules=steady(timeout_ms="20s"))
    id = await mail(engine)
    await seconds(30)
    assert await outcomes(harness, id) == ["accepted"]
    assert len(provider.times) == 1


async def test_a_send_whose_lease_cannot_be_extended_does_not_start(
    harness: EngineHarness, tmp_path: Path
) -> None:
    brief = tmp_path / "brief.toml"
    brief.write_text('[worker]\nlease_ms = "2s"\n')
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, config_file=brief, rules=steady())
    harness.store.away.add("extend")
    id = await mail(engine)
    await seconds(8)
    assert provider.times == []
    harness.store.away.clear()
    await seconds(60)
    assert await status(engine, id) is Status.SENT
    assert len(provider.times) == 1


async def test_leases_that_could_not_be_extended_are_extended_next_time(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=60_000)
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="70s"))
    id = await mail(engine)
    await seconds(10)
    harness.store.away.add("extend")
    await seconds(30)
    harness.store.away.clear()
    await seconds(40)
    assert await outcomes(harness, id) == ["accepted"]


async def test_leases_are_extended_again_after_an_unexpected_error(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=60_000)
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="70s"))

    broken = list[str]()

    async def break_once(operation: str) -> None:
        if operation == "extend" and not broken:
            broken.append(operation)
            raise RuntimeError("unexpected")

    id = await mail(engine)
    await seconds(1)
    harness.store.on_call = break_once
    before = harness.store.calls["extend"]
    await seconds(70)
    assert broken == ["extend"]
    assert harness.store.calls["extend"] > before + 1
    assert await outcomes(harness, id) == ["accepted"]


async def test_a_lease_taken_over_during_its_send_is_detected(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TimedProvider(latency_ms=60_000)
    engine = await harness.open({"mail": provider}, rules=steady(base_ms="5m", timeout_ms="70s"))
    id = await mail(engine)
    await seconds(1)
    harness.clock.jump(3_600_000)
    await seconds(70)
    assert "taken over while their attempt is in flight" in caplog.text
    assert engine.worker.stale == 1
    await seconds(400)
    assert await outcomes(harness, id) == ["lost", "accepted"]


async def test_a_suspended_process_gets_all_its_slots_back(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=60_000)
    listed = serving("mail", provider, max_in_flight=4)  # two of them for one tenant's standard mail
    engine = await harness.open({"mail": listed}, rules=steady(timeout_ms="70s"))
    await mail(engine)
    await seconds(1)
    harness.clock.jump(3_600_000)
    await seconds(200)
    assert engine.worker.in_flight == provider.busy == 0
    provider.latency_ms, provider.busiest = 1000, 0
    for _ in range(2):
        await mail(engine)
    await seconds(10)
    assert provider.busiest == 2


async def test_a_store_with_an_unexpected_error_is_called_again(harness: EngineHarness) -> None:
    class Odd(WatchedStore):
        odd_claims = 2
        odd_tallies = 1

        async def claim(self, request: ClaimRequest) -> ClaimBatch:
            if self.odd_claims:
                self.odd_claims -= 1
                raise LookupError("cosmic rays")
            return await super().claim(request)

        async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
            if tenant is None and self.odd_tallies:
                self.odd_tallies -= 1
                raise LookupError("cosmic rays")
            return await super().tallies(tenant)

    engine = await harness.open({"mail": ScriptedProvider()}, store=Odd(harness.clock))
    id = await mail(engine)
    await seconds(70)
    assert await status(engine, id) is Status.SENT


async def test_any_number_of_lost_leases_is_settled(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=HANG)
    listed = serving("mail", provider, max_in_flight=300)
    engine = await harness.open({"mail": listed}, rules=steady(), slots={"standard": 300})
    for n in range(250):
        await mail(engine, to=f"p{n}@example.org", priority="medium")
    await seconds(1)
    await engine.stop_worker(hard=True)
    lost = (await engine.queue_counts())["sending"]
    assert lost > 200
    provider.usual = K.ACCEPTED
    engine.start_worker()
    await seconds(90)
    assert (await engine.queue_counts())["sent"] == 250


async def test_a_jump_of_the_wall_clock_sends_nothing_twice(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[K.TRANSIENT] * 3)
    engine = await harness.open({"mail": provider}, rules=steady())
    ids = [await mail(engine) for _ in range(3)]
    await seconds(2)
    harness.clock.jump(5_000)
    await seconds(10)
    harness.clock.jump(-60_000)
    later = await mail(engine)
    await seconds(120)
    assert {await status(engine, id) for id in [*ids, later]} == {Status.SENT}
    assert len(provider.times) == 7


# Removed providers -------------------------------------------------------------------------------------


async def test_a_worker_without_the_provider_leaves_its_notifications_to_others(
    harness: EngineHarness,
) -> None:
    old = ScriptedProvider("old")
    before = await harness.open({"old": old, "new": ScriptedProvider()}, working=False)
    ids = [await mail(before) for _ in range(5)]
    without = await harness.open({"new": ScriptedProvider("new")})
    await seconds(90)
    found = [await without.get(id) for id in ids]
    assert {(n.status, n.attempt_count, n.provider) for n in found} == {(Status.PENDING, 0, "old")}
    assert "no live worker has the provider old" in (await without.explain(ids[0])).next_step
    await seconds(60)
    [alert] = harness.alerts("NoLiveWorker")
    assert alert["provider"] == "old"
    await harness.open({"old": ScriptedProvider("old"), "new": ScriptedProvider("new")})
    await seconds(30)
    assert {(await without.get(id)).provider_names for id in ids} == {("old",)}


async def test_a_worker_without_the_provider_never_claims_its_notifications(
    harness: EngineHarness,
) -> None:
    before = await harness.open({"old": ScriptedProvider(), "new": ScriptedProvider()}, working=False)
    id = await mail(before)
    changed = (await before.get(id)).updated_at
    without = await harness.open({"new": ScriptedProvider("new")})
    await seconds(300)
    assert (await without.get(id)).updated_at == changed
    await mail(without)
    await seconds(5)
    assert (await without.get(id)).updated_at == changed, "others are still delivered without it"


async def test_an_operator_sends_what_no_worker_can_send_through_another_provider(
    harness: EngineHarness,
) -> None:
    before = await harness.open({"old": ScriptedProvider(), "new": ScriptedProvider()}, working=False)
    id = await mail(before)
    without = await harness.open({"new": ScriptedProvider("new")})
    await seconds(5)
    await without.retry(id, provider="new", who="ada")
    await seconds(5)
    assert (await without.get(id)).provider_names == ("new",)


async def test_a_notification_pinned_to_a_removed_provider_waits_until_it_is_too_old(
    harness: EngineHarness,
) -> None:
    rules, both = steady(max_age_ms="3m"), {"old": ScriptedProvider(), "new": ScriptedProvider()}
    before = await harness.open(both, rules=rules, working=False)
    id = await mail(before, provider="old")
    after = await harness.open({"new": ScriptedProvider("new")}, rules=rules)
    await seconds(60)
    found = await after.get(id)
    assert (found.status, found.attempt_count, found.provider) == (Status.PENDING, 0, "old")
    await seconds(180)
    found = await after.get(id)
    assert (found.status, found.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)


async def test_a_notification_on_a_channel_without_providers_ends_by_its_age(harness: EngineHarness) -> None:
    before = await harness.open(
        {"sms": serving("sms", ScriptedProvider(), "sms")}, rules=steady(max_age_ms="2m"), working=False
    )
    id = await text(before)
    after = await harness.open({"mail": serving("mail", ScriptedProvider())}, rules=steady(max_age_ms="2m"))
    await seconds(150)
    found = await after.get(id)
    assert (found.status, found.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)


@pytest.mark.parametrize(("on_timeout", "made"), [("retry", ["lost"]), ("failover", ["lost", "accepted"])])
async def test_a_lost_lease_of_a_removed_provider_continues_elsewhere_only_if_the_policy_says_so(
    harness: EngineHarness, on_timeout: str, made: list[str]
) -> None:
    before = await harness.open({"old": ScriptedProvider(usual=HANG)}, rules=steady(on_timeout=on_timeout))
    id = await mail(before)
    await seconds(1)
    await before.stop_worker(hard=True)
    await harness.open({"new": ScriptedProvider("new")}, rules=steady(on_timeout=on_timeout))
    await seconds(90)
    assert await outcomes(harness, id) == made


async def test_a_synchronous_idempotency_key_that_outlives_its_notification_says_so(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    fields: dict[str, Any] = {"channel": "email", "body": "x", "synchronous": True, "idempotency_key": "k"}
    first = await engine.send("a@example.org", **fields)
    await seconds(1)
    await engine.purge(Retention(sent_ms=0))
    again = await engine.send("a@example.org", **fields)
    assert (again.id, again.status, again.duplicate) == (first.id, "purged", True)


# Concurrency -------------------------------------------------------------------------------------------


async def test_processing_next_to_a_worker_neither_duplicates_nor_fails(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=100)

    async def slow(event: Any) -> None:
        await asyncio.sleep(0.3)
        harness.events.append(event)

    engine = await harness.open({"mail": provider}, on_event=slow, events=["StatusChanged"])
    for _ in range(10):
        await mail(engine)
        await asyncio.gather(engine.process(), engine.process())
    await seconds(30)
    last = await mail(engine)
    await seconds(10)
    assert len(provider.times) == 11
    assert (await engine.queue_counts())["sent"] == 11
    assert [e.payload["status"] for e in harness.events if e.notification_id == last] == ["pending", "sent"]


async def test_of_a_cancel_or_an_expiry_and_a_simultaneous_retry_one_wins(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=99))
    ids = [await mail(engine, expires_at=timedelta(seconds=20 + n)) for n in range(20)]
    for id in ids[::2]:
        await seconds(0.9)
        await engine.cancel(id)
    await seconds(60)
    states = [await status(engine, id) for id in ids]
    assert set(states[::2]) == {Status.CANCELLED}
    assert set(states[1::2]) == {Status.EXPIRED}
