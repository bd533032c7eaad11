"""A synchronous send against a store that is really locked: it ends in time, and nothing is sent later."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from homing import DeliveryTimeout, Homing, Reason, Status
from homing.core.notifications import Filter
from homing.core.ports.providers import Delivery
from support.running_service import RunningService

Lock = Callable[[], AbstractAsyncContextManager[None]]


class LockableStore:
    """The address of a store, and a way to lock it like another program would."""

    def __init__(self, address: str, lock: Lock) -> None:
        self.address = address
        self.lock = lock


@pytest.fixture(params=["sqlite", "postgres"])
def lockable(request: pytest.FixtureRequest, tmp_path: Path) -> LockableStore:
    if request.param == "sqlite":
        path = tmp_path / "homing.db"

        @asynccontextmanager
        async def lock_file() -> AsyncIterator[None]:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")
                connection.close()

        return LockableStore(str(path), lock_file)
    url: str = request.getfixturevalue("postgres_url")

    @asynccontextmanager
    async def lock_table() -> AsyncIterator[None]:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute("LOCK TABLE homing.live, homing.messages IN ACCESS EXCLUSIVE MODE")
                yield
        finally:
            await connection.close()

    return LockableStore(url, lock_table)


class Mailbox:
    """Counts what is sent, and may lock the store while it sends."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.while_sending: Callable[[], Any] | None = None

    async def __call__(self, delivery: Delivery) -> str:
        self.sent.append(delivery.notification_id)
        if self.while_sending is not None:
            await self.while_sending()
        return "m-1"


async def _all(homing: Homing) -> list[Any]:
    return list((await homing.list(Filter())).items)


async def _until_failed(homing: Homing) -> Any:
    """Waits until the one notification, which may not be stored yet, has ended."""
    for _ in range(6_000):
        if found := await _all(homing):
            return await homing.wait(found[0].id, timeout_ms=60_000)
        await asyncio.sleep(0.01)
    raise TimeoutError("nothing was stored")


async def test_a_locked_store_is_a_timeout_and_what_is_stored_later_has_timed_out(
    lockable: LockableStore,
) -> None:
    mailbox = Mailbox()
    async with Homing(lockable.address, providers={"mail": mailbox}, worker=True) as homing:
        async with lockable.lock():
            with pytest.raises(DeliveryTimeout) as caught:  # the answer comes while the lock is held
                await homing.send("a@example.org", channel="email", body="x", synchronous=True)
            assert caught.value.code == "DELIVERY_TIMEOUT"
            assert mailbox.sent == []
        done = await _until_failed(homing)
        assert (done.status, done.reason) == (Status.FAILED, Reason.DELIVERY_TIMEOUT)
        assert mailbox.sent == []
    async with Homing(lockable.address, providers={"mail": mailbox}, worker=True) as again:
        await again.process()
        assert [one.status for one in await _all(again)] == [Status.FAILED]
    assert mailbox.sent == []


async def test_a_store_that_is_locked_after_the_attempt_is_a_timeout_and_the_record_is_true(
    lockable: LockableStore,
) -> None:
    mailbox, held = Mailbox(), asyncio.Event()
    async with Homing(lockable.address, providers={"mail": mailbox}) as homing:
        release = asyncio.Event()

        async def hold() -> None:
            async with lockable.lock():
                held.set()
                await release.wait()

        holder = None

        async def lock_now() -> None:
            nonlocal holder
            holder = asyncio.create_task(hold())
            await held.wait()

        mailbox.while_sending = lock_now
        with pytest.raises(DeliveryTimeout) as caught:
            await homing.send("a@example.org", channel="email", body="x", synchronous=True)
        assert not release.is_set()
        release.set()
        assert holder is not None
        await holder
        done = await homing.wait(caught.value.notification_id, timeout_ms=60_000)
        assert (done.status, done.provider_message_ids) == (Status.SENT, ("m-1",))
    assert len(mailbox.sent) == 1


async def test_closing_records_what_timed_out(lockable: LockableStore) -> None:
    mailbox = Mailbox()
    homing = Homing(lockable.address, providers={"mail": mailbox})
    await homing.open()
    async with lockable.lock():
        with pytest.raises(DeliveryTimeout):
            await homing.send("a@example.org", channel="email", body="x", synchronous=True)
        closing = asyncio.create_task(homing.close())
        await asyncio.sleep(0)
    await closing
    async with Homing(lockable.address, providers={"mail": mailbox}) as again:
        assert {(one.status, one.reason) for one in await _all(again)} <= {
            (Status.FAILED, Reason.DELIVERY_TIMEOUT)
        }
    assert mailbox.sent == []


def test_the_service_answers_504_while_the_store_is_locked(
    tmp_path: Path, serve: Callable[..., RunningService]
) -> None:
    mailbox, path = Mailbox(), tmp_path / "homing.db"
    service = serve(store=path, providers={"mail": mailbox})
    request = {
        "recipient": {"email": "a@example.org"},
        "channel": "email",
        "content": {"body": "x"},
        "synchronous": True,
    }
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    reply = service.call("POST", "/api/v1/notifications/send", request)
    connection.execute("ROLLBACK")  # the answer came before
    connection.close()
    assert (reply.status, reply.json["error"]["code"]) == (504, "DELIVERY_TIMEOUT")
    done = service.on_loop(_until_failed)
    assert (done.status, done.reason) == (Status.FAILED, Reason.DELIVERY_TIMEOUT)
    assert mailbox.sent == []
