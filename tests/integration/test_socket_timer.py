"""A timer over real sockets wakes the worker of another engine. Without it, the worker polls."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from homing import Delivery, Homing, Outcome, OutcomeKind, Status
from homing.settings import load_settings
from support.socket_timer import SocketTimer, SocketTimerServer

EMAIL: dict[str, Any] = {"channel": "email", "subject": "Hi", "body": "Hello"}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[SocketTimerServer]:
    made = SocketTimerServer()
    await made.start()
    yield made
    await made.stop()


class Recorder:
    """A provider that records when each message was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.arrived = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Outcome:
        self.sent[delivery.notification_id] = time.time()
        self.arrived.set()
        return Outcome(OutcomeKind.ACCEPTED)

    async def wait_for(self, id: str) -> float:
        async with asyncio.timeout(20):
            while id not in self.sent:
                self.arrived.clear()
                await self.arrived.wait()
        return self.sent[id]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def sender_and_worker(
    server: SocketTimerServer, sent_by: Recorder, *, poll_ms: int
) -> AsyncIterator[tuple[Homing, Homing]]:
    """Opens an engine that only sends and one that also works, with nothing in common but store and timer."""
    settings = load_settings(flags={"store": "homing.db", "worker": {"poll_ms": poll_ms}})
    sender, worker = (
        Homing(
            providers={"p": sent_by},
            timers={"tcp": SocketTimer(server)},
            worker=works,
            loaded_settings=settings,
        )
        for works in (False, True)
    )
    async with sender, worker:
        await sent_by.wait_for((await worker.send("ada@example.org", **EMAIL)).id)  # the worker waits now
        await asyncio.sleep(0.2)
        yield sender, worker


async def test_a_worker_that_polls_every_ten_minutes_sends_what_another_engine_accepts(
    server: SocketTimerServer,
) -> None:
    sent_by = Recorder()
    async with sender_and_worker(server, sent_by, poll_ms=600_000) as (sender, _):
        due = time.time() + 0.3
        later = await sender.send("ada@example.org", send_at=timedelta(milliseconds=300), **EMAIL)
        now = await sender.send("ada@example.org", **EMAIL)
        await sent_by.wait_for(now.id)
        assert await sent_by.wait_for(later.id) >= due - 0.01


async def test_without_its_timer_a_worker_finds_everything_by_polling(server: SocketTimerServer) -> None:
    sent_by = Recorder()
    async with sender_and_worker(server, sent_by, poll_ms=200) as (sender, worker):
        await server.stop()
        ids = [(await sender.send("ada@example.org", **EMAIL)).id for _ in range(5)]
        for id in ids:
            await sent_by.wait_for(id)
        await eventually(lambda: not worker.snapshot().timers["tcp"].connected)
        await server.start()
        async with asyncio.timeout(20):
            while not worker.snapshot().timers["tcp"].connected:
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
