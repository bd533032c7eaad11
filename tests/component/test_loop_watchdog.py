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


def test_a_process_that_was_suspended_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the watchdog is suspended too, so it wakes late."""
    watchdog, now_s, waits_s = LoopWatchdog(blocked_ms=1_000), 0.0, [0.5, 0.5, 3600.0, 0.5]
    reported: list[float] = []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            if not waits_s:
                return True
            if waits_s[0] < 1:  # the loop is alive before and after the suspension
                watchdog._alive_at = now_s
            now_s += waits_s.pop(0)
            return False

    monkeypatch.setattr("homing.engine.delivery.loop_watchdog.time.monotonic", lambda: now_s)
    monkeypatch.setattr(watchdog, "_report", lambda blocked_s, frame: reported.append(blocked_s))
    watchdog._watch(threading.get_ident(), Waits())
    assert reported == []
