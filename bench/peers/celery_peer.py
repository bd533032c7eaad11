"""Celery on RabbitMQ: a pool of 100 threads per process, durable messages, no results."""
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import job
from celery import Celery, group

app = Celery("celery_peer", broker=job.AMQP)
app.conf.update(
    task_default_queue=job.QUEUE, task_ignore_result=True, broker_connection_retry_on_startup=True
)


@app.task(name="post")
def post(number: int) -> None:
    job.post(number)


def _queue(channel: Any) -> Any:
    return channel.queue_declare(job.QUEUE, durable=True, auto_delete=False)


def _prepare() -> None:
    with app.connection_for_write() as connection:
        _queue(connection.default_channel)
        connection.default_channel.queue_purge(job.QUEUE)


def _bulk(count: int) -> float:
    began = time.perf_counter()
    for batch in job.batches(count):
        group(post.s(number) for number in batch).apply_async()
    return time.perf_counter() - began


def _singles(count: int) -> float:
    return job.by_threads(count, post.delay)


def _left() -> int:
    with app.connection_for_write() as connection:
        return int(_queue(connection.default_channel).message_count)


def _worker() -> None:
    """Starts workers as the command line does, without gossip between them."""
    command = [sys.executable, "-m", "celery", "-A", "celery_peer", "worker", "-P", "threads", "-c", "100"]
    quiet = ["-l", "ERROR", "--without-gossip", "--without-mingle"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    processes = [
        subprocess.Popen([*command, *quiet, "-n", f"worker-{number}@bench"], env=here)
        for number in range(job.PROCESSES)
    ]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    job.main(prepare=_prepare, bulk=_bulk, singles=_singles, left=_left, worker=_worker)
