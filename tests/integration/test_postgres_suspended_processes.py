"""Processes that are suspended inside their transactions: others go on, and so do they when they wake up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias, cast

import asyncpg
import pytest

from homing.core.errors import StoreBusy
from homing.core.notifications import Status
from homing.core.ports.stores import Retention, WorkerHeartbeat
from homing.core.routing.breaker import Breaker, Phase
from homing.core.routing.rate_limits import RateLimit
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.claim import DUE_ROWS
from homing.stores.postgres.connection import Database
from homing.stores.postgres.statements import PostgresTransaction
from homing.stores.postgres.transaction_limits import TransactionLimits
from homing.testing.builders import (
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_message,
    a_notification,
    a_receipt,
    a_submission,
    sent,
)
from support.event_loops import LoopKind
from support.suspended_process import SuspendedProcess

Admin: TypeAlias = "asyncpg.Connection[Any]"
FOREVER_MS = 600_000
"""Longer than any test takes."""
SHORT_LEASE_MS = 1_000
"""Length of leases with which the server ends the transactions of a suspended process after a second."""
NEVER = 2**42
"""A time in the future."""
SLOW = RateLimit(1 / 600, 5)
RETENTION = Retention()
CANNOT_SEND = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
WAITS_FOR_THE_REST = """
SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'ClientRead'
"""
TIMEOUTS = """
SELECT name, setting FROM pg_settings
WHERE name = 'idle_in_transaction_session_timeout'
  OR name IN ('tcp_user_timeout', 'lock_timeout', 'transaction_timeout')
"""
OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND application_name = 'homing'
"""


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[Admin]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, lease_ms=SHORT_LEASE_MS)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


UPKEEP = """
async def calls(store):
    async def count(call):
        return len((await call).claims)

    from homing.core.ports.stores import WorkerHeartbeat

    return [
        count(store.claim(a_claim_request(worker="suspended", slots=1))),
        count(store.reclaim("suspended", 1, MINUTE_MS)),
        store.lead("upkeep", "suspended", MINUTE_MS),
        store._write(store._change_recorder.fold_ledger),
        store.worker_seen(WorkerHeartbeat(name="suspended", version="1", lanes={}, providers=())),
        store.store_retry_delays([7, 8]),
    ]
"""


async def test_claims_reclaims_and_upkeep_never_wait_for_a_suspended_process(
    store: PostgresStore, admin: Admin, postgres_url: str, loop_kind: LoopKind
) -> None:
    """The server never ends the suspended process's session here. A call that waited for it would fail."""
    await store.accept([a_submission(a_notification()) for _ in range(8)])
    lost = (await store.claim(a_claim_request(worker="lost", slots=4))).claims
    await admin.execute("UPDATE homing.live SET lease_until = 1 WHERE lease_until IS NOT NULL")
    assert await store.lead("upkeep", "w-1", 0)
    await store.worker_seen(WorkerHeartbeat(name="suspended", version="1", lanes={}, providers=()))
    await admin.execute("UPDATE homing.workers SET seen_at = 1")
    await store.store_retry_delays([5, 6])
    async with SuspendedProcess(postgres_url, UPKEEP, silence_ms=FOREVER_MS, loop_kind=loop_kind):
        assert len((await store.claim(a_claim_request())).claims) == 3, "the fourth row is locked"
        assert len((await store.reclaim("w-1", 10, HOUR_MS)).claims) == len(lost) - 1
        assert not await store.lead("upkeep", "w-1", MINUTE_MS)
        assert await store.lead("look_ups", "w-1", MINUTE_MS)
        await store.prune(RETENTION, 10)
        await store.store_retry_delays([5, 6])
        assert sum(tally.count for tally in await store.tallies(None)) == 8


DELIVERY = """
NEVER = 2**42

async def calls(store):
    [mine, *_] = (await store.claim(a_claim_request(worker="suspended", slots=2))).claims

    async def claim(call):
        return [claim.id for claim in (await call).claims]

    async def settle(call):
        return [list(ids) for ids in (lambda result: (result.applied, result.stale))(await call)]

    async def accept(call):
        [answer] = await call
        return [list(answer.ids), list(answer.duplicates)]

    async def take(call):
        return (await call).granted

    from homing.core.lifecycle.commands import Command, CommandName
    from homing.core.routing.breaker import Breaker
    from homing.core.routing.rate_limits import RateLimit

    return [
        claim(store.claim(a_claim_request(worker="suspended", slots=2))),
        settle(store.settle([sent(mine)])),
        accept(store.accept([a_submission(a_notification(outlet="new@host", send_at=NEVER), key="k")])),
        take(store.take("sms", RateLimit(1 / 600, 5), 5)),
        store.put_breaker("sendgrid", Breaker(failures=7)),
        store.lead("upkeep", "suspended", MINUTE_MS),
    ]
"""


