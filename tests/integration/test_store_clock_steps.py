"""Stores whose clock is set while processes use them, on SQLite files, PostgreSQL and MongoDB."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from homing.core.clock_steps import ACCEPTED_AFTER_MS
from homing.core.lifecycle.claims import Lease
from homing.stores.mongo import MongoStore
from homing.stores.postgres import PostgresStore
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_notification,
    a_submission,
)

Store = SqliteStore | PostgresStore | MongoStore

_SHIFTED = """
DROP SCHEMA IF EXISTS test CASCADE;
CREATE SCHEMA test;
CREATE TABLE test.clock (shift_ms bigint NOT NULL);
INSERT INTO test.clock VALUES (0);
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT floor(extract(epoch FROM now()) * 1000)::bigint + (SELECT shift_ms FROM test.clock) $$;
"""


class Machine:
    """A store's machine, whose clock can be set, and on which time can pass."""

    def __init__(self, make: Callable[[Machine], Store]) -> None:
        self._make = make
        self.shift_ms = 0
        self.passed_ms = 0
        self.write_shift: Callable[[int], Awaitable[object]] | None = None
        self.opened: list[Store] = []

    async def process(self) -> Store:
        """Starts a process that uses the store."""
        store = self._make(self)
        await store.open()
        self.opened.append(store)
        return store

    async def set_clock(self, by_ms: int) -> None:
        """Sets the clock forward, or back if `by_ms` is negative."""
        self.shift_ms += by_ms
        if self.write_shift is not None:
            await self.write_shift(self.shift_ms)

    async def pass_time(self, duration_ms: int) -> None:
        """Lets time pass: the wall clock and the monotonic clocks go on."""
        self.passed_ms += duration_ms
        await self.set_clock(duration_ms)

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.passed_ms

    def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_ms


@pytest.fixture(params=["sqlite", "postgres", "mongo"])
async def machine(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str, migrated_mongo_url: str
) -> AsyncIterator[Machine]:
    if request.param == "mongo":
        made = Machine(
            lambda it: MongoStore(
                migrated_mongo_url, steady_clock=it.steady_ms, adjust_clock=lambda now: now + it.shift_ms
            )
        )
        await (await made.process()).now_ms()
        yield made
    elif request.param == "sqlite":
        made = Machine(
            lambda it: SqliteStore(tmp_path / "h.db", clock=it.clock_ms, steady_clock=it.steady_ms)
        )
        await (await made.process()).migrate()
        await made.opened[0].now_ms()
        yield made
    else:
        made = Machine(lambda it: PostgresStore(f"{postgres_url}?pool_size=3", steady_clock=it.steady_ms))
        await (await made.process()).migrate()
        admin = await asyncpg.connect(postgres_url)
        await admin.execute(_SHIFTED)
        made.write_shift = lambda shift_ms: admin.execute("UPDATE test.clock SET shift_ms = $1", shift_ms)
        yield made
        await admin.close()
    for store in made.opened:
        await store.close()


async def claimed(store: Store) -> list[str]:
    return [claim.id for claim in (await store.claim(a_claim_request(lease_ms=MINUTE_MS))).claims]


async def test_a_row_is_not_claimed_before_its_time_because_the_clock_was_set(machine: Machine) -> None:
    [store] = machine.opened
    now = await store.now_ms()
    await store.accept([a_submission(replace(a_notification(), send_at=now + HOUR_MS))])
    await store.accept([a_submission(a_notification())])
    await machine.set_clock(DAY_MS)
    assert len(await claimed(store)) == 1
    assert await store.now_ms() - now < MINUTE_MS
    assert (await store.reclaim("w-2", 10, MINUTE_MS)).claims == ()
    step = await store.suspected_clock_step()
    assert step is not None
    assert abs(step.correction_ms + DAY_MS) < MINUTE_MS
    other = await machine.process()
    assert await claimed(other) == []
    assert await other.now_ms() - now < MINUTE_MS


