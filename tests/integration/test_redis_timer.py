"""The timer in Redis wakes the worker of another engine. Without Redis, the worker polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homing import Homing, Priority, Status
from homing.brokers.redis import RedisFailure
from homing.core.lifecycle.due_times import DueTime
from homing.timers import redis as redis_timer
from homing.timers.redis import RedisTimer
from support.pgbouncer import PgBouncer
from support.postgres_servers import skip_if_missing
from support.redis_server import RedisServer, skip_if_no_redis
from support.tcp_proxy import TcpProxy
from support.timed_engines import EMAIL, Recorder, eventually, sender_and_worker

RARELY_MS = 600_000
OFTEN_MS = 200
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers notice within a second what they otherwise notice within five."""
    monkeypatch.setattr(redis_timer, "_READ_EVERY_S", 0.1)
    monkeypatch.setattr(redis_timer, "_READ_WITHIN_S", 0.3)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def due(id: str, in_ms: int, now: int | None = None) -> DueTime:
    return DueTime(id, (now_ms() if now is None else now) + in_ms, Priority.HIGH)


class Worker:
    """Listens to a timer, as the engine lets it, and records the due times that it gets."""

    def __init__(self, url: str, clock: Callable[[], int] = now_ms, **options: Any) -> None:
        self.timer = RedisTimer(url, **options)
        self.woken: list[int] = []
        self._clock = clock

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[asyncio.Task[None]]:
        await self.timer.open(self._clock)
        task = asyncio.create_task(self.timer.listen(lambda due_at=0: self.woken.append(due_at)))
        await eventually(lambda: task.done() or bool(self.woken))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.timer.close()


@asynccontextmanager
async def opened(url: str, clock: Callable[[], int] = now_ms, **options: Any) -> AsyncIterator[RedisTimer]:
    timer = RedisTimer(url, **options)
    await timer.open(clock)
    try:
        yield timer
    finally:
        await timer.close()


async def check_everything_arrives(sender: Homing, sent_by: Recorder, number: int = 5) -> None:
    """Sends, waits until all is delivered, and checks that nothing was sent twice."""
    before = sent_by.calls
    ids = [(await sender.send("ada@example.org", **EMAIL)).id for _ in range(number)]
    for id in ids:
        await sent_by.wait_for(id)
    await asyncio.sleep(0.3)
    assert sent_by.calls == before + number
    assert {(await sender.get(id)).status for id in ids} <= {Status.SENT, Status.SENDING}


# With Redis -----------------------------------------------------------------------------------------


async def test_a_worker_that_polls_every_ten_minutes_is_woken_through_redis(
    redis_server: RedisServer,
) -> None:
    sent_by = Recorder()
    url = redis_server.url
    async with sender_and_worker(lambda: RedisTimer(url), sent_by, poll_ms=RARELY_MS) as (sender, worker):
        due_s = time.time() + 0.3
        later = await sender.send("ada@example.org", send_at=timedelta(milliseconds=300), **EMAIL)
        now = await sender.send("ada@example.org", **EMAIL)
        await sent_by.wait_for(now.id)
        assert await sent_by.wait_for(later.id) >= due_s - 0.01
        state = worker.snapshot().timers["timer"]
        assert (state.connected, state.discarded, state.failures) == (True, 0, 0)


async def test_a_worker_behind_a_pooler_is_woken_through_redis(
    redis_server: RedisServer, postgres_url: str
) -> None:
    """LISTEN gets no messages there."""
    sent_by, url = Recorder(), redis_server.url
    with skip_if_missing(), PgBouncer(postgres_url) as pooler:
        async with Homing(pooler.url):
            pass  # creates the schema
        work = sender_and_worker(lambda: RedisTimer(url), sent_by, poll_ms=RARELY_MS, store=pooler.url)
        async with work as (sender, worker):
            await check_everything_arrives(sender, sent_by, 2)
            assert sender.snapshot().timers["timer"].scheduled == 2
            assert worker.snapshot().timers["timer"].failures == 0