@pytest.mark.parametrize("url", ["postgres_url", "pooled_url"])
async def test_the_server_ends_the_transactions_of_a_suspended_process_and_it_goes_on_when_it_wakes_up(
    store: PostgresStore, admin: Admin, url: str, loop_kind: LoopKind, request: pytest.FixtureRequest
) -> None:
    await store.accept([a_submission(a_notification()) for _ in range(4)])
    await store.put_breaker("sendgrid", Breaker())
    await store.lead("upkeep", "w-1", 0)
    breaker = Breaker(phase=Phase.OPEN, version=1)
    process = SuspendedProcess(request.getfixturevalue(url), DELIVERY, silence_ms=1_000, loop_kind=loop_kind)
    async with process as suspended:
        key = a_submission(a_notification(outlet="new@host", send_at=NEVER), key="k")
        [[accepted], taken, is_stored, _] = await asyncio.gather(
            store.accept([key]),
            store.take("sms", SLOW, 5),
            store.put_breaker("sendgrid", breaker),
            _all_taken(store),
        )
        assert (taken.granted, is_stored, accepted.duplicates) == (5, True, frozenset())
        async with asyncio.timeout(60):
            while await admin.fetchval(OPEN_TRANSACTIONS):
                pass
        assert await store.lead("upkeep", "w-1", MINUTE_MS)
        await admin.execute("UPDATE homing.live SET lease_until = 1 WHERE worker = 'suspended'")
        reclaimed = (await store.reclaim("w-1", 10, HOUR_MS)).claims
        assert len(reclaimed) == 2
        results = await suspended.resume()
    claimed, [applied, stale], [ids, duplicates], granted, put, leads = results
    assert (claimed, applied, granted, put, leads) == ([], [], 0, False, False)
    assert len(stale) == 1
    assert stale[0] in {claim.id for claim in reclaimed}
    assert ids == duplicates == list(accepted.ids)
    result = await store.settle([sent(claim) for claim in reclaimed])
    assert len(result.applied) == 2


async def _all_taken(store: PostgresStore) -> None:
    """Claims until the rows that the suspended process had locked are claimed too."""
    left = 2
    async with asyncio.timeout(60):
        while left:
            left -= len((await store.claim(a_claim_request(slots=left))).claims)


