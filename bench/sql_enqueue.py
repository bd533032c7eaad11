"""Measures the time that `homing.enqueue` in a trigger adds to the statement that fires it.

    python bench/sql_enqueue.py postgresql://postgres@127.0.0.1/postgres

Rows are inserted and committed one by one, alternating between a table without and a table with the
trigger. Meanwhile a worker empties the inbox, as in production. The database is temporary.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time

import asyncpg

from homing import Homing

TABLES = """
CREATE TABLE plain (id integer, title text);
CREATE TABLE triggering (id integer, title text);
CREATE FUNCTION enqueue_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM homing.enqueue(
        channel => 'push', recipient => jsonb_build_object('deviceToken', 'token-' || NEW.id),
        content => jsonb_build_object('title', NEW.title, 'body', repeat('x', 300)),
        type => 'announcement', metadata => jsonb_build_object('announcement_id', NEW.id));
    RETURN NEW;
END $$;
CREATE TRIGGER enqueue_row AFTER INSERT ON triggering FOR EACH ROW EXECUTE FUNCTION enqueue_row();
"""


async def measure(url: str, rows: int) -> tuple[list[float], list[float]]:
    """Returns the milliseconds of each insert, without and with the trigger."""
    times: dict[str, list[float]] = {"plain": [], "triggering": []}
    async with Homing(url, providers={"push": lambda delivery: None}, worker=True) as homing:
        connection = await asyncpg.connect(url)
        await connection.execute(TABLES)
        for number in range(rows):
            for table, taken in times.items():
                began = time.perf_counter()
                await connection.execute(f"INSERT INTO {table} VALUES ($1, 'hello')", number)
                taken.append((time.perf_counter() - began) * 1000)
        await connection.close()
        async with asyncio.timeout(60):
            while sum((await homing.queue_counts()).values()) < rows:  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.1)
    return times["plain"], times["triggering"]


async def run(server: str, rows: int) -> None:
    name = f"homing_bench_{os.getpid()}_enqueue"
    admin = await asyncpg.connect(server)
    await admin.execute(f"CREATE DATABASE {name}")
    try:
        plain, triggering = await measure(server.rpartition("/")[0] + "/" + name, rows)
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()
    quantiles = {
        name: statistics.quantiles(taken, n=100) for name, taken in (("without", plain), ("with", triggering))
    }
    print(f"{'ms':>10} {'p50':>8} {'p99':>8}")
    for name, cuts in quantiles.items():
        print(f"{name:>10} {cuts[49]:8.2f} {cuts[98]:8.2f}")
    added = [with_it - without for without, with_it in zip(*quantiles.values(), strict=True)]
    print(f"{'added':>10} {added[49]:8.2f} {added[98]:8.2f}")
    print(f"all {rows} enqueued notifications were accepted")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("server", nargs="?", default="postgresql://postgres@127.0.0.1:5432/postgres")
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    asyncio.run(run(options.server, options.rows))


if __name__ == "__main__":
    main()
