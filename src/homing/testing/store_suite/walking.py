"""A long random sequence of all operations, after which counts, lists and histories must agree."""

from __future__ import annotations

import random

import pytest

from homing.core.events import STATUS_CHANGED
from homing.core.model import Claim, Event, Filter, Notification, Reason, Settlement, Status
from homing.core.ports import Backend
from homing.core.states import LIVE, WAITING, may_settle
from homing.core.views import when
from homing.testing.builders import DAY_MS, HOUR_MS, a_settlement, everything, sent
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.steps import cells, everyone
from homing.testing.store_suite.walker import LANES, TENANTS, Walker


class WalkingTests:
    """Tests of all operations in random order."""

    walk_steps = 250
    """Number of operations in one walk."""

    @pytest.mark.parametrize("seed", range(8))
    async def test_the_books_balance_wherever_a_walk_leads(self, harness: Harness, seed: int) -> None:
        walker = Walker(harness, await harness.second(), random.Random(seed))
        for number in range(self.walk_steps):
            await walker.step()
            if number % 10 == 0 or number == self.walk_steps - 1:
                await _check_books(harness.store, walker)
        await _check_histories(harness.store, walker)

    @pytest.mark.parametrize("seed", range(100, 103))
    async def test_whatever_lives_can_be_brought_to_its_end(self, harness: Harness, seed: int) -> None:
        store = harness.store
        walker = Walker(harness, await harness.second(), random.Random(seed))
        for _ in range(self.walk_steps // 2):
            await walker.step()
        for _ in range(4):
            await harness.advance(40 * DAY_MS)
            claims = (await store.claim(everything(*LANES, lease_ms=HOUR_MS))).claims
            lost = (await store.reclaim("w-end", 10_000, HOUR_MS)).claims
            await store.settle([_end(claim) for claim in (*claims, *lost)])
        for tenant in TENANTS:
            alive = {tally.status for tally in await store.tallies(tenant) if tally.count} & LIVE
            assert not alive


async def _check_books(store: Backend, walker: Walker) -> None:
    """Checks that every stored count equals a count of the rows (invariant 1)."""
    all_cells: dict[tuple[Status, int], int] = {}
    for tenant in TENANTS:
        rows = await everyone(store, tenant)
        recount: dict[tuple[Status, int], int] = {}
        for row in rows:
            cell = (row.status, row.attempt_count)
            recount[cell] = recount.get(cell, 0) + 1
            all_cells[cell] = all_cells.get(cell, 0) + 1
        tallies = await store.tallies(tenant)
        assert {c: n for c, (n, _) in cells(tallies).items() if n} == recount
        assert sum(t.count + t.purged for t in tallies) == len(walker.accepted[tenant])
        assert {row.id for row in rows} <= walker.accepted[tenant]
        await _check_reads(store, tenant, rows)
    assert {c: n for c, (n, _) in cells(await store.tallies(None)).items() if n} == all_cells
    assert set(await store.tenants()) == {tenant for tenant in TENANTS if walker.accepted[tenant]}


async def _check_reads(store: Backend, tenant: str, rows: list[Notification]) -> None:
    """Checks that all other reads agree with the list of rows."""
    now = when(await store.now_ms())
    waiting = [row for row in rows if row.status in WAITING]
    assert all((row.next_retry_at is not None) == (row.status in WAITING) for row in rows)
    by_due = sorted((row.next_retry_at, row.id) for row in waiting if row.next_retry_at)
    page = await store.waiting(tenant, limit=len(rows) + 1)
    assert [(item.next_retry_at, item.id) for item in page.items] == by_due
    ready = await store.waiting(tenant, limit=len(rows) + 1, ready=True)
    assert {item.id for item in ready.items} >= {id for due_at, id in by_due if due_at <= now}
    retried = [row.last_attempt_at for row in rows if row.status is Status.RETRYING and row.last_attempt_at]
    assert await store.oldest_retry_at(tenant) == min(retried, default=None)
    dead = await everyone(store, tenant, Filter(statuses=(Status.FAILED,)))
    assert sum(group.count for group in await store.error_groups(tenant, limit=1000)) == len(dead)


async def _check_histories(store: Backend, walker: Walker) -> None:
    """Checks that each status change is legal, follows the last one and has a cause (invariants 7 and 12)."""
    told: dict[str, list[Event]] = {}
    for event in await store.outbox("relay", 1_000_000, HOUR_MS):
        assert event.name == STATUS_CHANGED
        assert event.notification_id is not None
        told.setdefault(event.notification_id, []).append(event)
    assert sum(len(ids) for ids in walker.accepted.values()) == len(told.keys() | walker.leased_at_once)
    for tenant in TENANTS:
        for row in await everyone(store, tenant):
            await _check_history(store, row, told.get(row.id, []), row.id in walker.leased_at_once)


async def _check_history(store: Backend, row: Notification, events: list[Event], leased: bool) -> None:
    history = await store.get(row.tenant, row.id)
    assert history is not None
    causes = [(cause.status_before, cause.status_after) for cause in history.causes]
    settled = 0
    status: Status | None = Status.PENDING if leased else None
    for event in events:
        before, after = event.payload["statusBefore"], Status(event.payload["status"])
        if before is None:
            assert (status, after) == (None, Status.PENDING)
        elif before == Status.SENDING:
            assert status in WAITING
            assert may_settle(Status.SENDING, after)
            settled += 1
        else:
            assert status == before
            assert (status, after) in causes
        status = after
    assert row.status is Status.SENDING or row.status is status
    assert len(history.attempts) <= settled
    numbers = [attempt.number for attempt in history.attempts]
    assert numbers == sorted(set(numbers))
    assert max(numbers, default=0) <= row.attempt_count


def _end(claim: Claim) -> Settlement:
    if claim.overdue:
        return a_settlement(claim, Status.EXPIRED, attempt=None, reason=Reason.EXPIRED)
    return sent(claim)
