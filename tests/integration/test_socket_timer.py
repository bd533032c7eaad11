"""A timer over real sockets wakes the worker of another engine. Without it, the worker polls."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from homing import Homing, Status
from support.socket_timer import SocketTimer, SocketTimerServer
from support.timed_engines import EMAIL, Recorder, eventually, sender_and_worker


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[SocketTimerServer]:
    made = SocketTimerServer()
    await made.start()
    yield made
    await made.stop()


async def test_a_worker_that_polls_every_ten_minutes_sends_what_another_engine_accepts(
    server: SocketTimerServer,
) -> None:
    sent_by = Recorder()
    async with sender_and_worker(lambda: SocketTimer(server), sent_by, poll_ms=600_000) as (sender, _):
        due = time.time() + 0.3
        later = await sender.send("ada@example.org", send_at=timedelta(milliseconds=300), **EMAIL)
        now = await sender.send("ada@example.org", **EMAIL)
        await sent_by.wait_for(now.id)
        assert await sent_by.wait_for(later.id) >= due - 0.01


async def test_without_its_timer_a_worker_finds_everything_by_polling(server: SocketTimerServer) -> None:
    sent_by = Recorder()
    async with sender_and_worker(lambda: SocketTimer(server), sent_by, poll_ms=200) as (sender, worker):
        await server.stop()
        ids = [(await sender.send("ada@example.org", **EMAIL)).id for _ in range(5)]
        for id in ids:
            await sent_by.wait_for(id)
        await eventually(lambda: not worker.snapshot().timers["timer"].connected)
        await server.start()
        async with asyncio.timeout(20):
            while not worker.snapshot().timers["timer"].connected:
                await worker.send("ada@example.org", **EMAIL)
                await asyncio.sleep(0.1)
        assert {(await sender.get(id)).status for id in ids} == {Status.SENT}


async def test_a_send_that_joins_a_transaction_gives_no_hint_before_the_commit(
    server: SocketTimerServer,
) -> None:
    connection = sqlite3.connect("homing.db", timeout=60)
    async with Homing("homing.db", timers={"tcp": SocketTimer(server)}) as sender:
        await sender.send("ada@example.org", connection=connection, **EMAIL)
        connection.rollback()
        kept = await sender.send("ada@example.org", **EMAIL)
    await eventually(lambda: bool(server.received))
    assert [one.id for one in server.received] == [kept.id]
    connection.close()
