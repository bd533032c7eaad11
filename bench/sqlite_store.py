"""Measures the SQLite store: accept, claim and settle rates, and the cost of a claim with a backlog.

    python bench/sqlite_store.py [--directory DIR] [--rows N] [--batch N] [--backlogs 10000 100000 1000000]

It prints rows per second and CPU time per row, compared with a minimal queue in SQLite; the cost of a claim
by the number of waiting rows; and the query plan of every hot statement. It fails if a notification is not
accounted for, so a fast but wrong store does not pass. Absolute figures depend on the machine and its load;
the ratios within one run do not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from homing.core.ids import uuid7
from homing.core.lifecycle.claims import Claim, ClaimRequest, LaneCapacity, NewNotification, Submission
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.notifications import (
    Channel,
    Content,
    Message,
    Mode,
    OutcomeKind,
    Priority,
    Recipient,
    Status,
    lane_of,
)
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.query_plans import hot_statements

DAY_MS = 86_400_000
LANE = lane_of(Mode.STANDARD, Channel.EMAIL)
TENANTS = 5
MESSAGE = Message(
    recipient=Recipient(id="user-4711", email="ada@example.org"),
    content=Content(subject="Your order is on its way", body="x" * 300),
    metadata={"order": 4711},
)
chance = random.Random(7)


def new_id() -> str:
    return uuid7(time.time_ns() // 1_000_000, chance.getrandbits(74))


def a_notification(send_at: int | None = None) -> NewNotification:
    return NewNotification(
        id=new_id(),
        channel=Channel.EMAIL,
        mode=Mode.STANDARD,
        lane=LANE,
        type="order_confirmed",
        category="orders",
        priority=Priority.MEDIUM,
        origin="shop",
        provider="sendgrid",
        outlet="sendgrid",
        address="ada@example.org",
        message=MESSAGE,
        max_age_ms=DAY_MS,
        send_at=send_at,
    )


def a_submission(size: int, tenant: int = 0, send_at: int | None = None) -> Submission:
    notifications = tuple(a_notification(send_at) for _ in range(size))
    return Submission(tenant=f"tenant-{tenant % TENANTS}", batch_id=new_id(), notifications=notifications)


def a_request(slots: int) -> ClaimRequest:
    capacity = LaneCapacity(slots=slots)
    return ClaimRequest(worker="bench", lease_ms=60_000, lanes={LANE: capacity}, outlet_slots=slots)


def sent(claim: Claim) -> Settlement:
    record = AttemptRecord(
        number=claim.attempt,
        provider=claim.provider,
        outcome=OutcomeKind.ACCEPTED,
        started_at=claim.started_at,
        latency_ms=120,
        worker=claim.worker,
        provider_message_id=f"m-{claim.id}",
    )
    return Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=Status.SENT,
        attempt=record,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=DAY_MS,
    )


class Watch:
    """Adds up wall time and CPU time. CPU time is meaningful on a busy machine too."""

    def __init__(self, rows: int = 0) -> None:
        self.rows = rows
        self._clock_s = self._cpu_s = 0.0

    def __enter__(self) -> None:
        self._clock_s -= time.perf_counter()
        self._cpu_s -= time.process_time()

    def __exit__(self, *_: object) -> None:
        self._clock_s += time.perf_counter()
        self._cpu_s += time.process_time()

    def then(self, other: Watch) -> Watch:
        """Returns the total time of two steps that processed the same rows."""
        both = Watch(self.rows)
        both._clock_s, both._cpu_s = self._clock_s + other._clock_s, self._cpu_s + other._cpu_s
        return both

    @property
    def per_second(self) -> float:
        return self.rows / self._clock_s

    @property
    def cpu_us(self) -> float:
        """CPU time per row in µs."""
        return 1_000_000 * self._cpu_s / self.rows


class Yardstick:
    """A minimal queue with the same file system and driver: one table, one index, no guarantees.

    Its rates show how fast the machine is right now, and the store is compared with them.
    """

    def __init__(self, folder: Path, rows: int, size: int) -> None:
        folder.mkdir()
        self._rows, self._size = rows, size
        self._connection = sqlite3.connect(folder / "yardstick.db", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "PRAGMA cache_size = -65536",
            "CREATE TABLE job (id INTEGER PRIMARY KEY, state INT, due_at INT, lease_until INT, payload TEXT)",
            "CREATE INDEX job_due ON job (due_at) WHERE state = 0",
        ):
            self._connection.execute(statement)

    def accept(self) -> Watch:
        payload = msgspec.json.encode(MESSAGE).decode()
        watch = Watch(self._rows)
        with watch:
            for first in range(0, self._rows, self._size):
                batch = [(first, payload) for _ in range(self._size)]
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(
                    "INSERT INTO job (state, due_at, payload) VALUES (0, ?, ?)", batch
                )
                self._connection.execute("COMMIT")
        return watch

    def deliver(self) -> Watch:
        watch = Watch(self._rows)
        with watch:
            for _ in range(0, self._rows, self._size):
                taken = self._connection.execute(
                    "UPDATE job SET state = 1, lease_until = 1 WHERE id IN"
                    " (SELECT id FROM job WHERE state = 0 ORDER BY due_at LIMIT ?) RETURNING id, payload",
                    (self._size,),
                ).fetchall()
                self._connection.execute("BEGIN IMMEDIATE")
                ids = [(id,) for id, _ in taken]
                self._connection.executemany("UPDATE job SET state = 2 WHERE id = ? AND state = 1", ids)
                self._connection.execute("COMMIT")
        return watch

    def close(self) -> None:
        self._connection.close()


class Bench:
    """A store in a new file, with the number of notifications it has accepted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "bench.db"
        self.store = SqliteStore(self.path)
        self.accepted = 0

    async def accept(self, rows: int, size: int, send_at: int | None = None) -> Watch:
        """Accepts rows in batches of `size`. Building the submissions is not timed."""
        batches = [a_submission(size, number, send_at) for number in range(rows // size)]
        watch = Watch()
        with watch:
            for submission in batches:
                await self.store.accept([submission])
        watch.rows = size * len(batches)
        self.accepted += watch.rows
        return watch

    async def accept_singly(self, rows: int, callers: int) -> Watch:
        """Accepts rows from several callers, one row per call. Concurrent calls share commits."""
        waiting = [a_submission(1, number) for number in range(rows)]

        async def caller() -> None:
            while waiting:
                await self.store.accept([waiting.pop()])

        watch = Watch(rows)
        with watch:
            await asyncio.gather(*(caller() for _ in range(callers)))
        self.accepted += rows
        return watch

    async def deliver(self, rows: int, size: int) -> tuple[Watch, Watch]:
        """Claims and settles `rows` rows, and returns the times of both."""
        claiming, settling = Watch(), Watch()
        while settling.rows < rows:
            with claiming:
                claims = (await self.store.claim(a_request(size))).claims
            claiming.rows += len(claims)
            settlements = [sent(claim) for claim in claims]
            with settling:
                result = await self.store.settle(settlements)
            settling.rows += len(result.applied)
            if not claims:
                break
        return claiming, settling

    async def deliver_with_a_busy_loop(self, rows: int, size: int) -> Watch:
        """Delivers while the event loop is always busy and competes with the store's threads."""

        async def never_rest() -> None:
            while True:
                sum(range(20_000))
                await asyncio.sleep(0)

        busy = asyncio.ensure_future(never_rest())
        claiming, settling = await self.deliver(rows, size)
        busy.cancel()
        return claiming.then(settling)

    async def check(self) -> None:
        """Exits with an error unless accepted notifications, tallies, rows and messages match."""
        counted = sum(tally.count + tally.purged for tally in await self.store.tallies(None))
        with sqlite3.connect(self.path) as connection:
            stored = connection.execute("SELECT count(*) FROM homing_notifications").fetchone()[0]
            messages = connection.execute("SELECT count(*) FROM homing_messages").fetchone()[0]
        connection.close()
        if not self.accepted == counted == stored == messages:
            sys.exit(f"accepted {self.accepted}, counted {counted}, rows {stored}, messages {messages}")
        print(f"  all {counted:,} accepted notifications are accounted for")


async def throughput(folder: Path, rows: int, size: int, rounds: int) -> None:
    """Prints rates and CPU times of the store and a minimal queue. Each figure is the best of its rounds."""
    measured: dict[str, list[Watch]] = {}

    def note(name: str, watch: Watch) -> None:
        measured.setdefault(name, []).append(watch)

    for number in range(rounds):
        yardstick = Yardstick(folder / f"yardstick-{number}", rows, size)
        note("bare queue: accept", yardstick.accept())
        note("bare queue: claim + settle", yardstick.deliver())
        yardstick.close()
        bench = await opened(folder / f"line-{number}")
        note("accept", await bench.accept(rows, size))
        claiming, settling = await bench.deliver(rows - 10 * size, size)
        note("claim", claiming)
        note("settle", settling)
        note("claim + settle", claiming.then(settling))
        note("claim + settle, busy loop", await bench.deliver_with_a_busy_loop(10 * size, size))
        note("accept single rows, 64 callers", await bench.accept_singly(min(rows, 8_000), 64))
        note("accept single rows, 1 caller", await bench.accept_singly(300, 1))
        await bench.check()
        await bench.store.close()
    print(f"store operations in batches of {size}, {rows:,} rows, best of {rounds}")
    print(f"  {'':<30} {'rows/s':>10} {'CPU µs/row':>18}")
    for name, watches in measured.items():
        fastest, leanest = max(w.per_second for w in watches), min(w.cpu_us for w in watches)
        print(f"  {name:<30} {fastest:>10,.0f} {leanest:>18.1f}")


async def backlogs(folder: Path, sizes: Sequence[int], batch: int) -> None:
    print(f"claim of {batch} with a backlog that is due now, or tomorrow (with {10 * batch} other rows due)")
    print(f"  {'backlog':>10}  {'due':<9} {'claim':>24}  {'settle':>24}")
    for size in sizes:
        for name, delay_ms in (("tomorrow", DAY_MS), ("now", 0)):
            bench = await opened(folder / f"backlog-{size}-{name}")
            await bench.accept(size, min(size, 5_000), time.time_ns() // 1_000_000 + delay_ms)
            await bench.accept(10 * batch, batch)
            rounds = [await bench.deliver(batch, batch) for _ in range(8)]
            shown = []
            for watches in zip(*rounds, strict=True):
                best_ms = 1000 * batch / max(w.per_second for w in watches)
                shown.append(f"{best_ms:>7.1f} ms {min(w.cpu_us for w in watches):>8.1f} µs/row")
            print(f"  {size:>10,}  {name:<9} {shown[0]:>24}  {shown[1]:>24}", flush=True)
            await bench.store.close()


async def opened(folder: Path) -> Bench:
    bench = Bench(folder)
    await bench.store.open()
    await bench.store.migrate()
    return bench


async def plans(folder: Path) -> None:
    bench = await opened(folder / "plans")
    await bench.store.close()
    connection = sqlite3.connect(bench.path)
    for name, sql in hot_statements().items():
        print(f"  {name}")
        for line in plan(connection, sql):
            print(f"    {line}")
    connection.close()


def plan(connection: sqlite3.Connection, sql: str) -> Iterator[str]:
    count = max(sql.count("?"), 1)
    for parameters in range(count, -1, -1):
        try:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * parameters).fetchall()
        except sqlite3.ProgrammingError:
            continue
        yield from (str(row[3]) for row in rows)
        return


async def run(options: argparse.Namespace, folder: Path) -> None:
    print(f"SQLite {sqlite3.sqlite_version}")
    await throughput(folder, options.rows, options.batch, options.rounds)
    await backlogs(folder, options.backlogs, options.batch)
    if options.plans:
        print("plans")
        await plans(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--directory", type=Path, help="folder for the files, on a real disk (default: a temporary folder)"
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlogs", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--plans", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()
