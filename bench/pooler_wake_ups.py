"""Measures how soon a worker starts what another process accepts, and what polling costs an idle server.

    python bench/pooler_wake_ups.py postgresql://DIRECT/app postgresql://POOLER/app

Both URLs lead to the same database. It compares direct connections, a pooler in transaction mode, and the
pooler with a direct URL for LISTEN. The sender and the worker are separate engines with separate connections,
and the sender never wakes the worker itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time

import asyncpg

from homing import Homing

_STARTING_S = 5
"""Time for the worker to find out whether LISTEN works."""

_IDLE_S = 10


async def latencies(url: str, sends: int) -> list[float]:
    """Returns the milliseconds between the return of each `send` and the start of its attempt."""
    started: asyncio.Queue[float] = asyncio.Queue()

    async def mail(message: object) -> None:
        started.put_nowait(time.perf_counter())

    found = []
    async with (
        Homing(url, providers={"mail": mail}, worker=True),
        Homing(url, providers={"mail": mail}) as sender,
    ):
        await asyncio.sleep(_STARTING_S)
        for _ in range(sends):
            await asyncio.sleep(random.uniform(0.05, 1.1))
            await sender.send("ada@example.org", channel="email", body="Hi")
            accepted = time.perf_counter()
            found.append(1000 * (await asyncio.wait_for(started.get(), 30) - accepted))
    return found


async def idle_cost(url: str, direct: str) -> tuple[float, float]:
    """Returns transactions per second and milliseconds of statements per second, for one idle worker."""

    async def mail(message: object) -> None: ...

    connection = await asyncpg.connect(direct)
    counters = "SELECT xact_commit + xact_rollback, active_time FROM pg_stat_database WHERE datname = $1"
    name = await connection.fetchval("SELECT current_database()")
    async with Homing(url, providers={"mail": mail}, worker=True):
        await asyncio.sleep(_STARTING_S)
        [before] = await connection.fetch(counters, name)
        await asyncio.sleep(_IDLE_S)
        [after] = await connection.fetch(counters, name)
    await connection.close()
    return (after[0] - before[0]) / _IDLE_S, (after[1] - before[1]) / _IDLE_S


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("direct", metavar="DIRECT")
    parser.add_argument("pooler", metavar="POOLER")
    parser.add_argument("--sends", type=int, default=60)
    parser.add_argument("--poll-ms", type=int, default=1000, help="worker.poll_ms")
    asked = parser.parse_args()
    os.environ["HOMING_WORKER__POLL_MS"] = str(asked.poll_ms)
    ways = {
        "direct": asked.direct,
        "pooler": asked.pooler,
        "pooler, listen_url": f"{asked.pooler}?listen_url={asked.direct}",
    }
    print(f"{'ms until the attempt':<28} {'median':>8} {'p90':>8} {'max':>8} {'idle tx/s':>10} {'ms/s':>6}")
    for name, url in ways.items():
        found = sorted(await latencies(url, asked.sends))
        transactions, busy_ms = await idle_cost(url, asked.direct)
        p90 = found[int(0.9 * len(found))]
        print(
            f"{name:<28} {statistics.median(found):>8.1f} {p90:>8.1f} {found[-1]:>8.1f} {transactions:>10.1f}"
            f" {busy_ms:>6.1f}"
        )


if __name__ == "__main__":
    asyncio.run(main())
