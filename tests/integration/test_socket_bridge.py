"""A bridge over real sockets: nothing is lost or doubled when the broker goes, and a stop is clean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from homing import Homing
from support.socket_broker import SocketBridge, SocketBroker

MAIL = msgspec.json.encode({"recipient": "ada@example.org", "channel": "email", "content": {"body": "Hi"}})


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("homing.engine.intake.bridges._FIRST_PAUSE_MS", 20)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[SocketBroker]:
    made = SocketBroker()
    await made.start()
    yield made
    await made.stop()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_messages_are_stored_and_acknowledged_and_bad_ones_are_rejected(broker: SocketBroker) -> None:
    bridge = SocketBridge(broker)
    async with Homing("homing.db", bridges={"tcp": bridge}) as homing:
        homing.bridges.start()
        good, bad, incomplete = broker.publish(MAIL), broker.publish(b"{"), broker.publish(b"{}")
        await eventually(lambda: len(broker.acknowledged) == 3)
        assert len((await homing.list()).items) == 1
        assert set(bridge.rejected) == {bad, incomplete}
        assert good in broker.acknowledged
        assert (await homing.readiness()).bridges == {"tcp": "ok"}


async def test_a_broker_that_goes_and_comes_back_loses_and_doubles_nothing(broker: SocketBroker) -> None:
    async with Homing("homing.db", bridges={"tcp": SocketBridge(broker)}) as homing:
        homing.bridges.start("tcp")
        for _ in range(5):
            for _ in range(40):
                broker.publish(MAIL)
            await asyncio.sleep(0.02)
            await broker.stop()
            await broker.start()
        await eventually(lambda: len(broker.acknowledged) >= 200 and not broker.ready)
        assert len((await homing.list(limit=1_000)).items) == 200


async def test_a_closed_engine_leaves_the_rest_on_the_broker(broker: SocketBroker) -> None:
    async with Homing("homing.db", bridges={"tcp": SocketBridge(broker)}) as homing:
        homing.bridges.start()
        broker.publish(MAIL)
        await eventually(lambda: len(broker.acknowledged) == 1)
    later = broker.publish(MAIL)
    await eventually(lambda: later in broker.ready)
    assert broker.delivered == 1
