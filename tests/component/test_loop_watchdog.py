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
    """Collects the warnings of the watchdog, which come from another thread.

    On a busy machine, the loop may stand still at other moments too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blaming: dict[str, list[str]] = {"provider pager": [], "code outside of a provider": []}
        """What is blamed → the texts."""
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            for blamed, texts in self.blaming.items():
                if f" by {blamed};" in record.getMessage():
                    texts.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, blamed: str) -> bool:
        """Blocks until something is blamed."""
        with self._changed:
            return self._changed.wait_for(lambda: self.blaming[blamed], 60) != []


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler, logger = Reports(), logging.getLogger("homing.watchdog")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_an_async_function_that_blocks_is_named(reports: Reports) -> None:
    async def blocking_pager(delivery: Delivery) -> None:
        assert reports.wait_for("provider pager")  # blocks the loop until the watchdog has noticed

    async with Homing("memory:", providers={"pager": blocking_pager}) as homing:
        homing._watchdog = LoopWatchdog(blocked_ms=50)
        homing.start_worker()
        sent = await homing.send("ada@example.org", channel="email", body="x")
        await homing.wait(sent.id)
    text = reports.blaming["provider pager"][0]
    assert "blocking_pager" in text
    assert "ada@example.org" not in text


async def test_other_code_that_blocks_is_shown(reports: Reports) -> None:
    watchdog = LoopWatchdog(blocked_ms=50)
    watchdog.start()
    assert reports.wait_for("code outside of a provider")
    watchdog.stop()
