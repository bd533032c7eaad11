"""What `homing.enqueue` in a trigger adds to the statement that fires it.

    python bench/sql_enqueue.py postgresql://postgres@127.0.0.1/postgres

Rows are inserted one by one, each committed, in turn into a table without and into one with the trigger; a
worker empties the inbox meanwhile, as it would. The database is made for this and dropped.
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
CREATE TABLE told (id integer, title text);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM homing.enqueue(
        channel => 'push', recipient => jsonb_build_object('deviceToken', 'token-' || NEW.id),
        content => jsonb_build_object('title', NEW.title, 'body', repeat('x', 300)),
        type => 'announcement', metadata => jsonb_build_object('announcement_id', NEW.id));
    RETURN NEW;
END $$;
CREATE TRIGGER tell AFTER INSERT ON told FOR EACH ROW EXECUTE FUNCTION tell();
"""


async def measure(url: str, rows: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each insert, without and with the trigger."""
    times: dict[str, list[float]] = {"plain": [], "told": []}
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
            while sum((await homing.queue_counts()).values()) < rows:  # noqa: ASYNC110 (nobody tells it)
                await asyncio.sleep(0.1)
    return times["plain"], times["told"]


async def run(server: str, rows: int) -> None:
    name = f"homing_bench_{os.getpid()}_enqueue"
    admin = await asyncpg.connect(server)
    await admin.execute(f"CREATE DATABASE {name}")
    try:
        plain, told = await measure(server.rpartition("/")[0] + "/" + name, rows)
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()
    quantiles = {
        name: statistics.quantiles(taken, n=100) for name, taken in (("without", plain), ("with", told))
    }
    print(f"{'ms':>10} {'p50':>8} {'p99':>8}")
    for name, cuts in quantiles.items():
        print(f"{name:>10} {cuts[49]:8.2f} {cuts[98]:8.2f}")
    added = [with_it - without for without, with_it in zip(*quantiles.values(), strict=True)]
    print(f"{'added':>10} {added[49]:8.2f} {added[98]:8.2f}")
    print(f"accepted = enqueued: {rows}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("server", nargs="?", default="postgresql://postgres@127.0.0.1:5432/postgres")
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    asyncio.run(run(options.server, options.rows))


if __name__ == "__main__":
    main()
