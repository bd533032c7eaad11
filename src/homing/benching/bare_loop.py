"""The bare loop: a minimal queue that claims, posts with Homing's HTTP transport, and settles.

It is the upper limit that Homing is compared with. It has one table and one index, and no tenants, fairness,
attempt history, retries, limits, signatures or metrics. The difference in speed is the cost of Homing's
guarantees.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from homing.benching.scratch_store import ScratchStore, is_mongo, is_postgres
from homing.benching.worker_processes import ProcessSlot, run_async
from homing.benching.workload import build_payload
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse

CLAIM_BATCH_ROWS = 500
"""Maximum number of rows per claim."""

_SETTLE_WINDOW_S = 0.005

_T = TypeVar("_T")


Row = tuple[int, str]
"""A claimed row as (number, payload)."""


class BareTask(Struct, frozen=True, kw_only=True):
    """Parameters of a bare worker process."""

    store: str
    url: str
    in_flight: int


class BareQueue(Protocol):
    """A minimal queue in a database."""

    async def open(self) -> None:
        """Connects and creates the table if it does not exist."""

    async def load(self, due: Iterable[float], first: int = 0) -> None:
        """Inserts one row per due time (Unix seconds), numbered from `first`."""

    async def claim(self, limit: int) -> list[Row]:
        """Leases at most `limit` due rows and returns them."""

    async def settle(self, done: Sequence[tuple[int, int]]) -> None:
        """Settles rows, given as (number, HTTP status)."""

    async def next_due(self) -> float | None:
        """Returns when the next row is due (Unix seconds), or None if no row waits."""

    async def sent(self) -> int:
        """Returns the number of rows settled with HTTP status 200."""

    async def close(self) -> None:
        """Closes the connections."""


class BarePostgresQueue:
    """The bare queue in PostgreSQL. Uses two connections, so that claims do not wait for settlements."""

    _TABLE = """
        CREATE TABLE IF NOT EXISTS bare (
            id bigint PRIMARY KEY, state smallint NOT NULL DEFAULT 0, due_at timestamptz NOT NULL,
            attempts smallint NOT NULL DEFAULT 0, lease_until timestamptz, http_status smallint,
            payload text NOT NULL
        ) WITH (fillfactor = 80);
        CREATE INDEX IF NOT EXISTS bare_due ON bare (due_at) WHERE state = 0;
    """
    _CLAIM = """
        UPDATE bare SET state = 1, attempts = attempts + 1, lease_until = now() + interval '60 s'
        WHERE ctid = ANY (ARRAY(SELECT ctid FROM bare WHERE state = 0 AND due_at <= now() ORDER BY due_at
                                LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING id, payload
    """
    # The claim selects rows by ctid. By id, the planner would scan the whole table for every claim.
    _SETTLE = """
        UPDATE bare SET state = 2, http_status = done.status
        FROM unnest($1::bigint[], $2::smallint[]) AS done (id, status)
        WHERE bare.id = done.id AND bare.state = 1
    """

    def __init__(self, store: str) -> None:
        self._store = store

    async def open(self) -> None:
        import asyncpg

        self._claiming: Any = await asyncpg.connect(self._store)
        self._settling: Any = await asyncpg.connect(self._store)
        await self._claiming.execute(self._TABLE)

    async def load(self, due: Iterable[float], first: int = 0) -> None:
        from datetime import UTC, datetime

        records = ((n, datetime.fromtimestamp(at, UTC), build_payload(n)) for n, at in enumerate(due, first))
        await self._claiming.copy_records_to_table(
            "bare", records=records, columns=["id", "due_at", "payload"]
        )

    async def claim(self, limit: int) -> list[Row]:
        rows: list[Row] = await self._claiming.fetch(self._CLAIM, limit)
        return rows

    async def settle(self, done: Sequence[tuple[int, int]]) -> None:
        ids, statuses = zip(*done, strict=True)
        await self._settling.execute(self._SETTLE, ids, statuses)

    async def next_due(self) -> float | None:
        at = await self._claiming.fetchval("SELECT due_at FROM bare WHERE state = 0 ORDER BY due_at LIMIT 1")
        return None if at is None else float(at.timestamp())

    async def sent(self) -> int:
        count: int = await self._claiming.fetchval(
            "SELECT count(*) FROM bare WHERE state = 2 AND http_status = 200"
        )
        return count

    async def close(self) -> None:
        await self._claiming.close()
        await self._settling.close()


class BareSqliteQueue:
    """The bare queue in a SQLite file. Uses one connection on one thread; every commit is durable."""

    _TABLE = """
        CREATE TABLE IF NOT EXISTS bare (
            id INTEGER PRIMARY KEY, state INT NOT NULL DEFAULT 0, due_at REAL NOT NULL,
            attempts INT NOT NULL DEFAULT 0, lease_until REAL, http_status INT, payload TEXT NOT NULL
        )
    """
    _INDEX = "CREATE INDEX IF NOT EXISTS bare_due ON bare (due_at) WHERE state = 0"
    _DURABLE = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA busy_timeout = 10000")
    _CLAIM = """
        UPDATE bare SET state = 1, attempts = attempts + 1, lease_until = ?1 + 60
        WHERE id IN (SELECT id FROM bare WHERE state = 0 AND due_at <= ?1 ORDER BY due_at LIMIT ?2)
        RETURNING id, payload
    """
    _SETTLE = "UPDATE bare SET state = 2, http_status = ? WHERE id = ? AND state = 1"

    def __init__(self, store: str) -> None:
        self._path = Path(store).with_name("bare.db")

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._connection = await self._on_thread(lambda: sqlite3.connect(self._path, isolation_level=None))
        for statement in (*self._DURABLE, self._TABLE, self._INDEX):
            await self._all(statement)

    async def load(self, due: Iterable[float], first: int = 0) -> None:
        rows = ((n, at, build_payload(n)) for n, at in enumerate(due, first))
        await self._many("INSERT INTO bare (id, due_at, payload) VALUES (?, ?, ?)", rows)

    async def claim(self, limit: int) -> list[Row]:
        return await self._all(self._CLAIM, (time.time(), limit))

    async def settle(self, done: Sequence[tuple[int, int]]) -> None:
        await self._many(self._SETTLE, [(status, number) for number, status in done])

    async def next_due(self) -> float | None:
        found = await self._all("SELECT due_at FROM bare WHERE state = 0 ORDER BY due_at LIMIT 1")
        return float(found[0][0]) if found else None

    async def sent(self) -> int:
        found = await self._all("SELECT count(*) FROM bare WHERE state = 2 AND http_status = 200")
        return int(found[0][0])

    async def close(self) -> None:
        await self._on_thread(self._connection.close)
        self._thread.shutdown()

    async def _all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        found: list[Any] = await self._on_thread(lambda: self._connection.execute(sql, parameters).fetchall())
        return found

    async def _many(self, sql: str, rows: Any) -> None:
        def write() -> None:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(sql, rows)
            self._connection.execute("COMMIT")

        await self._on_thread(write)

    async def _on_thread(self, call: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class BareMongoQueue:
    """The bare queue in MongoDB, with the write concern of the store: journaled by a majority.

    It uses PyMongo's synchronous client on threads, as the store does, because that is faster than the
    asynchronous client.
    """

    def __init__(self, store: str) -> None:
        self._store = store

    async def open(self) -> None:
        from pymongo import MongoClient, ReadPreference, WriteConcern

        self._claiming, self._settling = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._client: Any = MongoClient(self._store)
        self._rows = self._client.get_default_database(
            write_concern=WriteConcern("majority", j=True), read_preference=ReadPreference.PRIMARY
        ).bare
        await self._run(self._create_indexes)

    def _create_indexes(self) -> None:
        waiting = {"state": 0}
        self._rows.create_index(["state", "due_at"], partialFilterExpression=waiting)
        self._rows.create_index("token", partialFilterExpression={"token": {"$exists": True}})

    async def load(self, due: Iterable[float], first: int = 0) -> None:
        rows = [
            {"_id": n, "state": 0, "due_at": at, "attempts": 0, "payload": build_payload(n)}
            for n, at in enumerate(due, first)
        ]
        await self._run(lambda: self._rows.insert_many(rows))

    async def claim(self, limit: int) -> list[Row]:
        return await self._run(lambda: self._claim(limit))

    def _claim(self, limit: int) -> list[Row]:
        due = {"state": 0, "due_at": {"$lte": time.time()}}
        # Without the batch size, the first answer has 101 rows, and the others cost another round trip.
        found = self._rows.find(due, ["_id"], sort=["due_at"], limit=limit, batch_size=limit).to_list()
        if not found:
            return []
        token = secrets.token_hex(8)
        lease = {"state": 1, "token": token, "lease_until": time.time() + 60}
        ids = {"$in": [one["_id"] for one in found]}
        self._rows.update_many({"_id": ids, "state": 0}, {"$set": lease, "$inc": {"attempts": 1}})
        leased = self._rows.find({"token": token}, ["payload"], batch_size=limit).to_list()
        return [(one["_id"], one["payload"]) for one in leased]

    async def settle(self, done: Sequence[tuple[int, int]]) -> None:
        from pymongo import UpdateMany

        alike: dict[int, list[int]] = {}
        for number, status in done:
            alike.setdefault(status, []).append(number)
        updates = [
            UpdateMany(
                {"_id": {"$in": ids}, "state": 1},
                {"$set": {"state": 2, "http_status": status}, "$unset": {"token": ""}},
            )
            for status, ids in alike.items()
        ]
        await asyncio.get_running_loop().run_in_executor(
            self._settling, lambda: self._rows.bulk_write(updates)
        )

    async def next_due(self) -> float | None:
        found = await self._run(
            lambda: self._rows.find({"state": 0}, ["due_at"], sort=["due_at"], limit=1).to_list()
        )
        return float(found[0]["due_at"]) if found else None

    async def sent(self) -> int:
        return int(await self._run(lambda: self._rows.count_documents({"state": 2, "http_status": 200})))

    async def close(self) -> None:
        await self._run(self._client.close)
        self._claiming.shutdown()
        self._settling.shutdown()

    async def _run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._claiming, call)


def build_bare_queue(store: str) -> BareQueue:
    """Returns the bare queue in this store, not yet open."""
    if is_mongo(store):
        return BareMongoQueue(store)
    return BarePostgresQueue(store) if is_postgres(store) else BareSqliteQueue(store)


def build_bare_task(arena: ScratchStore, url: str, in_flight: int) -> BareTask:
    """Returns the parameters of a bare worker process for this scratch store."""
    return BareTask(store=arena.store, url=url, in_flight=in_flight)


def run_bare_worker(post: ProcessSlot, task: BareTask) -> None:
    """Main function of a bare worker process."""
    run_async(_work(post, task))


async def _work(post: ProcessSlot, task: BareTask) -> None:
    rows = build_bare_queue(task.store)
    await rows.open()
    transport = CurlTransport(max_host_connections=task.in_flight)
    loop = _Loop(post, rows, transport, task)
    await post.begin()
    working = asyncio.gather(
        loop.claiming(), loop.settling(), *(loop.sending() for _ in range(task.in_flight))
    )
    await post.end()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await transport.close()
    await rows.close()


class _Loop:
    """Runs the bare loop. Claims the next batch while less than one batch waits.

    Outcomes are settled every few milliseconds."""

    def __init__(self, post: ProcessSlot, rows: BareQueue, transport: CurlTransport, task: BareTask) -> None:
        self._post, self._rows, self._transport, self._url = post, rows, transport, task.url
        self._ready: asyncio.Queue[Row] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._done: list[tuple[int, int]] = []
        self._some_done = asyncio.Event()

    async def claiming(self) -> None:
        while True:
            if self._ready.qsize() >= CLAIM_BATCH_ROWS:
                self._taken.clear()
                await self._taken.wait()
                continue
            found = await self._rows.claim(CLAIM_BATCH_ROWS)
            for row in found:
                self._ready.put_nowait(row)
            if not found:
                await self._sleep()

    async def _sleep(self) -> None:
        """Sleeps until the next row is due, for at most 1 s. If no row waits, sleeps 50 ms."""
        at = await self._rows.next_due()
        await asyncio.sleep(0.05 if at is None else max(0.0, min(1.0, at - time.time())))

    async def sending(self) -> None:
        headers = (("content-type", "application/json"),)
        while True:
            number, body = await self._ready.get()
            if self._ready.qsize() < CLAIM_BATCH_ROWS:
                self._taken.set()
            request = HttpRequest(url=self._url, body=body.encode(), headers=headers)
            answer = await self._transport.send(request, timeout_ms=30_000)
            self._done.append((number, answer.status if isinstance(answer, HttpResponse) else 0))
            self._some_done.set()

    async def settling(self) -> None:
        while True:
            await self._some_done.wait()
            await asyncio.sleep(_SETTLE_WINDOW_S)
            self._some_done.clear()
            done, self._done = self._done, []
            await self._rows.settle(done)
            self._post.note(len(done), len(done))