@pytest.mark.parametrize("url", ["postgres_url", "pooled_url"])
async def test_a_process_that_does_not_read_a_large_result_loses_its_transaction(
    store: PostgresStore,
    admin: Admin,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The server is not idle then: it waits until it can send the rest of the result."""
    texts = [a_notification(message=a_message("x" * 400_000)) for _ in range(40)]
    await store.accept([a_submission(*texts)])
    transports: list[Any] = []
    rows = PostgresTransaction.rows

    async def stop_reading(tx: PostgresTransaction, sql: str, *parameters: Any) -> Any:
        if sql == DUE_ROWS and not transports:
            connection = cast(Any, tx.connection)
            prepared = await connection.prepare(sql)
            transports.append(connection._transport)
            transports[0].pause_reading()
            return await prepared.fetch(*parameters)
        return await rows(tx, sql, *parameters)

    monkeypatch.setattr(PostgresTransaction, "rows", stop_reading)
    suspended = PostgresStore(request.getfixturevalue(url), lease_ms=SHORT_LEASE_MS)
    await suspended.open()
    claiming = asyncio.create_task(suspended.claim(a_claim_request(worker="suspended")))
    found: list[str] = []
    async with asyncio.timeout(60):
        while not await admin.fetchval(CANNOT_SEND):
            assert not claiming.done()
        while len(found) < len(texts):
            found += [claim.id for claim in (await store.claim(a_claim_request())).claims]
        assert set(found) == {text.id for text in texts}
        transports[0].resume_reading()
        assert (await claiming).claims == ()
    await suspended.close()


async def test_upkeep_ends_the_session_of_a_process_that_was_suspended_in_the_middle_of_a_statement(
    store: PostgresStore, admin: Admin, postgres_url: str
) -> None:
    """The session is not idle for the server then: a statement was prepared, but not executed."""
    await store.accept([a_submission()])
    suspended = await asyncpg.connect(postgres_url, server_settings={"application_name": "homing"})
    await suspended.execute("BEGIN; UPDATE homing.live SET worker = 'suspended'")
    await suspended.prepare("SELECT 1")
    async with asyncio.timeout(60):
        while not await admin.fetchval(WAITS_FOR_THE_REST):
            assert not suspended.is_closed()
        assert (await store.claim(a_claim_request())).claims == ()
        while not (await store.claim(a_claim_request())).claims:
            await store.reclaim("w-1", 10, HOUR_MS)
    suspended.terminate()


async def test_a_settlement_never_waits_for_a_receipt_that_waits_for_a_suspended_process(
    store: PostgresStore, admin: Admin
) -> None:
    """A receipt that came early waits for all settlements that have begun before."""
    await store.accept([a_submission()])
    [claim] = (await store.claim(a_claim_request())).claims
    suspended = admin.transaction()
    await suspended.start()
    await admin.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended('homing receipts', 0))")
    receiving = asyncio.create_task(store.receipt([a_receipt("m-1")]))
    async with asyncio.timeout(60):
        while not await admin.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not receiving.done()
        assert (await store.settle([sent(claim, "m-1")])).applied == (claim.id,)
        assert not receiving.done()
        await suspended.rollback()
        await receiving
    history = await store.get("default", claim.id)
    assert history is not None
    assert history.notification.status is Status.DELIVERED


async def test_a_batch_that_waits_long_for_an_earlier_one_is_stored_nevertheless(
    admin: Admin, postgres_url: str
) -> None:
    """The server ends the transaction meanwhile."""
    store = await _opened(postgres_url, TransactionLimits(silence_ms=200, lock_ms=400, total_ms=0))
    await store.accept([a_submission()])  # the queue is known
    may_commit, after = asyncio.Event(), a_submission()

    async def wait() -> None:
        await may_commit.wait()

    accepting = asyncio.create_task(store.accept_after([after], wait))
    async with asyncio.timeout(60):
        while not await admin.fetchval(OPEN_TRANSACTIONS):
            assert not accepting.done()
        while await admin.fetchval(OPEN_TRANSACTIONS):
            assert not accepting.done()
        may_commit.set()
        [answer] = await accepting
    assert answer.ids == (after.notifications[0].id,)
    assert await store.get("default", answer.ids[0]) is not None
    await store.close()


async def test_a_call_that_needs_the_lock_of_a_callers_transaction_reports_that(
    admin: Admin, postgres_url: str
) -> None:
    """Nothing of ours ends the caller's transaction, nor changes its settings."""
    store = await _opened(postgres_url, TransactionLimits(silence_ms=200, lock_ms=300, total_ms=0))
    async with admin.transaction():
        before = await admin.fetch(TIMEOUTS)
        await store.accept([a_submission(key="k")], tx=admin)
        assert await admin.fetch(TIMEOUTS) == before
        with pytest.raises(StoreBusy, match=r"holds a lock that this call needs.*pg_stat_activity"):
            await store.accept([a_submission(key="k")])
    [answer] = await store.accept([a_submission(key="k")])
    assert answer.duplicates == frozenset(answer.ids)
    await store.close()


@pytest.mark.parametrize("is_pooled", [False, True])
async def test_every_transaction_has_limits_and_a_lent_connection_is_returned_without_them(
    postgres_url: str, is_pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_pooled:  # a pooler reports a process id of its own
        monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 0)
    database = Database(parse_database_url(postgres_url), timeout_s=60)
    await database.open()

    async def read(tx: PostgresTransaction) -> dict[str, str]:
        return {name: value for name, value in await tx.rows(TIMEOUTS) if value != "0"}

    async def read_after(tx: PostgresTransaction) -> dict[str, str]:
        await tx.script("COMMIT")
        found = await read(tx)
        await tx.script("BEGIN")
        return found

    limited = {
        "idle_in_transaction_session_timeout": "5000",
        "tcp_user_timeout": "5000",
        "lock_timeout": "10000",
    }
    found = await database.do(read, timed=False)
    assert found.pop("transaction_timeout", "20000") == "20000"
    assert found == limited
    assert await database.do(read, read_only=True, timed=False) == limited
    left = await database.do(read_after, timed=False)
    left.pop("transaction_timeout", None)
    assert left == ({} if is_pooled else limited)
    await database.close()


async def _opened(postgres_url: str, limits: TransactionLimits) -> PostgresStore:
    store = PostgresStore(postgres_url)
    store._database.limits = limits
    await store.open()
    await store.migrate()
    return store
