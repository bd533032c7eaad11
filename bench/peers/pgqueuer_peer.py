"""PgQueuer: PostgreSQL through asyncpg, on uvloop, 256 concurrent jobs per process."""
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

import asyncpg
import job
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.db import AsyncpgPoolDriver


async def _queries() -> Any:
    return Queries(AsyncpgDriver(await asyncpg.connect(job.POSTGRES)))


async def _prepare() -> None:
    await (await _queries()).install()


async def _bulk(count: int) -> float:
    queries = await _queries()
    began = time.perf_counter()
    for batch in job.batches(count):
        payloads = [str(number).encode() for number in batch]
        await queries.enqueue(["post"] * len(batch), payloads, [0] * len(batch))
    return time.perf_counter() - began


async def _singles(count: int) -> float:
    async with asyncpg.create_pool(job.POSTGRES, min_size=16, max_size=16) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        return await job.by_tasks(count, lambda number: queries.enqueue("post", str(number).encode()))


async def _left() -> int:
    connection = await asyncpg.connect(job.POSTGRES)
    return int(await connection.fetchval("SELECT count(*) FROM pgqueuer"))


async def _work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(job.POSTGRES)))

    @queue.entrypoint("post")
    async def post(one: Any) -> None:
        await job.post_async(int(one.payload))

    await queue.run(batch_size=256)


def _process() -> None:
    uvloop.run(_work())


def _worker() -> None:
    processes = [multiprocessing.Process(target=_process) for _ in range(job.PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    job.main(
        prepare=lambda: asyncio.run(_prepare()),
        bulk=lambda count: uvloop.run(_bulk(count)),
        singles=lambda count: uvloop.run(_singles(count)),
        left=lambda: asyncio.run(_left()),
        worker=_worker,
    )
