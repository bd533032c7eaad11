"""One process's view of the breakers: what it allows, what it stores, and whose trial it is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from homing import Listed
from homing.core.errors import StoreUnavailable
from homing.core.notifications import Channel, OutcomeKind
from homing.core.routing.breaker import BREAKER_OFF, Breaker, BreakerGate, BreakerPolicy, Phase
from homing.engine.delivery.breakers import Breakers
from homing.engine.provider_roster import ProviderRoster
from homing.engine.store_clock import StoreClock
from homing.engine.upkeep.alerts import Alerts
from homing.providers.local.scripted import ScriptedProvider
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.memory_database import MemoryDatabase
from homing.testing.manual_clock import ManualClock

POLICY = BreakerPolicy(failures=2, open_ms=60_000, health_every_ms=30_000, ramp_ms=0)
MAIL = Listed(id="mail", provider=ScriptedProvider(), channels=(Channel.EMAIL,), breaker=POLICY)
OFF = Listed(id="off", provider=ScriptedProvider(), channels=(Channel.EMAIL,), breaker=BREAKER_OFF)
FAILED = OutcomeKind.TRANSIENT


class Process:
    """A process on a store in memory that it may share with others."""

    def __init__(self, worker: str = "w1", beside: Process | None = None) -> None:
        self.clock: ManualClock = beside.clock if beside else ManualClock()
        self.database: MemoryDatabase = beside.database if beside else MemoryDatabase()
        self.store = SqliteStore(self.database, clock=self.clock.now_ms)
        self.woken = 0
        self.breakers = Breakers(
            roster=ProviderRoster([MAIL, OFF]),
            backend=self.store,
            clock=self.clock,
            store_clock=StoreClock(self.store.now_ms, self.clock),
            alerts=Alerts(self.store, self.clock, random.Random(1)),
            worker=worker,
            wake_worker=self._wake,
        )

    def _wake(self) -> None:
        self.woken += 1

    async def open_breaker(self) -> None:
        """Opens the breaker of `mail`, here and in the store."""
        await self.breakers.refresh(at_once=True)
        for _ in range(POLICY.failures):
            self.breakers.record("mail", FAILED)
        await self.breakers.refresh()

    async def stored(self) -> Breaker:
        return (await self.store.breakers())["mail"]


@pytest.fixture
def process() -> Process:
    return Process()


async def test_a_closed_breaker_of_a_known_provider_can_be_used(process: Process) -> None:
    breakers = process.breakers
    await breakers.refresh()
    assert (breakers.usable("mail"), breakers.is_closed("mail")) == (True, True)
    assert (breakers.usable("gone"), breakers.is_closed("gone")) == (False, False)
    assert not breakers.any_open()


async def test_an_outcome_of_a_provider_that_was_removed_changes_nothing(process: Process) -> None:
    await process.breakers.refresh()
    process.breakers.record("gone", FAILED)
    await process.breakers.refresh(at_once=True)
    assert process.breakers.state("gone") == Breaker()
    assert await process.store.breakers() == {}


async def test_an_open_breaker_stops_attempts_here_and_in_other_processes(process: Process) -> None:
    await process.open_breaker()
    other = Process("w2", process)
    await other.breakers.refresh()
    for breakers in (process.breakers, other.breakers):
        assert (breakers.usable("mail"), breakers.is_closed("mail")) == (False, False)
        assert (breakers.any_open(), breakers.may_take_new("mail")) == (True, False)
        assert breakers.wait_ms("mail") == POLICY.open_ms


async def test_a_forced_breaker_is_neither_open_by_itself_nor_closed(process: Process) -> None:
    await process.breakers.force("mail", Phase.OPEN, who="ada")
    assert (process.breakers.any_open(), process.breakers.is_closed("mail")) == (False, False)
    assert process.breakers.wait_ms("mail") == 30_000
    await process.breakers.force("mail", Phase.CLOSED, who="ada")
    assert (process.breakers.usable("mail"), process.breakers.is_closed("mail")) == (True, False)


async def test_one_process_wins_the_trial_and_only_its_outcome_counts(process: Process) -> None:
    await process.open_breaker()
    other = Process("w2", process)
    await other.breakers.refresh()
    assert not await process.breakers.try_trial("mail", 5_000)  # the pause is not over
    process.clock.advance(POLICY.open_ms)
    assert process.breakers.gate("mail") is BreakerGate.TRIAL
    assert await process.breakers.try_trial("mail", 5_000)
    assert not await other.breakers.try_trial("mail", 5_000)
    assert (process.breakers.usable("mail"), other.breakers.usable("mail")) == (True, False)
    assert other.breakers.wait_ms("mail") == 1_000  # the trial may take 5 s, but usually ends at once
    version = process.breakers.spend_trial("mail")
    assert version == (await process.stored()).version
    assert (process.breakers.spend_trial("mail"), process.breakers.usable("mail")) == (0, False)
    assert process.breakers.is_trial("mail", version)
    assert not process.breakers.is_trial("mail", version - 1)
    assert not other.breakers.is_trial("mail", version)
    for breakers, trial in ((other.breakers, True), (process.breakers, False)):
        breakers.record("mail", OutcomeKind.ACCEPTED, trial=trial)
        assert breakers.state("mail").phase is Phase.HALF_OPEN
    process.breakers.record("mail", OutcomeKind.ACCEPTED, trial=True)
    await process.breakers.refresh()
    await other.breakers.refresh(at_once=True)
    assert other.breakers.is_closed("mail")


async def test_an_operator_s_hold_also_stops_a_trial_that_was_won(process: Process) -> None:
    await process.open_breaker()
    process.clock.advance(POLICY.open_ms)
    assert await process.breakers.try_trial("mail", 5_000)
    await process.breakers.force("mail", Phase.OPEN, who="ada")
    assert not process.breakers.usable("mail")


async def test_a_trial_that_another_process_took_over_is_no_longer_one_s_own(process: Process) -> None:
    await process.open_breaker()
    process.clock.advance(POLICY.open_ms)
    assert await process.breakers.try_trial("mail", 5_000)
    process.clock.advance(5_000)
    other = Process("w2", process)
    await other.breakers.refresh()
    assert await other.breakers.try_trial("mail", 5_000)
    await process.breakers.refresh(at_once=True)
    assert process.breakers.spend_trial("mail") == 0


async def test_the_breakers_are_read_once_per_second(process: Process) -> None:
    other = Process("w2", process)
    await other.breakers.refresh()
    await process.open_breaker()
    process.clock.advance(999)
    await other.breakers.refresh()
    assert other.breakers.is_closed("mail")
    process.clock.advance(1)
    await other.breakers.refresh()
    assert not other.breakers.is_closed("mail")


async def test_states_are_stale_five_seconds_after_they_were_read(process: Process) -> None:
    breakers, clock = process.breakers, process.clock
    assert breakers.is_stale(clock.monotonic_ms())
    clock.advance(1)
    await breakers.refresh(at_once=True)
    clock.advance(5_000)
    assert not breakers.is_stale(clock.monotonic_ms())
    clock.advance(1)
    assert breakers.is_stale(clock.monotonic_ms())


async def test_receipts_open_a_closed_breaker_unless_it_is_off(process: Process) -> None:
    await process.breakers.refresh(at_once=True)
    await process.breakers.trip("off", "too many bounces", 5_000)
    assert process.breakers.is_closed("off")
    await process.breakers.trip("mail", "too many bounces", 5_000)
    stored = await process.stored()
    assert (stored.phase, stored.why) == (Phase.OPEN, "too many bounces")
    assert process.breakers.wait_ms("mail") == 5_000
    process.clock.advance(10)
    await process.breakers.trip("mail", "again", 90_000)
    assert await process.stored() == stored


async def test_a_good_health_check_allows_the_trial_and_wakes_the_worker(process: Process) -> None:
    await process.open_breaker()
    await process.breakers.check_health()
    assert process.woken == 1
    assert process.breakers.gate("mail") is BreakerGate.TRIAL
    assert (await process.stored()).open_until <= process.breakers.now()


async def test_a_provider_is_checked_at_its_interval_or_when_it_was_replaced(process: Process) -> None:
    await process.breakers.check_health()
    await process.open_breaker()
    await process.breakers.check_health()
    process.clock.advance(POLICY.health_every_ms - 51)
    await process.breakers.check_health()
    assert process.woken == 0
    await process.breakers.check_replaced(["mail"])
    assert process.woken == 1


async def test_without_a_store_the_last_known_states_stay_in_use(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.open_breaker()

    async def fails(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable

    monkeypatch.setattr(process.store, "breakers", fails)
    await process.breakers.try_refresh()
    await process.breakers.check_replaced(["mail"])
    assert not process.breakers.usable("mail")
    with pytest.raises(StoreUnavailable):
        await process.breakers.refresh(at_once=True)
