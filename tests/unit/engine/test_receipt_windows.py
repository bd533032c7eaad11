"""Which counts the monitor of receipts uses, after each of its checks."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from homing.core.notifications import Channel
from homing.core.routing.receipt_health import ReceiptHealthPolicy
from homing.core.statistics import RollUp
from homing.engine.receipts.receipt_monitor import ReceiptMonitor

MINUTE = 60_000
HOUR = 60 * MINUTE
START = 500_000 * HOUR


class Counts:
    """A store that has counted bounces of one provider, and a breaker that notes when it is opened."""

    def __init__(self, **policy: Any) -> None:
        self.now = START
        self.bounces: dict[int, int] = {}
        self.opened: list[str] = []
        roster: Any = [SimpleNamespace(id="post")]
        here: Any = self
        rules = ReceiptHealthPolicy(bad_of=10, **policy)
        self.monitor = ReceiptMonitor(backend=here, roster=roster, breakers=here, policy=rules)

    async def now_ms(self) -> int:
        return self.now

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> list[RollUp]:
        first = (self.now - since_ms) // HOUR * HOUR
        return [
            RollUp(
                hour_at=datetime.fromtimestamp(hour / 1000, UTC),
                tenant="default",
                channel=Channel.EMAIL,
                provider="post",
                sent=number,
                bounced=number,
            )
            for hour, number in self.bounces.items()
            if hour >= first
        ]

    async def refresh(self, *, at_once: bool) -> None:
        pass

    def state(self, provider: str) -> Any:
        return SimpleNamespace(changed_at=0)

    async def trip(self, provider: str, why: str, pause_ms: int) -> None:
        self.opened.append(why)

    async def check_after(self, duration_ms: int, *, bounces: int = 0, at_ms: int = 0) -> None:
        """Lets `bounces` happen after `at_ms`, and checks after `duration_ms`."""
        hour = (self.now + at_ms) // HOUR * HOUR
        self.bounces[hour] = self.bounces.get(hour, 0) + bounces
        self.now += duration_ms
        await self.monitor.check()


async def test_what_bounced_since_the_last_check_counts_in_a_window_that_begins_there() -> None:
    counts = Counts(window_ms=MINUTE)
    await counts.check_after(0)
    await counts.check_after(MINUTE, bounces=12)
    assert len(counts.opened) == 1


async def test_what_bounced_at_the_end_of_the_last_hour_counts() -> None:
    counts = Counts(window_ms=15 * MINUTE)
    await counts.check_after(59 * MINUTE)
    await counts.check_after(2 * MINUTE, bounces=12)
    assert len(counts.opened) == 1


async def test_what_bounced_in_a_gap_longer_than_the_window_does_not_count() -> None:
    """Another worker has led meanwhile, so the times of the bounces are unknown."""
    counts = Counts(window_ms=15 * MINUTE)
    await counts.check_after(0)
    await counts.check_after(16 * MINUTE, bounces=12)
    assert counts.opened == []
