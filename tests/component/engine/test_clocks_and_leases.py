"""Slow claims, leases that end before their send, and leases as long as each claim needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from homing import Status
from homing.core.clock_steps import SETTLING_MS
from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.outcomes import Outcome
from homing.core.retry.decide import RecipientFacts
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    EngineHarness,
    K,
    RecipientHook,
    TimedProvider,
    WatchedStore,
    mail,
    seconds,
    serving,
    status,
    steady,
)


def slowly(duration_s: float, *operations: str) -> Callable[[str], Awaitable[None]]:
    """Delays each call of these operations, before the store has performed it."""

    async def delay(name: str) -> None:
        if name in operations:
            await asyncio.sleep(duration_s)

    return delay


async def test_nothing_expires_early_because_a_claim_was_slow(harness: EngineHarness) -> None:
    """The store reads its clock at the end of a call that waited for a lock.

    The claim takes 4 of the 7 seconds. The worker must not count them twice.
    """
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    id = await mail(engine, expires_at=timedelta(seconds=7))
    harness.store.on_call = slowly(4, "claim")
    engine.start_worker()
    await seconds(10)
    assert provider.times == [4.0]
    assert await status(engine, id) is Status.SENT


async def test_a_wait_that_a_provider_asked_for_is_not_cut_short_by_a_slow_claim(
    harness: EngineHarness,
) -> None:
    """The failover comes back to a provider only after its hold has ended.

    The worker's clock ran ahead by the time that the claim waited (seed 2701728986 at commit de8869b).
    """
    first = TimedProvider("first", script=[Outcome(K.THROTTLED, retry_after_ms=22_000)])
    second = TimedProvider("second", script=[K.TRANSIENT] * 5)
    rules = steady(base_ms="1s", max_attempts=9, failover_after=1)
    harness.store.on_call = slowly(4, "claim")
    engine = await harness.open({"first": first, "second": second}, rules=rules)
    id = await mail(engine)
    await seconds(90)
    assert await status(engine, id) is Status.SENT
    assert first.gaps[0] >= 22


async def test_a_slow_claim_does_not_cut_a_retry_after_short(harness: EngineHarness) -> None:
    """While the substitute is stopped, the notification waits for the end of the first provider's hold."""
    first = TimedProvider("first", script=[Outcome(K.THROTTLED, retry_after_ms=40_000)])
    second = TimedProvider("second", usual=K.TRANSIENT)
    engine = await harness.open(
        {"first": first, "second": second}, rules=steady(max_attempts=9, failover_after=1)
    )
    await engine.force_breaker("second", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(5)
    harness.store.on_call = slowly(15, "claim", "reclaim")
    await seconds(120)
    assert await status(engine, id) is Status.SENT
    assert first.gaps[0] >= 40


@pytest.mark.parametrize(("reads_breakers_slowly", "lease"), [(False, "10s"), (True, "20s")])
async def test_a_send_does_not_start_after_its_lease_was_taken_over(
    harness: EngineHarness, tmp_path: Path, reads_breakers_slowly: bool, lease: str
) -> None:
    """The worker waits before a send and loses the store, whose clock is set by a little meanwhile.

    It waits for its directory before it checks the leases of the whole batch. If it then waits for the
    breakers too, which are old by now, the send must check its own lease again (seed 3696654569 at commit
    de8869b).
    """

    async def facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        await seconds(6)
        mine.away.add("everything")
        return {}

    async def before_call(operation: str) -> None:
        if "everything" in mine.away and operation == "now_ms" and reads_breakers_slowly:
            await seconds(10)
        elif hook.asked and operation in ("claim", "lead"):  # these would read the breakers again
            await seconds(60)

    brief = tmp_path / "brief.toml"
    brief.write_text(f'[worker]\nlease_ms = "{lease}"\n')
    provider, mine, hook = TimedProvider(), harness.store.twin(), RecipientHook(facts)
    mine.on_call = before_call
    mine.away.add("extend")
    engine = await harness.open(
        {"mail": provider}, store=mine, config_file=brief, rules=steady(timeout_ms="1s"), directory=hook
    )
    id = await mail(engine)
    await seconds(15.5 if reads_breakers_slowly else 5.5)
    harness.clock.jump(4_800)
    batch = await harness.store.reclaim("other", 10, 60_000)
    assert [claim.id for claim in batch.claims] == [id]
    await seconds(3)
    mine.away.clear()
    assert provider.times == []


async def test_a_rule_with_a_long_timeout_does_not_delay_the_recovery_of_other_notifications(
    harness: EngineHarness,
) -> None:
    rules = [*steady(), {"name": "slow", "type": "report", "timeout_ms": "10m"}]
    engine = await harness.open({"mail": TimedProvider(script=[HANG])}, rules=rules)
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    other = await harness.open({"mail": ScriptedProvider()}, rules=rules)
    await seconds(60)
    history = await other.history(id)
    assert [attempt.outcome for attempt in history.attempts] == [K.LOST, K.ACCEPTED]


async def test_a_claim_with_a_long_timeout_is_extended_before_its_send(harness: EngineHarness) -> None:
    extended: list[tuple[int, int]] = []
    rules = [*steady(), {"name": "slow", "type": "report", "timeout_ms": "10m"}]
    provider = TimedProvider(latency_ms=300_000)
    engine = await harness.open({"mail": provider}, rules=rules, store=recording(harness, extended))
    reports = [await mail(engine, type="report") for _ in range(3)]
    await seconds(1)
    assert extended == [(3, 610_000)]
    await engine.stop_worker(hard=True)
    other = await harness.open({"mail": provider}, rules=rules)
    await seconds(120)
    assert {await status(other, id) for id in reports} == {Status.SENDING}
    assert len(provider.times) == 3


async def test_long_leases_are_extended_while_an_accepted_step_of_the_clock_settles(
    harness: EngineHarness, tmp_path: Path
) -> None:
    extended: list[tuple[int, int]] = []
    config = tmp_path / "long.toml"
    config.write_text('[worker]\nlease_ms = "15m"\n')
    engine = await harness.open(
        {"mail": TimedProvider(latency_ms=300_000)},
        rules=steady(timeout_ms="10m"),
        store=recording(harness, extended),
        config_file=config,
    )
    await mail(engine)
    await seconds(1)
    extended.clear()
    await seconds(SETTLING_MS // 1_000)
    assert extended == [(1, 900_000)] * 3


async def test_claims_whose_lease_could_not_be_extended_are_postponed(harness: EngineHarness) -> None:
    rules = [*steady(), {"name": "slow", "type": "report", "timeout_ms": "10m"}]
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, rules=rules)
    harness.store.stumbles["extend"] = 1
    id = await mail(engine, type="report")
    await seconds(5)
    history = await engine.history(id)
    assert [attempt.number for attempt in history.attempts] == [1]
    assert provider.times == [1.0]


def recording(harness: EngineHarness, extended: list[tuple[int, int]]) -> WatchedStore:
    class Recording(WatchedStore):
        async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
            extended.append((len(leases), lease_ms))
            return await super().extend(leases, lease_ms)

    return Recording(harness.clock, harness.store._database)


async def test_leases_are_extended_again_after_an_unexpected_error(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(WatchedStore):
        extensions = 0

        async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
            self.extensions += 1
            if self.extensions == 2:  # the first one is made before the send
                raise RuntimeError("unexpected")
            return await super().extend(leases, lease_ms)

    provider = TimedProvider(latency_ms=100_000)
    engine = await harness.open(
        {"mail": provider}, store=Odd(harness.clock, harness.store._database), rules=steady(timeout_ms="2m")
    )
    id = await mail(engine)
    await seconds(150)
    history = await engine.history(id)
    assert [attempt.outcome for attempt in history.attempts] == [K.ACCEPTED]
    assert "extending 1 leases failed unexpectedly" in caplog.text


async def test_a_freed_slot_is_used_at_once_although_the_last_claim_returned_nothing(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """A claim while all slots are in use finds nothing. It must not end the wake-ups by freed slots."""
    rarely = tmp_path / "rarely.toml"
    rarely.write_text('[worker]\npoll_ms = "5m"\n')
    provider = TimedProvider(latency_ms=3_000)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=1)}, config_file=rarely)
    for _ in range(3):
        await mail(engine)
    await seconds(1)
    engine.worker.claim_at()
    await seconds(30)
    assert provider.gaps == [3.0, 3.0]


async def test_a_relay_continues_after_an_unexpected_error_of_the_store(harness: EngineHarness) -> None:
    class Odd(WatchedStore):
        marked = 0

        async def sink_seen(self, name: str) -> bool:
            self.marked += 1
            if self.marked < 10:
                raise RuntimeError("unexpected")
            return await super().sink_seen(name)

    provider = ScriptedProvider(script=[K.BAD_CONTENT])
    engine = await harness.open({"mail": provider}, store=Odd(harness.clock, harness.store._database))
    await seconds(1_800)
    await mail(engine)
    await seconds(10)
    assert "NotificationFailed" in {event.name for event in harness.events}


async def test_a_run_for_one_tenant_settles_what_a_run_that_died_has_left(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider(script=[HANG])}, rules=steady())
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    job = await harness.open({"mail": ScriptedProvider()}, rules=steady(), working=False)
    await seconds(120)
    for _ in range(2):
        await job.process(tenant=job.tenant)
        await seconds(30)
    assert [attempt.outcome for attempt in (await job.history(id)).attempts] == [K.LOST, K.ACCEPTED]
