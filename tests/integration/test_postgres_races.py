"""Races on PostgreSQL: another transaction commits in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import asyncpg
import pytest

from homing.core.lifecycle.claims import Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Filter, Status
from homing.core.ports.stores import Entry
from homing.stores.common.sweep_pace import SweepPace
from homing.stores.postgres import PostgresStore, amend, leases
from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.connection import Database
from homing.stores.postgres.statements import PostgresTransaction
from homing.testing.builders import (
    HOUR_MS,
    STANDARD_EMAIL,
    a_claim_request,
    a_notification,
    a_receipt,
    a_submission,
    dead,
    sent,
)
from support.command_pages import check_command_pages

Admin: TypeAlias = "asyncpg.Connection[Any]"
_WAITING = """
SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
"""


@pytest.fixture
async def admin(migrated_postgres_url: str) -> AsyncIterator[Admin]:
    connection = await asyncpg.connect(migrated_postgres_url)
    yield connection
    await connection.close()


async def _until_waiting(admin: Admin, task: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(60):
        while not await admin.fetchval(_WAITING):
            assert not task.done(), task.result()


async def test_the_number_of_a_rolled_back_queue_is_not_used(store: PostgresStore, postgres_url: str) -> None:
    database = Database(parse_database_url(postgres_url), timeout_s=60)
    await database.open()
    queue = (STANDARD_EMAIL, "default", "new@host")

    async def find_twice_and_fail(tx: PostgresTransaction) -> None:
        for _ in range(2):
            await tx.queues.find(tx, [queue])
        raise LookupError

    with pytest.raises(LookupError):
        await database.do(find_twice_and_fail)
    assert database.queues.unknown([queue]) == [queue]

    async def find(tx: PostgresTransaction) -> dict[Any, int]:
        return await tx.queues.find(tx, [queue])

    number = (await database.do(find))[queue]
    assert database.queues.number(queue) == number
    assert await database.do(find) == {queue: number}
    await database.close()


async def test_a_settlement_succeeds_although_the_row_moves_to_another_queue_meanwhile(
    store: PostgresStore, admin: Admin
) -> None:
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request())).claims
    async with admin.transaction():
        await admin.execute("INSERT INTO homing.queues (lane, tenant, outlet) VALUES ('l', 'default', 'acs')")
        await admin.execute("UPDATE homing.live SET queue = (SELECT max(id) FROM homing.queues)")
        settling = asyncio.create_task(store.settle([sent(claim)]))
        await _until_waiting(admin, settling)
    assert (await settling).applied == (claim.id,)


async def test_a_reclaim_sees_a_change_made_just_before_it_took_the_lock(
    store: PostgresStore, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = leases.EXPIRED_ROWS.replace(
        "ORDER BY l.lease_until", "AND (SELECT pg_advisory_lock_shared(7)) IS NOT NULL ORDER BY l.lease_until"
    )
    monkeypatch.setattr(leases, "EXPIRED_ROWS", held)
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request(lease_ms=0))).claims
    before = await admin.fetchval("SELECT changes FROM homing.live")
    await admin.execute("SELECT pg_advisory_lock(7)")
    reclaiming = asyncio.create_task(store.reclaim("w", 10, HOUR_MS))
    await _until_waiting(admin, reclaiming)
    await store.amend("default", [claim.id], Command(name=CommandName.CANCEL, who="ada"))
    await admin.execute("SELECT pg_advisory_unlock(7)")
    assert [taken.id for taken in (await reclaiming).claims] == [claim.id]
    assert await admin.fetchrow("SELECT changes, cancel_requested FROM homing.live") == (before + 2, True)


@pytest.mark.parametrize("by_filter", [False, True])
async def test_a_command_sees_a_change_that_was_made_while_it_waited_for_the_row(
    store: PostgresStore, admin: Admin, by_filter: bool
) -> None:
    submission = a_submission()
    await store.accept([submission])
    targets = Filter() if by_filter else [new.id for new in submission.notifications]
    before = await admin.fetchval("SELECT changes FROM homing.live")
    async with admin.transaction():
        await admin.execute("UPDATE homing.live SET changes = changes + 1, last_error = 'busy'")
        command = Command(name=CommandName.RESCHEDULE, who="ada", delay_ms=HOUR_MS)
        amending = asyncio.create_task(store.amend("default", targets, command))
        await _until_waiting(admin, amending)
    assert len((await amending).applied) == 1
    assert await admin.fetchrow("SELECT changes, last_error FROM homing.live") == (before + 2, "busy")


async def test_a_command_sees_a_change_of_a_dead_letter_that_was_made_while_it_waited_for_it(
    store: PostgresStore, admin: Admin
) -> None:
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request())).claims
    await store.settle([dead(claim)])
    before = await admin.fetchval("SELECT changes FROM homing.settled")
    async with admin.transaction():
        await admin.execute("UPDATE homing.settled SET changes = changes + 1, last_error = 'busy'")
        command = Command(name=CommandName.ACKNOWLEDGE, who="ada")
        amending = asyncio.create_task(store.amend("default", [claim.id], command))
        await _until_waiting(admin, amending)
    assert (await amending).applied == (claim.id,)
    assert await admin.fetchrow("SELECT changes, last_error FROM homing.settled") == (before + 2, "busy")


def slow_down_sweeps(store: PostgresStore) -> None:
    """Makes each sweep over all leases seem to take a second, so that most reclaims skip old leases."""
    store._reclaim_pace = SweepPace(partial(next, count(0.0)))
    for _ in range(5):
        with store._reclaim_pace.sweep():
            pass


async def expire(store: PostgresStore, admin: Admin, ago_ms: int) -> None:
    """Makes all leases end in the past."""
    await admin.execute(
        "UPDATE homing.live SET lease_until = $1 WHERE lease_until IS NOT NULL", await store.now_ms() - ago_ms
    )


async def test_a_lease_that_was_committed_after_the_reclaim_that_should_have_found_it_is_found_later(
    store: PostgresStore, admin: Admin
) -> None:
    slow_down_sweeps(store)
    assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request())).claims
    await expire(store, admin, 30_000)
    assert [found.id for found in (await store.reclaim("w", 10, HOUR_MS)).claims] == [claim.id]


async def test_while_sweeps_are_slow_a_reclaim_skips_old_leases_until_the_next_sweep(
    store: PostgresStore, admin: Admin
) -> None:
    slow_down_sweeps(store)
    assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request())).claims
    await expire(store, admin, 600_000)
    assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
    store._reclaim_pace = SweepPace()  # a sweep is due
    assert [found.id for found in (await store.reclaim("w", 10, HOUR_MS)).claims] == [claim.id]


async def test_more_old_leases_than_one_reclaim_returns_are_found_by_the_next_one(
    store: PostgresStore, admin: Admin
) -> None:
    slow_down_sweeps(store)
    await store.accept([a_submission() for _ in range(3)])
    claims = (await store.claim(a_claim_request())).claims
    await expire(store, admin, 600_000)
    found = [one.id for _ in range(3) for one in (await store.reclaim("w", 1, HOUR_MS)).claims]
    assert sorted(found) == sorted(claim.id for claim in claims)


async def test_an_entry_deleted_while_a_put_waits_for_it_is_created_again(
    store: PostgresStore, admin: Admin
) -> None:
    entry = Entry(tenant="default", kind="k", key="a", value={"n": 1}, version=-1)
    await store.put([entry], who="ada")
    async with admin.transaction():
        await admin.execute("SELECT 1 FROM homing.registry FOR UPDATE")
        putting = asyncio.create_task(store.put([entry], who="ada"))
        await _until_waiting(admin, putting)
        await admin.execute("DELETE FROM homing.registry")
    written = await putting
    assert written is not None
    assert [one.version for one in written] == [1]
    assert await store.get_many("default", "k", ["a"]) == {"a": written[0]}


async def test_a_repeated_receipt_counts_if_its_first_process_died_in_between(
    store: PostgresStore, admin: Admin
) -> None:
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request())).claims
    receipt = a_receipt("m-1")
    assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
    # The settlement committed at the same time without seeing the receipt, and the process died.
    kept = await admin.fetchval("SELECT kept FROM homing.receipts")
    await admin.execute("UPDATE homing.receipts SET kept = NULL")
    await store.settle([sent(claim, "m-1")])
    await admin.execute("UPDATE homing.receipts SET kept = $1", kept)
    await store.receipt([receipt])
    history = await store.get("default", claim.id)
    assert history is not None
    assert history.notification.status is Status.DELIVERED


async def test_a_repeated_request_leaves_no_dedup_keys(store: PostgresStore, admin: Admin) -> None:
    def asked(dedup_key: str) -> Any:
        new = a_notification(dedup_key=dedup_key, dedup_window_ms=HOUR_MS)
        return a_submission(new, key="same")

    first, again = await store.accept([asked("a"), asked("b")])
    assert first.ids == again.ids
    assert await admin.fetch("SELECT dedup_key FROM homing.dedups") == [("a",)]


async def test_a_request_that_waits_for_its_key_delays_no_other(store: PostgresStore, admin: Admin) -> None:
    """The key is held by a caller's transaction, which may take long."""
    held = admin.transaction()
    await held.start()
    await store.accept([a_submission(key="k")], tx=admin)
    waiting = asyncio.create_task(store.accept([a_submission(key="k")]))
    await _until_waiting(admin, waiting)
    others = [asyncio.create_task(store.accept([a_submission()])) for _ in range(5)]
    await asyncio.wait_for(asyncio.gather(*others), 60)
    assert not waiting.done()
    await held.rollback()
    [answer] = await asyncio.wait_for(waiting, 60)
    assert not answer.duplicates


