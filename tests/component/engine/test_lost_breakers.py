"""Breakers and rules after the store has gone back to an earlier state, of which the workers know nothing."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from homing import Status
from homing.core.notifications import OutcomeKind
from homing.core.routing.breaker import Breaker, BreakerPolicy, Phase
from homing.stores.sqlite import SqliteStore
from support.engine_harness import EngineHarness, FailingProvider, TimedProvider, mail, phase, seconds, status


class Snapshot:
    """The contents of a store in memory, which can be restored."""

    def __init__(self, store: SqliteStore) -> None:
        assert store._memory is not None
        self._live = store._memory.connection
        self._copy = sqlite3.connect(":memory:")
        self._live.backup(self._copy)

    def restore(self) -> None:
        self._copy.backup(self._live)
        self._copy.close()


async def test_a_breaker_with_a_lower_version_than_before_can_be_forced(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider()})
    before = Snapshot(harness.store)
    for forced in (Phase.OPEN, None, Phase.OPEN):
        await engine.force_breaker("mail", forced, who="ada")
    before.restore()
    await asyncio.wait_for(engine.force_breaker("mail", Phase.OPEN, who="bob"), 60)
    state = (await harness.store.breakers())["mail"]
    assert (state.forced, state.forced_by) == (Phase.OPEN, "bob")


async def test_a_worker_obeys_a_breaker_with_a_lower_version_than_its_own(harness: EngineHarness) -> None:
    one = await harness.open({"mail": TimedProvider()})
    two = await harness.open({"mail": TimedProvider()}, working=False)
    before = Snapshot(harness.store)
    for forced in (Phase.OPEN, None, Phase.OPEN, None):
        await one.force_breaker("mail", forced, who="ada")
    before.restore()
    await two.force_breaker("mail", Phase.OPEN, who="bob")
    await seconds(3)
    id = await mail(one)
    await seconds(60)
    assert await status(one, id) is Status.PENDING
    await two.force_breaker("mail", None, who="bob")
    await seconds(3)
    assert await status(one, id) is Status.SENT


async def test_a_breaker_that_the_store_has_lost_is_closed(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider()})
    before = Snapshot(harness.store)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    before.restore()
    await seconds(3)
    id = await mail(engine)
    await seconds(3)
    assert await status(engine, id) is Status.SENT
    assert await phase(harness) is Phase.CLOSED


async def test_a_closed_breaker_that_was_read_during_a_write_is_not_written_after_it(
    harness: EngineHarness,
) -> None:
    """A write waits for a long time. Meanwhile, the worker reads that the store has lost the breaker."""
    engine = await harness.open({"mail": TimedProvider()}, working=False)
    breakers = engine.worker._breakers
    before = Snapshot(harness.store)
    while breakers.state("mail").phase is Phase.CLOSED:
        breakers.record("mail", OutcomeKind.TRANSIENT)
    assert await harness.store.put_breaker("mail", breakers.state("mail"))  # the answer is lost

    async def lose_meanwhile(operation: str) -> None:
        if operation == "put_breaker":
            harness.store.on_call = None
            await breakers.refresh(at_once=True)
            before.restore()
            await breakers.refresh(at_once=True)
            assert breakers.state("mail").phase is Phase.CLOSED

    harness.store.on_call = lose_meanwhile
    for _ in range(3):
        await breakers.refresh(at_once=True)
    assert breakers.state("mail").phase is Phase.OPEN
    assert await phase(harness) is Phase.OPEN


async def test_a_breaker_that_opens_while_its_last_state_is_written_is_written_again(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": TimedProvider()}, working=False)
    breakers = engine.worker._breakers

    def fail() -> None:
        while breakers.state("mail").phase is Phase.CLOSED:
            breakers.record("mail", OutcomeKind.TRANSIENT)

    async def fail_meanwhile(operation: str) -> None:
        if operation == "put_breaker":
            harness.store.on_call = None
            fail()

    fail()
    await breakers.refresh(at_once=True)
    await seconds(61)
    assert await breakers.try_trial("mail", 1_000)
    breakers.record("mail", OutcomeKind.ACCEPTED, trial=True)
    assert breakers.state("mail").phase is Phase.CLOSED
    harness.store.on_call = fail_meanwhile
    for _ in range(2):
        await breakers.refresh(at_once=True)
    assert breakers.state("mail").phase is Phase.OPEN
    assert await phase(harness) is Phase.OPEN


async def test_failures_that_are_counted_while_a_state_is_written_open_the_breaker_in_time(
    harness: EngineHarness,
) -> None:
    """They were forgotten, so that the breaker opened one failure or more too late (seed 2600000221)."""
    engine = await harness.open({"mail": TimedProvider()}, working=False)
    breakers = engine.worker._breakers
    limit = BreakerPolicy().failures

    async def fail_meanwhile(operation: str) -> None:
        if operation == "put_breaker":
            harness.store.on_call = None
            for _ in range(limit - 1):
                breakers.record("mail", OutcomeKind.TRANSIENT)

    for _ in range(limit):
        breakers.record("mail", OutcomeKind.TRANSIENT)
    await breakers.refresh(at_once=True)
    await seconds(61)
    assert await breakers.try_trial("mail", 1_000)
    breakers.record("mail", OutcomeKind.ACCEPTED, trial=True)
    harness.store.on_call = fail_meanwhile
    await breakers.refresh(at_once=True)
    assert breakers.state("mail").phase is Phase.CLOSED
    breakers.record("mail", OutcomeKind.TRANSIENT)
    assert breakers.state("mail").phase is Phase.OPEN


async def test_a_late_answer_to_the_write_of_a_health_check_does_not_bring_back_an_open_breaker(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile, a trial has closed the breaker. The worker avoided a healthy provider (seed 2500000443)."""
    provider = FailingProvider()
    provider.repair()
    engine = await harness.open({"mail": provider}, working=False)
    breakers, write = engine.worker._breakers, harness.store.put_breaker
    await breakers.refresh(at_once=True)
    while breakers.state("mail").phase is Phase.CLOSED:
        breakers.record("mail", OutcomeKind.TRANSIENT)
    await breakers.refresh(at_once=True)

    async def answer_late(provider: str, breaker: Breaker) -> bool:
        written = await write(provider, breaker)
        monkeypatch.setattr(harness.store, "put_breaker", write)
        await breakers.refresh(at_once=True)
        assert await breakers.try_trial("mail", 1_000), "the health check allows a trial at once"
        breakers.record("mail", OutcomeKind.ACCEPTED, trial=True)
        await breakers.refresh(at_once=True)
        return written

    monkeypatch.setattr(harness.store, "put_breaker", answer_late)
    await seconds(BreakerPolicy().health_every_ms / 1000)
    await breakers.check_health()
    assert breakers.state("mail").phase is Phase.CLOSED
    assert await phase(harness) is Phase.CLOSED
