"""Several programs on one PostgreSQL server: what they agree on, and lost connections."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest

from homing.core.errors import SchemaError, StoreUnavailable
from homing.core.lifecycle.claims import ClaimRequest
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Filter, Status
from homing.core.routing.fair_share import TenantPlace, TenantTurns
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.claim import claim
from homing.stores.postgres.due_watermark import DueWatermark
from homing.stores.postgres.migrations import MIGRATIONS
from homing.stores.postgres.statements import PostgresTransaction
from homing.testing.builders import (
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_notification,
    a_settlement,
    a_submission,
    retry_in,
    sent,
)
from support.event_loops import LoopKind
from support.postgres_servers import skip_or_fail
from support.private_postgres import NoServer, PrivatePostgres

_WORKER = """
import asyncio, sys, time
ahead_ms = int(sys.argv[2])
real = time.time_ns
time.time_ns = lambda: real() + ahead_ms * 1_000_000
time.time = lambda: time.time_ns() / 1e9
from homing.stores.postgres import PostgresStore
from homing.testing.builders import a_claim_request

async def main():
    store = PostgresStore(sys.argv[1])
    await store.open()
    while claims := (await store.claim(a_claim_request(worker=sys.argv[3], slots=7))).claims:
        for claim in claims:
            print(claim.id, claim.started_at, flush=True)
    await store.close()
"""


@pytest.fixture
async def another(store: PostgresStore, postgres_url: str) -> AsyncIterator[PostgresStore]:
    another = PostgresStore(postgres_url)
    await another.open()
    yield another
    await another.close()


@pytest.fixture
async def admin(migrated_postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(migrated_postgres_url)
    yield connection
    await connection.close()


async def test_processes_with_clocks_ten_minutes_apart_agree_and_share_without_overlap(
    store: PostgresStore, postgres_url: str, loop_kind: LoopKind
) -> None:
    accepted = await store.accept([a_submission(*(a_notification() for _ in range(200)))])
    ahead = 10 * MINUTE_MS
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", loop_kind.program(_WORKER), postgres_url, str(shift), f"w{shift}"),
            stdout=subprocess.PIPE,
        )
        for shift in (-ahead, ahead)
    ]
    out = await asyncio.wait_for(asyncio.gather(*(worker.communicate() for worker in workers)), 120)
    lines = [line.split() for text, _ in out for line in text.decode().splitlines()]
    assert all(worker.returncode == 0 for worker in workers)
    assert Counter(id for id, _ in lines) == Counter(accepted[0].ids)
    now = await store.now_ms()
    assert all(abs(now - int(started)) < MINUTE_MS for _, started in lines)
    assert (await store.reclaim("w", 500, HOUR_MS)).claims == ()


async def test_the_same_key_at_once_on_two_connections_is_stored_once(
    store: PostgresStore, another: PostgresStore
) -> None:
    submissions = [a_submission(key="k") for _ in range(20)]
    answers = await asyncio.gather(
        *((store, another)[number % 2].accept([one]) for number, one in enumerate(submissions))
    )
    assert len({answer.ids for (answer,) in answers}) == 1
    assert sum(not answer.duplicates for (answer,) in answers) == 1
    assert [tally.count for tally in await store.tallies(None)] == [1]


async def test_a_key_held_by_an_open_transaction_is_awaited(
    store: PostgresStore, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    """Rolled back, the key is free, and the waiting request stores its own."""
    held = admin.transaction()
    await held.start()
    await store.accept([a_submission(key="k")], tx=admin)
    waiting = asyncio.create_task(store.accept([a_submission(key="k")]))
    while not await _waits_for_a_lock(admin):
        assert not waiting.done()
    await held.rollback()
    [answer] = await asyncio.wait_for(waiting, 60)
    assert not answer.duplicates
    assert await store.get("default", answer.ids[0]) is not None


async def test_the_same_dedup_key_at_once_is_stored_once(
    store: PostgresStore, another: PostgresStore
) -> None:
    news = [a_notification(dedup_key="d", dedup_window_ms=HOUR_MS) for _ in range(20)]
    answers = await asyncio.gather(
        *((store, another)[n % 2].accept([a_submission(new)]) for n, new in enumerate(news))
    )
    assert len({answer.ids for (answer,) in answers}) == 1


async def test_concurrent_accepts_claims_settlements_and_commands_leave_correct_counts(
    store: PostgresStore, another: PostgresStore
) -> None:
    rounds = 25

    async def feed() -> int:
        for _ in range(rounds):
            await store.accept([a_submission(*(a_notification() for _ in range(8)))])
        return 8 * rounds

    async def work(mine: PostgresStore, name: str) -> None:
        for _ in range(rounds):
            claims = (await mine.claim(a_claim_request(worker=name, slots=10))).claims
            await mine.settle([retry_in(c, 0) if n % 3 == 0 else sent(c) for n, c in enumerate(claims)])

    async def command(mine: PostgresStore) -> None:
        for name in (CommandName.CANCEL, CommandName.RETRY) * (rounds // 2):
            await mine.amend("default", Filter(), Command(name=name, who="ada"), limit=20)

    accepted, *_ = await asyncio.gather(
        feed(), work(store, "w-1"), work(another, "w-2"), command(store), command(another)
    )
    tallies = await another.tallies(None)
    assert all(tally.count > 0 for tally in tallies)
    assert sum(tally.count for tally in tallies) == accepted
    found = Counter(item.status for item in (await store.list("default", Filter(), limit=1000)).items)
    counted: Counter[Status] = Counter()
    for tally in tallies:
        counted[tally.status] += tally.count
    assert found == counted


async def test_the_counts_are_the_same_after_the_ledger_was_folded(store: PostgresStore) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(5)))])
    claims = (await store.claim(a_claim_request(slots=3))).claims
    await store.settle([sent(claim) for claim in claims])
    before = await store.tallies(None), await store.roll_ups(None, since_ms=HOUR_MS)
    await store.reclaim("w", 10, HOUR_MS)
    assert (await store.tallies(None), await store.roll_ups(None, since_ms=HOUR_MS)) == before


async def test_cut_connections_are_replaced_without_errors(
    store: PostgresStore, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    await asyncio.gather(*(store.tallies(None) for _ in range(8)))
    await _cut(admin)
    [answer] = await store.accept([a_submission()])
    assert await store.get("default", answer.ids[0]) is not None


async def test_a_call_that_loses_its_connection_raises_and_can_be_repeated(
    store: PostgresStore, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    submission = a_submission()
    async with admin.transaction():
        await admin.execute("LOCK TABLE homing.messages IN ACCESS EXCLUSIVE MODE")
        waiting = asyncio.create_task(store.accept([submission]))
        while not await _waits_for_a_lock(admin):
            assert not waiting.done()
        await _cut(admin)
        with pytest.raises(StoreUnavailable):
            await waiting
    [answer] = await store.accept([submission])
    assert answer.ids == tuple(new.id for new in submission.notifications)


async def test_a_rolled_back_claim_is_forgotten_whoever_leases_the_row_instead(
    store: PostgresStore,
    another: PostgresStore,
    admin: asyncpg.Connection[asyncpg.Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both leases have the same token. Settled with the first one's data, the counts would be wrong."""
    [answer] = await store.accept([a_submission(a_notification())])

    async def fails_at_its_end(
        tx: PostgresTransaction,
        request: ClaimRequest,
        watermark: DueWatermark,
        turns: TenantTurns,
        leased: list[SeqAndRow],
        taken: dict[TenantPlace, int],
    ) -> None:
        assert (await claim(tx, request, watermark, turns, leased, taken)).claims, "it had leased the row"
        raise StoreUnavailable

    with monkeypatch.context() as during:
        during.setattr("homing.stores.postgres.claim.claim", fails_at_its_end)
        with pytest.raises(StoreUnavailable):
            await store.claim(a_claim_request())
    await admin.execute("UPDATE homing.live SET deadline_at = 1")  # it has expired
    overdue = (await another.reclaim("w-2", 10, MINUTE_MS)).claims
    result = await store.settle([a_settlement(overdue[0], Status.FAILED, attempt=None)])
    assert result.applied == answer.ids
    history = await store.get("default", answer.ids[0])
    assert history is not None
    assert history.notification.attempt_count == 0, "none was made"
    [tally] = await store.tallies("default")
    assert (tally.status, tally.attempts, tally.count) == (Status.FAILED, 0, 1)


