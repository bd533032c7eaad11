"""Dramatiq on Redis: 16 threads per process, no bulk call. Redis answers before writing to disk."""
# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dramatiq
import job
import redis
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=job.REDIS, namespace=job.QUEUE))


@dramatiq.actor(queue_name=job.QUEUE)
def post(number: int) -> None:
    job.post(number)


def _prepare() -> None:
    """Deletes only the keys of this benchmark, because other programs may use this Redis."""
    here = redis.Redis.from_url(job.REDIS)
    for key in here.scan_iter(f"{job.QUEUE}:*", count=10_000):
        here.delete(key)


def _singles(count: int) -> float:
    return job.by_threads(count, post.send)


def _left() -> int:
    """Counts the messages that are not acknowledged, which are all in one hash."""
    return int(redis.Redis.from_url(job.REDIS).hlen(f"{job.QUEUE}:{job.QUEUE}.msgs"))


def _worker() -> None:
    threads = ["--processes", str(job.PROCESSES), "--threads", "16", "--skip-logging"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-m", "dramatiq", "dramatiq_peer", *threads], env=here, check=False)


if __name__ == "__main__":
    job.main(prepare=_prepare, bulk=_singles, singles=_singles, left=_left, worker=_worker)
