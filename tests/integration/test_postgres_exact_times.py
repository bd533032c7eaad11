"""What happens in exactly the millisecond of a due time or of the end of a lease, on PostgreSQL.

The clock of the database stands still here. Everywhere else it runs on between two calls, so that no test
would notice if a comparison left out this millisecond.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from msgspec.structs import replace

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.times import moment
from homing.stores.postgres import PostgresStore
from homing.testing.builders import a_claim_request, a_notification, a_submission
from support.exact_retention import check_retention

_STANDING = """
CREATE TABLE homing.standing_clock (now_ms bigint NOT NULL);
INSERT INTO homing.standing_clock VALUES (homing.now_ms());
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT now_ms FROM homing.standing_clock $$;
"""


class StandingClock:
    """The clock of the database, which only the test moves."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], now: int) -> None:
        self._connection = connection
        self._began = now
        self.now = now

    def steady_ms(self) -> int:
        return self.now - self._began

    async def set(self, now: int) -> None:
        self.now = now
        await self._connection.execute("UPDATE homing.standing_clock SET now_ms = $1", now)


@pytest.fixture
async def clock(store: PostgresStore, postgres_url: str) -> AsyncIterator[StandingClock]:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(_STANDING)
    yield StandingClock(connection, await connection.fetchval("SELECT homing.now_ms()"))
    await connection.close()


@pytest.fixture
async def still(clock: StandingClock, postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A store on the clock that stands still."""
    store = PostgresStore(postgres_url, steady_clock=clock.steady_ms)
    await store.open()
    yield store
    await store.close()


async def claim_at(store: PostgresStore, clock: StandingClock, now: int, request: ClaimRequest) -> ClaimBatch:
    await clock.set(now)
    batch = await store.claim(request)
    assert batch.now == now
    return batch


@pytest.mark.parametrize("chosen", [False, True], ids=["all", "chosen"])
async def test_a_row_is_claimed_in_the_millisecond_in_which_it_is_due(
    still: PostgresStore, clock: StandingClock, chosen: bool
) -> None:
    due_at = clock.now + 500
    new = a_notification(send_at=due_at)
    await still.accept([a_submission(new)])
    request = a_claim_request()
    if chosen:
        request = replace(request, ids=frozenset({new.id}), limit=1)
    assert (await claim_at(still, clock, due_at - 1, request)).claims == ()
    assert [claim.id for claim in (await claim_at(still, clock, due_at, request)).claims] == [new.id]


async def test_a_lease_is_over_in_the_millisecond_in_which_it_ends(
    still: PostgresStore, clock: StandingClock
) -> None:
    new = a_notification()
    await still.accept([a_submission(new)])
    [claim] = (await still.claim(a_claim_request())).claims
    await clock.set(claim.lease_until - 1)
    assert (await still.reclaim("other", 10, 40_000)).claims == ()
    await clock.set(claim.lease_until)
    assert [one.id for one in (await still.reclaim("other", 10, 40_000)).claims] == [new.id]


async def test_a_row_is_overdue_in_the_millisecond_in_which_it_expires(
    still: PostgresStore, clock: StandingClock
) -> None:
    expires_at = clock.now + 500
    new = a_notification(send_at=clock.now + 60_000, expires_at=expires_at)
    await still.accept([a_submission(new)])
    await clock.set(expires_at - 1)
    assert (await still.reclaim("w", 10, 40_000)).claims == ()
    await clock.set(expires_at)
    [claim] = (await still.reclaim("w", 10, 40_000)).claims
    assert (claim.id, claim.overdue) == (new.id, True)


@pytest.mark.parametrize("step_ms", [None, 60_000])
async def test_what_waits_is_late_from_the_millisecond_in_which_it_is_due(
    still: PostgresStore, clock: StandingClock, step_ms: int | None
) -> None:
    due_at = clock.now + 500
    await still.accept([a_submission(a_notification(send_at=due_at))])
    await clock.set(due_at - 1)
    [group] = (await still.waiting_groups("default", step_ms=step_ms)).groups
    assert (group.late, group.oldest_at) == (0, None)
    await clock.set(due_at)
    [group] = (await still.waiting_groups("default", step_ms=step_ms)).groups
    assert (group.late, group.oldest_at, group.due_from) == (1, moment(due_at), None)


async def test_old_data_is_removed_in_the_millisecond_in_which_it_has_its_age(
    still: PostgresStore, clock: StandingClock
) -> None:
    await check_retention(still, clock.set, clock.now)