# Batches that wait for an earlier one -----------------------------------------------------------------


class _Turn:
    """What a batch waits for: its turn, or an error."""

    def __init__(self) -> None:
        self._well: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.asked = asyncio.Event()

    async def __call__(self) -> None:
        self.asked.set()
        if not await self._well:
            raise LookupError("the one before failed")

    def end(self, *, well: bool) -> None:
        self._well.set_result(well)


async def _known_queue(store: PostgresStore) -> None:
    await store.accept([a_submission()])


async def test_later_batches_commit_after_earlier_ones(store: PostgresStore) -> None:
    await _known_queue(store)
    turn, after = _Turn(), a_submission()
    task = asyncio.create_task(store.accept_after([after], turn))
    await turn.asked.wait()
    assert await store.get("default", after.notifications[0].id) is None
    turn.end(well=True)
    (answer,) = await task
    assert answer.ids == (after.notifications[0].id,)
    assert await store.get("default", after.notifications[0].id) is not None


async def test_a_batch_after_a_failed_one_is_not_stored(store: PostgresStore) -> None:
    await _known_queue(store)
    turn, after = _Turn(), a_submission()
    task = asyncio.create_task(store.accept_after([after], turn))
    await turn.asked.wait()
    turn.end(well=False)
    with pytest.raises(LookupError):
        await task
    assert await store.get("default", after.notifications[0].id) is None
    assert sum(tally.count for tally in await store.tallies("default")) == 1


