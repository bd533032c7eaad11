"""How fast the line runs over SQLite: accept, claim, settle, and what a claim costs behind a backlog.

    python bench/sqlite_line.py [--directory DIR] [--rows N] [--batch N] [--backlogs 10000 100000 1000000]

Prints rows per second (best of the rounds), the cost of a claim by the number of waiting rows, and the
query plan of every hot statement. Ends with an error if a notification is not accounted for, so a fast
but wrong store does not pass. Absolute figures belong to the machine; the ratios within one run do not.
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

from homing.core.ids import uuid7
from homing.core.model import (
    AttemptRecord,
    Channel,
    Claim,
    ClaimRequest,
    Content,
    LaneRoom,
    Message,
    Mode,
    NewNotification,
    OutcomeKind,
    Priority,
    Recipient,
    Settlement,
    Status,
    Submission,
    lane_of,
)
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.plans import hot_statements

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
    room = LaneRoom(slots=slots, tenant_slots=slots)
    return ClaimRequest(worker="bench", lease_ms=60_000, lanes={LANE: room}, outlet_slots=slots)


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
        status=Status.SENT,
        attempt=record,
        provider=claim.provider,
        outlet=claim.outlet,
        max_age_ms=DAY_MS,
    )


class Bench:
    """One store in a fresh file, and how many notifications it has been given."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "bench.db"
        self.store = SqliteStore(self.path)
        self.accepted = 0

    async def accept(self, rows: int, size: int, send_at: int | None = None) -> float:
        """Rows per second, making the submissions not counted."""
        batches = [a_submission(size, number, send_at) for number in range(rows // size)]
        started = time.perf_counter()
        for submission in batches:
            await self.store.accept([submission])
        taken_s = time.perf_counter() - started
        self.accepted += size * len(batches)
        return size * len(batches) / taken_s

    async def accept_singly(self, rows: int, callers: int) -> float:
        """Rows per second of callers that each accept one at a time: they share commits."""
        waiting = [a_submission(1, number) for number in range(rows)]

        async def caller() -> None:
            while waiting:
                await self.store.accept([waiting.pop()])

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        taken_s = time.perf_counter() - started
        self.accepted += rows
        return rows / taken_s

    async def deliver(self, rows: int, size: int) -> tuple[float, float, float]:
        """(rows per second of claim + settle, milliseconds per claim, per settle)."""
        done, claiming_s, settling_s = 0, 0.0, 0.0
        while done < rows:
            started = time.perf_counter()
            claims = (await self.store.claim(a_request(size))).claims
            claimed = time.perf_counter()
            claiming_s += claimed - started
            if not claims:
                break
            settlements = [sent(claim) for claim in claims]
            started = time.perf_counter()
            result = await self.store.settle(settlements)
            settling_s += time.perf_counter() - started
            done += len(result.applied)
        calls = max(1, done // size)
        return done / (claiming_s + settling_s), 1000 * claiming_s / calls, 1000 * settling_s / calls

    async def claim_ms(self, size: int, rounds: int = 5) -> tuple[float, float]:
        """(milliseconds of a claim, of a claim and its settlement), the best of a few."""
        best, whole = float("inf"), float("inf")
        for _ in range(rounds):
            started = time.perf_counter()
            claims = (await self.store.claim(a_request(size))).claims
            claimed = time.perf_counter()
            await self.store.settle([sent(claim) for claim in claims])
            best = min(best, claimed - started)
            whole = min(whole, time.perf_counter() - started)
        return 1000 * best, 1000 * whole

    async def check(self) -> None:
        """Every notification is in exactly one cell, and the rows agree with the cells."""
        counted = sum(tally.count + tally.purged for tally in await self.store.tallies(None))
        with sqlite3.connect(self.path) as connection:
            stored = connection.execute("SELECT count(*) FROM homing_notifications").fetchone()[0]
            messages = connection.execute("SELECT count(*) FROM homing_messages").fetchone()[0]
        connection.close()
        if not self.accepted == counted == stored == messages:
            sys.exit(f"accepted {self.accepted}, counted {counted}, rows {stored}, messages {messages}")
        print(f"  accepted = accounted = {counted:,}")


async def throughput(folder: Path, rows: int, size: int, rounds: int) -> None:
    print(f"line, batches of {size}, {rows:,} rows, best of {rounds}")
    accepting, delivering, alone, singly = [], [], [], []
    for number in range(rounds):
        bench = await opened(folder / f"line-{number}")
        accepting.append(await bench.accept(rows, size))
        delivering.append(await bench.deliver(rows, size))
        singly.append(await bench.accept_singly(min(rows, 8_000), 64))
        alone.append(await bench.accept_singly(500, 1))
        await bench.check()
        await bench.store.close()
    fastest = max(delivering)
    print(f"  accept                 {max(accepting):>10,.0f} rows/s")
    print(
        f"  claim + settle         {fastest[0]:>10,.0f} rows/s   claim {fastest[1]:.1f} ms, settle {fastest[2]:.1f} ms"
    )
    print(
        f"  64 callers, one each   {max(singly):>10,.0f} rows/s   {max(singly) / max(alone):.1f} × one caller"
    )
    print(f"  1 caller, one each     {max(alone):>10,.0f} rows/s")


async def backlogs(folder: Path, sizes: Sequence[int], batch: int) -> None:
    print(f"claim of {batch} behind a backlog; its own rows are due, the backlog is due or due tomorrow")
    print(f"  {'backlog':>10}  {'waits for':<9} {'claim ms':>9} {'claim + settle ms':>18}")
    for size in sizes:
        for name, delay_ms in (("tomorrow", DAY_MS), ("now", 0)):
            bench = await opened(folder / f"backlog-{size}-{name}")
            await bench.accept(size, min(size, 5_000), time.time_ns() // 1_000_000 + delay_ms)
            await bench.accept(10 * batch, batch)
            claim_ms, whole_ms = await bench.claim_ms(batch)
            print(f"  {size:>10,}  {name:<9} {claim_ms:>9.1f} {whole_ms:>18.1f}")
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
        "--directory", type=Path, help="where the files go (a real disk; default: a temporary one)"
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