async def test_a_restart_of_the_server_is_a_temporary_outage() -> None:
    try:
        server = PrivatePostgres()
    except NoServer:
        skip_or_fail("programs of PostgreSQL to start a server of our own")
    with server:
        store = PostgresStore(server.url)
        await store.open()
        await store.migrate()
        [before] = await store.accept([a_submission()])
        await asyncio.to_thread(server.stop)
        with pytest.raises(StoreUnavailable):
            await store.accept([a_submission()])
        await asyncio.to_thread(server.start)
        [after] = await store.accept([a_submission()])
        claims = (await store.claim(a_claim_request())).claims
        assert {claim.id for claim in claims} == {*before.ids, *after.ids}
        await store.close()


async def test_a_listening_process_is_woken_by_another_program_s_acceptance(
    store: PostgresStore, another: PostgresStore, postgres_url: str
) -> None:
    woken, written = asyncio.Event(), asyncio.Event()
    listener = asyncio.create_task(store.listen(woken.set, written.set))
    async with asyncio.timeout(60):
        await written.wait()  # it is listening now
        woken.clear()
        written.clear()
        await another.accept([a_submission()])
        await woken.wait()
        assert not written.is_set()
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("SELECT homing.enqueue('email', '{}')")
        await connection.close()
        await written.wait()
    listener.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listener


async def test_two_schemas_in_one_database_are_independent(postgres_url: str) -> None:
    stores = [PostgresStore(f"{postgres_url}?schema={name}") for name in ("one", "two")]
    for store in stores:
        await store.open()
        with pytest.raises(SchemaError, match="migrate"):
            await store.tallies(None)
        await store.migrate()
    one, two = stores
    await one.accept([a_submission()])
    assert (await two.claim(a_claim_request())).claims == ()
    assert len((await one.claim(a_claim_request())).claims) == 1
    for store in stores:
        await store.close()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DROP SCHEMA one CASCADE; DROP SCHEMA two CASCADE")
    await connection.close()


async def test_concurrent_migrations_apply_everything_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(3)]
    for store in stores:
        await store.open()
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(name for names in applied for name in names) == [one.name for one in MIGRATIONS]
    assert await stores[0].migrate() == ()
    for store in stores:
        await store.close()


async def test_an_error_shows_no_password() -> None:
    store = PostgresStore("postgresql://ada:secret@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable) as caught:
        await store.open()
    assert "127.0.0.1:1/nowhere" in str(caught.value)
    assert "secret" not in f"{caught.value} {store!r}"


async def _waits_for_a_lock(admin: asyncpg.Connection[asyncpg.Record]) -> bool:
    waits: bool = await admin.fetchval(
        "SELECT EXISTS (SELECT 1 FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock')"
    )
    return waits


async def _cut(admin: asyncpg.Connection[asyncpg.Record]) -> None:
    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
