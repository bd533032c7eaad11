"""The queue heads that claims use stay exact, whatever happens to the rows."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.ports.stores import Retention
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import (
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_submission,
    in_doubt,
    retry_in,
)
from homing.testing.manual_clock import START_MS

TRUTH = """
SELECT lane, tenant, outlet, min(due_at) FROM homing_notifications
WHERE due_at IS NOT NULL GROUP BY lane, tenant, outlet ORDER BY lane, tenant, outlet
"""
KNOWN = """
SELECT lane, tenant, outlet, next_due_at FROM homing_queues
WHERE next_due_at IS NOT NULL ORDER BY lane, tenant, outlet
"""


class QueueHeadChecker:
    """A store whose clock stands still, and a connection to inspect it."""

    def __init__(self, path: Path) -> None:
        self.now = START_MS
        self.store = SqliteStore(path, clock=lambda: self.now)
        self._path = path

    def check(self) -> list[tuple[str, str, str, int]]:
        """Returns the stored queue heads, after checking them against the rows."""
        connection = sqlite3.connect(self._path)
        known = connection.execute(KNOWN).fetchall()
        assert known == connection.execute(TRUTH).fetchall()
        connection.close()
        return known

    async def accept(self, *due_in_ms: int, tenant: str = "default") -> list[str]:
        news = [a_notification(send_at=self.now + delay_ms) for delay_ms in due_in_ms]
        await self.store.accept([a_submission(*news, tenant=tenant)])
        return [new.id for new in news]

    async def command(self, name: CommandName, *ids: str, **more: object) -> None:
        order = Command(name=name, who="ada", **more)  # type: ignore[arg-type]
        result = await self.store.amend("default", ids, order)
        assert result.applied == ids


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[QueueHeadChecker]:
    world = QueueHeadChecker(tmp_path / "homing.db")
    await world.store.open()
    await world.store.migrate()
    yield world
    await world.store.close()


async def test_a_cancelled_row_leaves_its_queue_head(world: QueueHeadChecker) -> None:
    first, second = await world.accept(MINUTE_MS, HOUR_MS)
    assert (await world.store.claim(a_claim_request())).next_due_at == world.now + MINUTE_MS
    await world.command(CommandName.CANCEL, first)
    world.check()
    assert (await world.store.claim(a_claim_request())).next_due_at == world.now + HOUR_MS
    await world.command(CommandName.CANCEL, second)
    assert world.check() == []
    assert (await world.store.claim(a_claim_request())).next_due_at is None


async def test_a_rescheduled_row_moves_its_queue_head(world: QueueHeadChecker) -> None:
    [id] = await world.accept(MINUTE_MS)
    await world.command(CommandName.RESCHEDULE, id, delay_ms=HOUR_MS)
    world.check()
    assert (await world.store.claim(a_claim_request())).next_due_at == world.now + HOUR_MS
    await world.command(CommandName.RETRY, id)
    world.check()
    assert [claim.id for claim in (await world.store.claim(a_claim_request())).claims] == [id]


async def test_a_row_moved_to_another_outlet_leaves_its_queue(world: QueueHeadChecker) -> None:
    [id] = await world.accept(MINUTE_MS)
    await world.command(CommandName.RETRY, id, provider="acs")
    assert [(outlet, due) for _, _, outlet, due in world.check()] == [("acs", world.now)]
    batch = await world.store.claim(a_claim_request(outlet_capacity={"sendgrid": 0}))
    assert [claim.id for claim in batch.claims] == [id]


async def test_claims_and_retries_keep_the_queues_exact(world: QueueHeadChecker) -> None:
    await world.accept(0, 0, MINUTE_MS, HOUR_MS)
    await world.accept(0, 5, tenant="b")
    batch = await world.store.claim(a_claim_request(slots=2))
    world.check()
    assert batch.next_due_at == world.now + 5
    await world.store.settle([retry_in(claim, 90_000, provider="acs") for claim in batch.claims])
    world.check()
    world.now += 2 * MINUTE_MS
    batch = await world.store.claim(a_claim_request())
    assert len(batch.claims) == 5
    assert batch.next_due_at == START_MS + HOUR_MS
    assert len(world.check()) == 1


async def test_a_passed_deadline_and_a_reopening_receipt_keep_the_queues_exact(
    world: QueueHeadChecker,
) -> None:
    new = a_notification(send_at=world.now + HOUR_MS, expires_at=world.now + MINUTE_MS)
    await world.store.accept([a_submission(new), a_submission()])
    [claim] = (await world.store.claim(a_claim_request())).claims
    await world.store.settle([in_doubt(claim, "m-1")])
    world.now += 2 * MINUTE_MS
    assert [c.id for c in (await world.store.reclaim("w-1", 10, MINUTE_MS)).claims] == [new.id]
    assert world.check() == []
    result = await world.store.receipt([a_receipt("m-1", ReceiptEvent.FAILED)])
    assert len(result.applied) == 1
    assert [outlet for _, _, outlet, _ in world.check()] == ["acs"]
    await world.store.receipt([a_receipt("m-1", ReceiptEvent.DELIVERED)])
    assert world.check() == []


async def test_idle_queues_are_deleted(world: QueueHeadChecker) -> None:
    await world.accept(0)
    await world.accept(HOUR_MS, tenant="b")
    await world.store.claim(a_claim_request())
    await world.store.prune(Retention(), 100)
    connection = sqlite3.connect(world._path)
    assert connection.execute("SELECT tenant FROM homing_queues").fetchall() == [("b",)]
    assert connection.execute("SELECT count(*) FROM homing_turns").fetchone() == (0,)
    connection.close()
