"""The database goes back to an earlier state behind an open process: nothing may be mixed up or get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from homing import Homing
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import Event
from homing.core.notifications import Status
from homing.core.ports.stores import AcceptedEntry, Retention, StoreCheckResult
from homing.stores.postgres import PostgresStore
from homing.testing.builders import (
    HOUR_MS,
    STANDARD_EMAIL,
    a_claim_request,
    a_notification,
    a_submission,
    an_id,
    retry_in,
    sent,
)
from support.pgbouncer import PgBouncer
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres
from support.rewound_postgres import SavedFolder, SavedTables

LOST = "NotificationsLost"

OLD = an_id()
"""Id of a notification that every test finds, and that is never lost."""


@pytest.fixture
async def saved(store: PostgresStore, postgres_url: str) -> SavedTables:
    """The state of the database before the test."""
    tables = SavedTables(postgres_url)
    await store.accept([a_submission(a_notification(id=OLD))])
    await tables.save()
    return tables


@pytest.fixture
async def other(postgres_url: str, store: PostgresStore) -> AsyncIterator[PostgresStore]:
    """The store of another process."""
    other = PostgresStore(postgres_url)
    await other.open()
    yield other
    await other.close()


async def _claims(store: PostgresStore, worker: str = "w-1") -> dict[str, Claim]:
    request = a_claim_request(STANDARD_EMAIL, worker=worker)
    return {claim.id: claim for claim in (await store.claim(request)).claims}


async def _status(store: PostgresStore, id: str, tenant: str = "default") -> Status:
    found = await store.get(tenant, id)
    assert found is not None, "the notification cannot be read"
    return found.notification.status


async def test_the_outcome_of_a_lost_notification_is_written_onto_no_other(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    lost, new = an_id(), an_id()
    await store.accept([a_submission(a_notification(id=lost))])
    claims = await _claims(store)
    await saved.restore()
    await other.accept([a_submission(a_notification(id=new))])
    assert new in await _claims(other, "w-2")
    result = await store.settle([sent(claims[lost])])
    assert (result.applied, result.missing) == ((), (lost,))
    assert await _status(store, new) is Status.SENDING


async def test_a_retry_of_a_lost_notification_is_written_onto_no_other(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    lost, new = an_id(), an_id()
    await store.accept([a_submission(a_notification(id=lost))])
    claims = await _claims(store)
    await saved.restore()
    await other.accept([a_submission(a_notification(id=new))])
    assert new in await _claims(other, "w-2")
    assert (await store.settle([retry_in(claims[lost], HOUR_MS)])).missing == (lost,)
    assert await _status(store, new) is Status.SENDING


async def test_a_notification_is_readable_and_claimed_although_its_queue_was_lost(
    store: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(tenant="new")])
    await saved.restore()
    kept = an_id()
    await store.accept([a_submission(a_notification(id=kept), tenant="new")])
    assert await _status(store, kept, "new") is Status.PENDING
    assert (await _claims(store))[kept].tenant == "new"


@pytest.mark.parametrize("key", [None, "key-1"])
async def test_a_notification_does_not_end_up_in_the_queue_that_has_its_number_now(
    store: PostgresStore, other: PostgresStore, saved: SavedTables, key: str | None
) -> None:
    """A request with a key is written by another statement."""
    await store.accept([a_submission(tenant="first")])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    kept = an_id()
    await store.accept([a_submission(a_notification(id=kept), tenant="first", key=key)])
    assert await _status(store, kept, "first") is Status.PENDING
    assert (await _claims(other))[kept].tenant == "first"


async def test_a_claim_has_the_tenant_of_its_notification_although_the_queue_has_another_number(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(tenant="first")])
    await _claims(store)
    await saved.restore()
    kept = an_id()
    await other.accept([a_submission(a_notification(id=kept), tenant="second")])
    assert (await _claims(store))[kept].tenant == "second"


async def test_a_queue_that_has_the_number_of_a_paused_one_is_claimed(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    capacity = {"paused": 0}
    await store.accept([a_submission(a_notification(provider="paused"), tenant="first")])
    await store.claim(a_claim_request(STANDARD_EMAIL, outlet_capacity=capacity))  # learns the name
    await saved.restore()
    kept = an_id()
    await other.accept([a_submission(a_notification(id=kept, provider="sendgrid"), tenant="second")])
    claimed = dict[str, str]()
    async with asyncio.timeout(30):
        while kept not in claimed:
            batch = await store.claim(a_claim_request(STANDARD_EMAIL, outlet_capacity=capacity))
            claimed |= {claim.id: claim.tenant for claim in batch.claims}
            await asyncio.sleep(0.05)
    assert claimed[kept] == "second"


async def test_a_settlement_moves_its_row_to_the_right_queue_although_that_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(a_notification(provider="standby"))])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])  # gets the number that the lost queue had
    claim = (await _claims(store))[OLD]
    assert (await store.settle([retry_in(claim, 0, provider="standby")])).applied == (claim.id,)
    assert (await _claims(other))[claim.id].outlet == "standby"


async def test_an_extended_lease_moves_its_row_to_the_right_queue_although_that_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(a_notification(provider="standby"))])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    [claim] = [claim for claim in (await store.claim(a_claim_request(lease_ms=0))).claims if claim.id == OLD]
    assert await store.extend([Lease(OLD, claim.token, "standby", "standby")], 0) == {OLD}
    outlets = {claim.id: claim.outlet for claim in (await other.reclaim("w-2", 10, HOUR_MS)).claims}
    assert outlets[OLD] == "standby"


async def test_a_command_moves_its_row_to_the_right_queue_although_that_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(a_notification(provider="standby"))])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    command = Command(name=CommandName.RETRY, who="ada", provider="standby", outlet="standby")
    assert (await store.amend("default", [OLD], command)).applied == (OLD,)
    assert (await _claims(other))[OLD].outlet == "standby"


async def test_a_request_in_the_inbox_is_not_removed_for_a_lost_one_with_the_same_number(
    store: PostgresStore, saved: SavedTables, postgres_url: str
) -> None:
    enqueue = "SELECT homing.enqueue('email', '{}'::jsonb)"
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(enqueue)
        (lost,) = await store.take_inbox(10, HOUR_MS)
        await saved.restore()
        await connection.execute(enqueue)
    finally:
        await connection.close()
    assert (await store.accept_inbox([AcceptedEntry(lost, a_submission())])).entries == 0
    assert await store.amend_inbox(lost, Command(name=CommandName.RETRY, who="ada")) is None
    await store.remove_inbox([lost])
    (kept,) = await store.take_inbox(10, HOUR_MS)
    assert (kept.number, kept.id != lost.id) == (lost.number, True)


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_send_in_a_callers_transaction_is_readable_although_its_queue_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables, postgres_url: str, isolation: Any
) -> None:
    await store.accept([a_submission(tenant="first")])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    kept = an_id()
    connection = await asyncpg.connect(postgres_url)
    try:
        async with connection.transaction(isolation=isolation):
            await connection.fetchval("SELECT count(*) FROM homing.queues")  # takes the snapshot
            await store.accept([a_submission(a_notification(id=kept), tenant="first")], tx=connection)
    finally:
        await connection.close()
    assert await _status(store, kept, "first") is Status.PENDING
    assert (await _claims(other))[kept].tenant == "first"


async def test_a_notification_without_a_queue_is_reported_and_given_one(
    store: PostgresStore, saved: SavedTables, postgres_url: str
) -> None:
    """Older releases could write one. It waits, or its lease has expired."""
    leased = an_id()
    await store.accept([a_submission(a_notification(id=leased), lease_to="w-2", lease_ms=0)])
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DELETE FROM homing.queues")
    await connection.close()
    assert (await _rows_check(store)).advice
    assert await store.get("default", OLD) is None
    await store.prune(Retention(), 1)
    await store.prune(Retention(), 1)
    assert (await _rows_check(store)).ok
    assert OLD in await _claims(store)
    assert [claim.id for claim in (await store.reclaim("w-1", 10, HOUR_MS)).claims] == [leased]


async def _rows_check(store: PostgresStore) -> StoreCheckResult:
    [found] = [one for one in await store.examine(now_ms=await store.now_ms()) if one.name == "rows"]
    return found


async def test_a_lost_row_changes_the_history_and_drops_the_caches(
    store: PostgresStore, saved: SavedTables
) -> None:
    history = store.history
    lost = an_id()
    await store.accept([a_submission(a_notification(id=lost))])
    claims = await _claims(store)
    assert store.history == history
    await saved.restore()
    await store.settle([sent(claims[lost])])
    assert store.history != history
    assert store._leased_rows.ids() == frozenset()
    assert await store.find_missing([OLD, lost]) == {lost}


async def test_only_a_transaction_that_writes_changes_the_history(
    store: PostgresStore, saved: SavedTables
) -> None:
    """A pooler may send transactions that only read to a standby, which has another start time."""
    store._database.history._started_at = 1
    before = store.history
    assert await _status(store, OLD) is Status.PENDING
    await store.tallies(None)
    assert store.history == before
    await store.accept([a_submission()])
    assert store.history != before


async def test_the_number_of_a_lost_row_that_may_still_be_settled_is_not_given_out_again(
    store: PostgresStore, saved: SavedTables, postgres_url: str
) -> None:
    """A process of an older release, which compares only the number, does no harm then."""
    await store.accept([a_submission(*(a_notification() for _ in range(10)))])
    first, *others = (await _claims(store)).values()
    cached = max(seq for seq, _ in store._leased_rows._rows.values())
    await saved.restore()
    await store.settle([sent(first if first.id != OLD else others[0])])
    await store.accept([a_submission()])
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT max(seq) FROM homing.messages") > cached
    await connection.close()


class _Sender:
    """A program that sends, waits until the store is available, and collects alerts."""

    def __init__(self, homing: Homing, alerts: list[Event]) -> None:
        self.homing = homing
        self._alerts = alerts

    async def send(self) -> str:
        async with asyncio.timeout(60):
            while True:
                try:
                    return (await self.homing.send("a@example.org", channel="email", body="Hello")).id
                except StoreUnavailable:
                    await asyncio.sleep(0.01)

    async def wait_for(self, id: str) -> Status:
        async with asyncio.timeout(60):
            while True:
                try:
                    return (await self.homing.wait(id)).status
                except StoreUnavailable:
                    await asyncio.sleep(0.01)

    async def reports(self, number: int) -> list[dict[str, Any]]:
        """Waits for this many reports of lost notifications."""
        async with asyncio.timeout(60):
            while True:
                found = [one.payload for one in self._alerts if one.payload["alert"] == LOST]
                if len(found) >= number:
                    return found
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def private() -> Iterator[PrivatePostgres]:
    with skip_if_missing(), PrivatePostgres(fsync=False) as server:
        yield server


@pytest.fixture
def pooled_url(private: PrivatePostgres) -> Iterator[str]:
    with skip_if_missing(), PgBouncer(private.url, settings="server_login_retry = 0.1") as pooler:
        yield f"{pooler.url}?cached_statements=0&listen=false"


async def test_what_a_restore_has_lost_is_reported_once_and_all_else_is_delivered(
    private: PrivatePostgres, pooled_url: str
) -> None:
    """Behind a pooler, the connections of the process stay open all the time."""
    alerts, got = list[Event](), list[str]()
    providers = {"mail": lambda delivery: got.append(delivery.notification_id)}
    async with Homing(pooled_url, providers=providers, on_event=alerts.append, events=["Alert"]) as homing:
        sender = _Sender(homing, alerts)
        kept = await sender.send()
        backup = SavedFolder(private)
        await asyncio.to_thread(backup.save)
        lost = [await sender.send() for _ in range(5)]
        await asyncio.to_thread(backup.restore)
        homing.start_worker()
        new = await sender.send()
        [report] = await sender.reports(1)
        assert (report["lost"], report["notificationIds"]) == (5, sorted(lost))
        assert report["firstAt"] <= report["lastAt"]
        assert {await sender.wait_for(kept), await sender.wait_for(new)} == {Status.SENT}
        await asyncio.to_thread(backup.restore)
        again = await sender.send()
        assert await sender.wait_for(again) is Status.SENT
        [_, second] = await sender.reports(2)
        assert second["notificationIds"] == [new], "the first five are not reported again"
        assert set(got) == {kept, new, again}
