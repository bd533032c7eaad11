"""A timer in Redis: due times in a sorted set, and a message for each batch that workers should know at once.

The sorted set has one entry per notification, with its due time as the score. Workers wait for the earliest
entry, and each message tells them the earliest due time of a batch before it has come. All times are the
store's: the clock of Redis is never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from homing.brokers.redis import DEFAULT_URL, RedisConnection, RedisFailure, RedisLogin
from homing.core.errors import ConfigError
from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import Wake
from homing.net.secrets import Secret

_HORIZON_MS = 86_400_000
"""Later due times are not stored in Redis. Workers read them from the store long before."""

_KEEP_MS = _HORIZON_MS + 3_600_000
"""Time after which Redis removes the sorted set if no process uses it any more."""

_MAX_ENTRIES = 100_000
"""Maximum number of due times in Redis, about 10 MB. The latest ones are removed first."""

_PRUNE_EVERY_S = 1.0
"""Shortest time between two removals of past due times by a process that schedules."""

_LEFT_MS = 60_000
"""Processes that schedule remove only entries that have been due for this time. Workers remove the others."""

_SCHEDULE_EVERY_S = 0.005
"""Shortest time between two batches. What arrives meanwhile shares the next one."""

_READ_EVERY_S, _READ_WITHIN_S = 1.0, 5.0
"""Shortest and longest time between two reads of the sorted set by a worker. Messages and claims tell it what
becomes due in between, so more reads would only cost time."""

_MARK = "-"
"""Entry that is always there while a worker listens, with a score below all due times. If it is gone, the
sorted set was deleted."""

_LONGEST_PREFIX = 200


class RedisTimer:
    """Wakes the workers of all processes that use the same Redis with the same `prefix`."""

    def __init__(
        self,
        url: str | Secret = DEFAULT_URL,
        *,
        prefix: str = "homing",
        **login: Unpack[RedisLogin],
    ) -> None:
        self._redis = RedisConnection(url, **login)
        if not prefix or len(prefix) > _LONGEST_PREFIX:
            raise ConfigError("prefix", f"must have 1 to {_LONGEST_PREFIX} characters")
        self.key = f"{prefix}:due"
        # Redis has the same channels in all databases of a server, so the name contains the database.
        self.channel = f"{prefix}:{self._redis.address.database}:wake"
        self._store_now_ms: Callable[[], int] = lambda: 0
        self._next_schedule_s = 0.0
        self._next_prune_s = 0.0

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        """Connects, and raises `RedisFailure` if Redis cannot be used."""
        self._store_now_ms = store_now_ms
        await self._redis.open()

    async def close(self) -> None:
        """Disconnects."""
        await self._redis.close()

    async def diagnose(self) -> str:
        """Describes the server."""
        return await self._redis.diagnose()

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        """Stores the due times of the next 24 hours, and sends the earliest one to all workers."""
        await self._wait_for_turn()
        now = self._store_now_ms()
        earliest = min([one.due_at for one in batch])
        if earliest > now + _HORIZON_MS:
            return
        # A worker that connects later starts with a claim, so what is due already need not be stored.
        later = {one.id: one.due_at for one in batch if now < one.due_at <= now + _HORIZON_MS}
        pipeline = self._redis.client.pipeline(transaction=False)
        if later:
            pipeline.zadd(self.key, later)
            pipeline.pexpire(self.key, _KEEP_MS)
            if self._is_prune_due():
                self._prune(pipeline, now - _LEFT_MS)
        pipeline.publish(self.channel, earliest)
        with self._redis.translated():
            await pipeline.execute()

    async def listen(self, wake: Wake) -> None:
        """Passes on messages and the earliest due time. Raises `RedisFailure` if the connection is lost,
        Redis does not answer, or the due times have been deleted."""
        with self._redis.translated():
            async with self._redis.client.pubsub() as messages:
                await messages.subscribe(self.channel)
                await self._listen(messages, wake)

    async def _listen(self, messages: Any, wake: Wake) -> None:
        now_s = asyncio.get_running_loop().time
        await self._read_message(messages, self._redis.timeout_ms / 1000, "subscribe")
        earliest, _ = await self._read_earliest()
        wake()
        heard_s = read_s = now_s()
        next_read_s = read_s + self._wait_s(earliest)
        if earliest is not None:
            wake(earliest)
        while True:
            _raise_if_cancelled()
            if now_s() >= next_read_s:
                earliest, deleted = await self._read_earliest()
                if deleted:
                    raise RedisFailure(
                        f"{self._redis} has lost the due times: it was flushed, or it deletes keys when its"
                        " memory is full"
                    )
                read_s = now_s()
                next_read_s = read_s + self._wait_s(earliest)
                if earliest is not None:
                    wake(earliest)
                if read_s - heard_s > _READ_WITHIN_S:
                    if read_s - heard_s > 2 * _READ_WITHIN_S + self._redis.timeout_ms / 1000:
                        raise RedisFailure(f"{self._redis} does not answer on the connection for messages")
                    await messages.ping()
            message = await messages.get_message(timeout=max(0.0, next_read_s - now_s()))
            if message is None:
                continue
            heard_s = now_s()
            due_at = _due_time(message)
            if due_at is not None:
                wake(due_at)
                wait_s = self._wait_s(due_at) if due_at > self._store_now_ms() else _READ_EVERY_S
                next_read_s = min(next_read_s, max(read_s + _READ_EVERY_S, heard_s + wait_s))

    async def _read_message(self, messages: Any, within_s: float, kind: str) -> None:
        """Waits for a message of this kind, which confirms that the connection is subscribed."""
        async with asyncio.timeout(within_s):
            while True:
                message = await messages.get_message(timeout=within_s)
                if message is not None and message["type"] == kind:
                    return

    async def _read_earliest(self) -> tuple[int | None, bool]:
        """Removes past due times. Returns the earliest one that is left, and whether the set was deleted.

        Past due times need no wake-up: the worker got each of them before it had come.
        """
        pipeline = self._redis.client.pipeline(transaction=False)
        pipeline.zadd(self.key, {_MARK: "-inf"}, nx=True)
        self._prune(pipeline, self._store_now_ms())
        pipeline.pexpire(self.key, _KEEP_MS)
        pipeline.zrangebyscore(self.key, "(-inf", "+inf", start=0, num=1, withscores=True)
        marked, *_, first = await pipeline.execute()
        return (int(first[0][1]) if first else None), bool(marked)

    def _prune(self, pipeline: Any, until: int) -> None:
        pipeline.zremrangebyscore(self.key, "(-inf", until)
        pipeline.zremrangebyrank(self.key, _MAX_ENTRIES, -1)

    def _wait_s(self, due_at: int | None) -> float:
        """Returns the time until the next read, which is when the entry has come, within the bounds above."""
        if due_at is None:
            return _READ_WITHIN_S
        wait_s = (due_at - self._store_now_ms()) / 1000
        return min(_READ_WITHIN_S, max(_READ_EVERY_S, wait_s))

    def _is_prune_due(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_prune_s:
            return False
        self._next_prune_s = now_s + _PRUNE_EVERY_S
        return True

    async def _wait_for_turn(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_schedule_s:
            await asyncio.sleep(self._next_schedule_s - now_s)
        self._next_schedule_s = max(now_s, self._next_schedule_s) + _SCHEDULE_EVERY_S


def _raise_if_cancelled() -> None:
    """Raises `CancelledError` if the current task was cancelled.

    The client ignores a cancellation while it connects. The task would listen for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _due_time(message: Any) -> int | None:
    """Returns the due time in a message, or None for the messages of the connection and unreadable ones."""
    data = message["data"]
    if message["type"] != "message" or not (isinstance(data, bytes) and len(data) <= 16 and data.isdigit()):
        return None
    return int(data)
