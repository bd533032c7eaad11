"""The sizes of a benchmark run, and the context that all parts share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from homing.benching.arena import is_postgres
from homing.benching.sink import Sink

_T = TypeVar("_T")
Tell = Callable[[str], None]


class Plan(Struct, frozen=True, kw_only=True):
    """The sizes of a run."""

    form: str
    rounds: int
    """Number of rounds. Compared measurements alternate within each round."""
    singles: int
    """Requests per round from one caller."""
    concurrent: int
    """Requests per round from 64 callers."""
    many: int
    """Requests per round through `send_many`."""
    deliveries: int
    """Notifications delivered per round."""
    due: int
    """Scheduled notifications per round, to measure lateness."""
    due_within_s: float
    """Time span over which they become due."""
    lead_s: float
    """Time before the first of them is due, so that all are accepted by then."""
    backlog: int
    """Notifications that wait in the store during the second lateness measurement."""
    callbacks: int
    """Callbacks per round."""
    idle_s: float
    """Duration of the idle measurement."""
    starts: int
    """Number of worker starts."""
    costs: tuple[int, ...]
    """Store sizes for which the cost per notification is compared. Empty to skip the comparison."""


QUICK = Plan(
    form="quick",
    rounds=2,
    singles=200,
    concurrent=2_000,
    many=5_000,
    deliveries=4_000,
    due=500,
    due_within_s=5,
    lead_s=3,
    backlog=20_000,
    callbacks=1_000,
    idle_s=4,
    starts=3,
    costs=(),
)
LONG = Plan(
    form="long",
    rounds=5,
    singles=1_000,
    concurrent=10_000,
    many=50_000,
    deliveries=20_000,
    due=2_000,
    due_within_s=20,
    lead_s=3,
    backlog=1_000_000,
    callbacks=10_000,
    idle_s=30,
    starts=5,
    costs=(10_000, 1_000_000),
)


class Stage(Struct, frozen=True, kw_only=True):
    """Context of one measurement: the store server, the plan, the sink and progress callbacks."""

    server: str
    plan: Plan
    sink: Sink
    step: Tell
    """Called before each step, with its name."""
    note: Tell
    """Called with a remark about anything that is skipped."""

    @property
    def postgres(self) -> bool:
        return is_postgres(self.server)

    @property
    def store(self) -> str:
        return "PostgreSQL" if self.postgres else "SQLite"

    async def in_turns(
        self, part: str, contestants: Mapping[str, Callable[[], Awaitable[_T]]], rounds: int | None = None
    ) -> dict[str, tuple[_T, ...]]:
        """Runs all contestants once per round, so that other load on the machine affects all alike."""
        found: dict[str, list[_T]] = {name: [] for name in contestants}
        for number in range(rounds or self.plan.rounds):
            for name, contestant in contestants.items():
                self.step(f"{part}: {name}, round {number + 1}")
                found[name].append(await contestant())
        return {name: tuple(values) for name, values in found.items()}