async def test_the_new_time_is_accepted_after_ten_steady_minutes(machine: Machine) -> None:
    [store] = machine.opened
    now = await store.now_ms()
    await store.accept([a_submission(replace(a_notification(), send_at=now + HOUR_MS))])
    await machine.set_clock(DAY_MS)
    for _ in range(ACCEPTED_AFTER_MS // 30_000):
        assert await claimed(store) == []
        await machine.pass_time(30_000)
    assert len(await claimed(store)) == 1
    assert await store.suspected_clock_step() is None
    assert await store.now_ms() - now >= DAY_MS


async def test_a_clock_that_is_set_right_again_ends_the_suspicion(machine: Machine) -> None:
    [store] = machine.opened
    await machine.set_clock(-DAY_MS)
    await store.lead("upkeep", "w-1", 1)
    assert await store.suspected_clock_step() is not None
    await machine.set_clock(DAY_MS)
    await store.lead("upkeep", "w-1", 1)
    assert await store.suspected_clock_step() is None


async def test_leadership_and_leases_from_the_future_are_void(machine: Machine) -> None:
    """The clock is set back while no process runs, so that the next one believes it."""
    [store] = machine.opened
    await store.accept([a_submission(a_notification())])
    assert await store.lead("upkeep", "w-1", MINUTE_MS)
    [id] = await claimed(store)
    await machine.set_clock(-DAY_MS)
    other = await machine.process()
    assert await other.lead("upkeep", "w-2", MINUTE_MS)
    assert [claim.id for claim in (await other.reclaim("w-2", 10, MINUTE_MS)).claims] == [id]


async def test_a_lease_that_its_holder_extends_is_not_void(machine: Machine) -> None:
    [store] = machine.opened
    await store.accept([a_submission(a_notification())])
    [claim] = (await store.claim(a_claim_request(lease_ms=MINUTE_MS))).claims
    await machine.set_clock(-DAY_MS)
    other = await machine.process()
    assert await other.extend([Lease(claim.id, claim.token)], 30_000) == {claim.id}
    assert (await other.reclaim("w-2", 10, MINUTE_MS)).claims == ()
    await machine.pass_time(31_000)
    assert len((await other.reclaim("w-2", 10, MINUTE_MS)).claims) == 1


async def test_a_long_lease_that_its_holder_extends_is_not_void_either(machine: Machine) -> None:
    [store] = machine.opened
    await store.accept([a_submission(a_notification())])
    [claim] = (await store.claim(a_claim_request(lease_ms=HOUR_MS))).claims
    await machine.set_clock(-DAY_MS)
    other = await machine.process()
    assert await other.extend([Lease(claim.id, claim.token)], HOUR_MS) == {claim.id}
    assert (await other.reclaim("w-2", 10, HOUR_MS)).claims == ()
    await machine.pass_time(HOUR_MS + 1_000)
    assert len((await other.reclaim("w-2", 10, HOUR_MS)).claims) == 1


async def test_a_reclaimed_lease_is_not_void_if_the_clock_was_set_back_to_after_its_first_start(
    machine: Machine,
) -> None:
    [store] = machine.opened
    await store.accept([a_submission(a_notification())])
    await claimed(store)
    await machine.pass_time(HOUR_MS)
    [claim] = (await store.reclaim("w-1", 10, HOUR_MS)).claims
    await machine.set_clock(-HOUR_MS // 2)
    other = await machine.process()
    assert await other.extend([Lease(claim.id, claim.token)], HOUR_MS) == {claim.id}
    assert (await other.reclaim("w-2", 10, HOUR_MS)).claims == ()
    await machine.pass_time(HOUR_MS + 1_000)
    assert len((await other.reclaim("w-2", 10, HOUR_MS)).claims) == 1


async def test_an_idle_day_is_no_step(machine: Machine) -> None:
    [store] = machine.opened
    now = await store.now_ms()
    await machine.pass_time(DAY_MS)
    assert await store.now_ms() - now >= DAY_MS
    assert await store.suspected_clock_step() is None
