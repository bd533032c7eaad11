"""Procrastinate: PostgreSQL through psycopg 3, 256 concurrent jobs per process."""
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import asyncio
import multiprocessing
import time

import job
import procrastinate
import psycopg

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=job.POSTGRES, max_size=16))


@app.task(name="post")
async def post(number: int) -> None:
    await job.post_async(number)


def _prepare() -> None:
    here = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=job.POSTGRES))
    with here.open():
        here.schema_manager.apply_schema()


async def _bulk(count: int) -> float:
    async with app.open_async():
        began = time.perf_counter()
        for batch in job.batches(count):
            await post.batch_defer_async(*({"number": number} for number in batch))
        return time.perf_counter() - began


async def _singles(count: int) -> float:
    async with app.open_async():
        return await job.by_tasks(count, lambda number: post.defer_async(number=number))


def _left() -> int:
    with psycopg.connect(job.POSTGRES) as connection:
        done = connection.execute("SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'")
        row = done.fetchone()
        assert row is not None
        return int(row[0])


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=256)


def _process() -> None:
    asyncio.run(_work())


def _worker() -> None:
    processes = [multiprocessing.Process(target=_process) for _ in range(job.PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    job.main(
        prepare=_prepare,
        bulk=lambda count: asyncio.run(_bulk(count)),
        singles=lambda count: asyncio.run(_singles(count)),
        left=_left,
        worker=_worker,
    )
