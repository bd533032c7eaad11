"""The watchdog names the provider whose code blocks the event loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from homing import Homing
from homing.core.ports.providers import Delivery
from homing.engine.delivery.loop_watchdog import LoopWatchdog


class Reports(logging.Handler):
    """Collects the warnings of the watchdog, which come from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.came.set()


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler, logger = Reports(), logging.getLogger("homing.watchdog")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_an_async_function_that_blocks_is_named(reports: Reports) -> None:
    async def blocking_pager(delivery: Delivery) -> None:
        assert reports.came.wait(60)  # blocks the loop until the watchdog has noticed

    async with Homing("memory:", providers={"pager": blocking_pager}) as homing:
        homing._watchdog = LoopWatchdog(blocked_ms=50)
        homing.start_worker()
        sent = await homing.send("ada@example.org", channel="email", body="x")
        await homing.wait(sent.id)
    named = [text for text in reports.texts if "by provider pager" in text]
    assert len(named) == 1
    assert "blocking_pager" in named[0]
    assert "ada@example.org" not in named[0]


async def test_other_code_that_blocks_is_shown(reports: Reports) -> None:
    watchdog = LoopWatchdog(blocked_ms=50)
    watchdog.start()
    assert reports.came.wait(60)
    watchdog.stop()
    assert "by code outside of a provider" in reports.texts[0]
