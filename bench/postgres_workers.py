"""Measures what one notification costs the database, and how throughput grows with the number of processes.

    python bench/postgres_workers.py postgresql://postgres@127.0.0.1/postgres

Each process claims and settles in batches of 500, in a temporary database. The server usually runs on the
same machine, so more processes than cores do not help. Only ratios are meaningful.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

from homing.stores.postgres import PostgresStore
from postgres_store import accept, deliver, fresh

BATCH = 500


async def costs(server: str, rows: int) -> None:
    """Prints write-ahead log bytes and transactions per notification, for each step."""
    print(f"{'per notification':<24} {'WAL bytes':>10} {'transactions':>13}")
    async with fresh(server, "costs") as (store, connection):

        async def counters() -> tuple[int, int]:
            wal = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            done = await connection.fetchval("SELECT txid_current()")
            return int(wal), int(done)

        await accept(store, 2 * BATCH, BATCH)
        await deliver(store, 2 * BATCH, BATCH)
        await connection.execute("CHECKPOINT")
        before = await counters()
        await accept(store, rows, BATCH)
        between = await counters()
        await deliver(store, rows, BATCH)
        after = await counters()
        for name, (wal0, tx0), (wal1, tx1) in (
            ("accept", before, between),
            ("claim + settle", between, after),
        ):
            print(f"{name:<24} {(wal1 - wal0) / rows:>10,.0f} {(tx1 - tx0) / rows:>13.4f}")


async def growth(server: str, rows: int, counts: list[int], rounds: int) -> None:
    """Prints the total rows per second for each number of processes. Each round measures every number."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            async with fresh(server, "growth") as (store, connection):
                await accept(store, rows, 5 * BATCH)
                await connection.execute("VACUUM ANALYZE")
                url = f"{server.rpartition('/')[0]}/{await connection.fetchval('SELECT current_database()')}"
                processes = started(url, count)
                await asyncio.sleep(2)  # time for all processes to start
                began = time.perf_counter()
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.close()
                for process in processes:
                    await asyncio.to_thread(process.wait)
                found[count].append(rows / (time.perf_counter() - began))
    first = statistics.median(found[counts[0]])
    print(f"{'processes':>10} {'rows/s':>10} {'ratio':>6}")
    for count in counts:
        rate = statistics.median(found[count])
        print(f"{count:>10} {rate:>10,.0f} {rate / first:>6.2f}")


def started(url: str, count: int) -> list[subprocess.Popen[bytes]]:
    """Starts processes that wait until their stdin closes, and then work."""
    command = [sys.executable, __file__, "--deliver", url]
    return [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]


async def work(url: str) -> None:
    """Main function of a process: claims and settles until no row is left."""
    store = PostgresStore(url)
    await store.open()
    await asyncio.to_thread(sys.stdin.read)
    await deliver(store, 10**9, BATCH)
    await store.close()


async def run(options: argparse.Namespace) -> None:
    if options.deliver:
        await work(options.deliver)
        return
    await costs(options.url, options.rows)
    await growth(options.url, options.rows, [1, 2, 4], options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", nargs="?", default="postgresql://postgres@127.0.0.1:5432/postgres")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deliver", help=argparse.SUPPRESS)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
