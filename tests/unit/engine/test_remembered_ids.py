"""Which acknowledged ids a process looks up after the history of its store has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from homing.core.lifecycle.claims import Acceptance
from homing.core.ports.stores import Retention
from homing.engine.upkeep.lost_commits import LostCommits


class Store:
    """The parts of a store that a report needs."""

    def __init__(self) -> None:
        self.history = "first"
        self.looked_up: list[str] = []

    async def find_missing(self, ids: Sequence[str]) -> set[str]:
        self.looked_up += ids
        return set()

    async def now_ms(self) -> int:
        return FixedClock().now_ms()

    async def get_many(self, tenant: str, kind: str, keys: Sequence[str]) -> dict[str, Any]:
        """Returns that nothing was purged."""
        return {}


class FixedClock:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 1_000_000


def make_lost_commits(store: Any) -> LostCommits:
    clock: Any = FixedClock()
    alerts: Any = None
    lost_commits = LostCommits(store, clock, alerts, Retention())
    lost_commits.begin()
    return lost_commits


async def until_reported() -> None:
    while others := [task for task in asyncio.all_tasks() if task.get_name() == "homing-lost-commits"]:
        await asyncio.gather(*others)


async def test_ids_are_looked_up_if_the_history_changed_before_they_were_acknowledged() -> None:
    """The change may have been noticed after their commit."""
    store = Store()
    lost_commits = make_lost_commits(store)
    store.history = "second"
    lost_commits.acknowledged([Acceptance(batch_id="b", ids=("n-1",))])
    await until_reported()
    assert store.looked_up == ["n-1"]


async def test_repeated_requests_use_no_memory() -> None:
    lost_commits = make_lost_commits(Store())
    repeated = Acceptance(batch_id="b", ids=("n-1",), duplicates=frozenset({"n-1"}))
    for _ in range(3):
        lost_commits.acknowledged([repeated, Acceptance(batch_id="c", ids=(), conflict=True)])
    assert not lost_commits._acknowledged