_LOCKED = """
SELECT c.relname FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
WHERE l.mode = 'RowExclusiveLock' AND c.relname IN ('requests', 'dedups', 'queues')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.mark.parametrize("what", ["idempotency_key", "dedup_key", "outlet"])
async def test_an_earlier_batch_never_waits_for_a_later_one(
    store: PostgresStore, postgres_url: str, what: str
) -> None:
    """Two transactions can wait for each other at keys and at new queues."""

    def one() -> Submission:
        if what == "idempotency_key":
            return a_submission(a_notification(), key="k", fingerprint="f")
        fields: dict[str, Any] = {"outlet": "new@host"}
        if what == "dedup_key":
            fields = {"dedup_key": "k", "dedup_window_ms": HOUR_MS}
        return a_submission(a_notification(**fields))

    await _known_queue(store)
    turn, before, after = _Turn(), one(), one()
    task = asyncio.create_task(store.accept_after([after], turn))
    await turn.asked.wait()
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetch(_LOCKED) == [], "keys and new queues are written after the earlier batch"
    await connection.close()
    async with asyncio.timeout(60):
        (first,) = await store.accept([before])
    assert first.duplicates == frozenset()
    turn.end(well=True)
    (second,) = await task
    assert (second.ids == first.ids) == (what != "outlet")


async def test_with_few_connections_every_call_waits_for_its_turn(postgres_url: str) -> None:
    store = PostgresStore(f"{postgres_url}{'&' if '?' in postgres_url else '?'}pool_size=2")
    await store.open()
    try:
        await store.migrate()
        turn = _Turn()
        tasks = [asyncio.create_task(store.accept_after([a_submission()], turn)) for _ in range(3)]
        await turn.asked.wait()
        await store.accept([a_submission()])
        turn.end(well=True)
        await asyncio.gather(*tasks)
        assert sum(tally.count for tally in await store.tallies("default")) == 4
    finally:
        await store.close()


@pytest.mark.parametrize(("slots", "wanted"), [(3, [3, 3, 3]), (8, [8, 8, 8]), (1_000, [30, 0, 0])])
async def test_with_few_rows_recently_a_claim_takes_exactly_what_it_needs(
    store: PostgresStore, slots: int, wanted: list[int]
) -> None:
    """A sweep would include the first due rows, which may be too few or too many."""
    for _ in range(2):
        assert (await store.claim(a_claim_request(slots=slots))).claims == ()
    accepted = await store.accept([a_submission(a_notification()) for _ in range(30)])
    taken = []
    for _ in wanted:
        batch = await store.claim(a_claim_request(slots=slots))
        taken.append([claim.id for claim in batch.claims])
    assert [len(ids) for ids in taken] == wanted
    assert [id for ids in taken for id in ids] == [answer.ids[0] for answer in accepted][: sum(wanted)]


async def test_concurrent_claims_after_a_quiet_time_take_each_row_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(3)]
    for store in stores:
        await store.open()
    try:
        await stores[0].migrate()
        for number, store in enumerate(stores):
            assert (await store.claim(a_claim_request(worker=f"w-{number}"))).claims == ()
        await stores[0].accept([a_submission(a_notification()) for _ in range(40)])
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < 40:
                batches = await asyncio.gather(
                    *(
                        store.claim(a_claim_request(worker=f"w-{n}", slots=2))
                        for n, store in enumerate(stores)
                    )
                )
                found += [claim.id for batch in batches for claim in batch.claims]
        assert len(set(found)) == len(found) == 40
    finally:
        for store in stores:
            await store.close()


async def test_a_command_for_a_filter_reaches_all_pages(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amend, "_PAGE_ROWS", 2)
    await check_command_pages(store)