async def test_a_worker_that_starts_later_gets_the_earliest_due_time(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as timer:
        soon, later = due("a", HOUR_MS), due("b", 2 * HOUR_MS)
        await timer.schedule([later, soon])
    worker = Worker(redis_server.url)
    async with worker.listening() as task:
        await eventually(lambda: len(worker.woken) > 1)
        assert (worker.woken, task.done()) == ([0, soon.due_at], False)


async def test_a_due_time_that_is_given_again_replaces_the_first(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as timer, redis_server.client() as client:
        await timer.schedule([due("a", HOUR_MS)])
        second = due("a", 2 * HOUR_MS)
        await timer.schedule([second])
        assert await client.zrange(timer.key, 0, -1, withscores=True) == [(b"a", second.due_at)]


async def test_times_are_those_of_the_store_and_not_of_redis(redis_server: RedisServer) -> None:
    def store_now() -> int:
        return now_ms() - 7 * HOUR_MS

    async with opened(redis_server.url, store_now) as timer, redis_server.client() as client:
        ahead = due("a", HOUR_MS, store_now())
        await timer.schedule([ahead])
        worker = Worker(redis_server.url, store_now)
        async with worker.listening():
            await eventually(lambda: ahead.due_at in worker.woken)
            assert await client.zcard(timer.key) == 2, "it is not due yet, whatever the clock of Redis says"


async def test_installations_with_other_prefixes_or_databases_do_not_hear_each_other(
    redis_server: RedisServer,
) -> None:
    other_database = redis_server.url.removesuffix("/0") + "/1"
    workers = [Worker(redis_server.url), Worker(redis_server.url, prefix="b"), Worker(other_database)]
    async with workers[0].listening(), workers[1].listening(), workers[2].listening():
        async with opened(redis_server.url) as timer:
            await timer.schedule([due("a", HOUR_MS)])
        await eventually(lambda: len(workers[0].woken) > 1)
        await asyncio.sleep(0.2)
        assert [worker.woken for worker in workers[1:]] == [[0], [0]]


async def test_a_cancelled_listener_ends_whatever_it_is_doing(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as timer:
        for number in range(60):
            listening = asyncio.ensure_future(timer.listen(lambda due_at=0: None))
            await asyncio.sleep(number * 0.00005)
            listening.cancel()
            done, _ = await asyncio.wait([listening], timeout=20)
            assert done, f"still listens, although it was cancelled after {number * 50} µs"
            assert listening.cancelled()


async def test_unreadable_messages_are_ignored(redis_server: RedisServer) -> None:
    worker = Worker(redis_server.url)
    async with worker.listening() as task, redis_server.client() as client:
        for data in (b"", b"soon", b"-1", b"9" * 400, b"\xff\x00", b"1e9"):
            await client.publish(worker.timer.channel, data)
        await client.publish(worker.timer.channel, b"123")
        await eventually(lambda: 123 in worker.woken)
        assert (worker.woken, task.done()) == ([0, 123], False)


@pytest.mark.parametrize("rights", ["wake-workers-through-redis.md"], indirect=True)
async def test_the_rights_in_the_how_to_are_enough(redis_server: RedisServer, rights: list[str]) -> None:
    async with redis_server.client() as client:
        await client.execute_command("ACL", "SETUSER", *rights)
    login: dict[str, Any] = {"username": "homing", "password": "PASSWORD"}
    worker = Worker(redis_server.url, **login)
    async with worker.listening() as task, opened(redis_server.url, **login) as timer:
        ahead = due("a", HOUR_MS)
        await timer.schedule([ahead])
        await eventually(lambda: ahead.due_at in worker.woken)
        assert not task.done()


# The size of the sorted set -------------------------------------------------------------------------


@pytest.mark.usefixtures("_read_often")
async def test_a_worker_removes_what_is_past(redis_server: RedisServer) -> None:
    clock_ms = began_ms = now_ms()

    def read_clock() -> int:
        return clock_ms

    worker, sender = Worker(redis_server.url, read_clock), opened(redis_server.url, read_clock)
    async with redis_server.client() as client, worker.listening(), sender as timer:
        batch = [*(due(f"{n}", 50 + n, began_ms) for n in range(100)), due("ahead", HOUR_MS, began_ms)]
        await timer.schedule(batch)
        assert await client.zcard(timer.key) == 102, "with the mark of the worker"
        clock_ms += 200
        async with asyncio.timeout(60):
            while await client.zscore(timer.key, "99") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await client.zrange(timer.key, 0, -1) == [b"-", b"ahead"], "what is ahead stays"


async def test_without_a_worker_the_sender_removes_what_is_past(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_timer, "_LEFT_MS", 0)
    monkeypatch.setattr(redis_timer, "_PRUNE_EVERY_S", 0)
    async with opened(redis_server.url) as timer, redis_server.client() as client:
        await timer.schedule([due(f"{n}", 20) for n in range(100)])
        await asyncio.sleep(0.05)
        await timer.schedule([due("next", HOUR_MS)])
        assert await client.zrange(timer.key, 0, -1) == [b"next"]
        assert 0 < await client.pttl(timer.key) <= redis_timer._KEEP_MS, "unused, it disappears"


async def test_the_number_of_due_times_in_redis_is_bounded(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_timer, "_MAX_ENTRIES", 10)
    monkeypatch.setattr(redis_timer, "_PRUNE_EVERY_S", 0)
    async with opened(redis_server.url) as timer, redis_server.client() as client:
        await timer.schedule([due(f"{n:02}", HOUR_MS + n) for n in range(50)])
        assert await client.zrange(timer.key, 0, -1) == [f"{n:02}".encode() for n in range(10)]


async def test_neither_what_is_due_nor_what_is_due_after_days_is_stored_in_redis(
    redis_server: RedisServer,
) -> None:
    worker = Worker(redis_server.url)
    async with worker.listening(), opened(redis_server.url) as timer, redis_server.client() as client:
        await timer.schedule([due("far", 48 * HOUR_MS)])
        now = due("now", 0)
        await timer.schedule([now, due("far", 48 * HOUR_MS)])
        await eventually(lambda: worker.woken == [0, now.due_at])
        assert await client.zcard(timer.key) == 1, "only the mark of the worker"


# Without Redis --------------------------------------------------------------------------------------


async def test_while_redis_is_down_a_worker_polls_and_afterwards_it_is_woken_again(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    sent_by, url = Recorder(), redis_server.url
    async with sender_and_worker(lambda: RedisTimer(url), sent_by, poll_ms=OFTEN_MS) as (sender, worker):
        redis_server.kill()
        await check_everything_arrives(sender, sent_by)
        await eventually(lambda: not worker.snapshot().timers["timer"].connected)
        assert sender.snapshot().timers["timer"].discarded > 0
        assert "timer timer is unavailable, workers wait for their next poll: Redis at" in caplog.text
        redis_server.start()
        async with asyncio.timeout(60):
            while not worker.snapshot().timers["timer"].connected:
                await worker.send("ada@example.org", **EMAIL)
                await asyncio.sleep(0.1)
        await check_everything_arrives(sender, sent_by)


@pytest.mark.usefixtures("_read_often")
async def test_a_flush_loses_nothing_and_is_reported(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    sent_by, url = Recorder(), redis_server.url
    async with sender_and_worker(lambda: RedisTimer(url), sent_by, poll_ms=RARELY_MS) as (sender, worker):
        later = await sender.send("ada@example.org", send_at=timedelta(milliseconds=800), **EMAIL)
        async with redis_server.client() as client:
            await eventually(lambda: sender.snapshot().timers["timer"].scheduled > 0)
            await client.flushall()
        await sent_by.wait_for(later.id)
        await eventually(lambda: worker.snapshot().timers["timer"].failures > 0)
        assert "has lost the due times: it was flushed" in caplog.text
        await eventually(lambda: worker.snapshot().timers["timer"].connected)
        await check_everything_arrives(sender, sent_by)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["swallowed", "cut", "slow by 10 s"])
async def test_a_partition_or_a_slow_network_delays_work_until_the_next_poll_and_no_longer(
    redis_server: RedisServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_timer, "_READ_EVERY_S", 0.1)
    monkeypatch.setattr(redis_timer, "_READ_WITHIN_S", 0.3)
    sent_by = Recorder()
    with TcpProxy(redis_server.port) as proxy:

        def new_timer() -> RedisTimer:
            return RedisTimer(f"redis://127.0.0.1:{proxy.port}", timeout_ms=300)

        async with sender_and_worker(new_timer, sent_by, poll_ms=OFTEN_MS) as (sender, worker):
            if fault == "slow by 10 s":
                proxy.delay(10)
            else:
                (proxy.swallow if fault == "swallowed" else proxy.cut)()
            await check_everything_arrives(sender, sent_by)
            await eventually(lambda: not worker.snapshot().timers["timer"].connected)
            await eventually(lambda: sender.snapshot().timers["timer"].discarded > 0)
            assert worker.snapshot().timers["timer"].failures > 0
            proxy.cut()
            proxy.resume()
            await eventually(lambda: worker.snapshot().timers["timer"].connected)
            scheduled = worker.snapshot().timers["timer"].scheduled
            await check_everything_arrives(worker, sent_by)
            await eventually(lambda: worker.snapshot().timers["timer"].scheduled > scheduled)
            await check_everything_arrives(sender, sent_by)


@pytest.mark.usefixtures("_read_often")
async def test_a_suspended_redis_is_noticed(redis_server: RedisServer) -> None:
    worker = Worker(redis_server.url, timeout_ms=200)
    async with worker.listening() as task, opened(redis_server.url, timeout_ms=200) as timer:
        with redis_server.frozen():
            with pytest.raises(RedisFailure, match="does not answer within 200 ms"):
                await timer.schedule([due("a", 0)])
            with pytest.raises(RedisFailure, match="does not answer within 200 ms"):
                await task
        ahead = due("b", HOUR_MS)
        await timer.schedule([ahead])
        async with redis_server.client() as client:
            assert await client.zscore(timer.key, "b") == ahead.due_at, "afterwards it works again"


@pytest.mark.usefixtures("_read_often")
async def test_a_redis_that_evicts_keys_loses_nothing_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with skip_if_no_redis():
        server = RedisServer("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random")
    with server:
        url = server.url
        assert "deletes keys when its memory is full (allkeys-random)" in await RedisTimer(url).diagnose()
        sent_by = Recorder()
        async with sender_and_worker(lambda: RedisTimer(url), sent_by, poll_ms=OFTEN_MS) as (sender, worker):
            async with server.client() as client:
                for number in range(100_000):
                    await client.set(f"other-{number}", b"x" * 20_000)
                    if number % 20 == 0 and not await client.exists("homing:due"):
                        break
            await check_everything_arrives(sender, sent_by)
            await eventually(lambda: worker.snapshot().timers["timer"].failures > 0)
            assert "has lost the due times" in caplog.text


async def test_a_redis_without_free_memory_loses_nothing_and_is_reported() -> None:
    with skip_if_no_redis():
        server = RedisServer("--maxmemory", "1000", "--maxmemory-policy", "noeviction")
    with server:
        async with opened(server.url) as timer:
            with pytest.raises(RedisFailure, match="is out of memory"):
                await timer.schedule([due("a", HOUR_MS)])
        worker = Worker(server.url)
        async with worker.listening() as task:
            with pytest.raises(RedisFailure, match="is out of memory"):
                await task
