"""How much is measured, and the ground that all parts share."""

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
    """Of everything that is compared; they take turns."""
    singles: int
    concurrent: int
    many: int
    """Requests of each round: one by one, by 64 callers, by `send_many`."""
    deliveries: int
    due: int
    due_within_s: float
    lead_s: float
    """For lateness: so many become due within that time, the first of them after the lead, by when everything
    is accepted."""
    backlog: int
    """Waiting meanwhile."""
    callbacks: int
    idle_s: float
    starts: int
    costs: tuple[int, ...]
    """Sizes of the store between which what a notification costs it is compared; (): not compared."""


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
    """One store that is measured, by one plan, with one sink."""

    server: str
    plan: Plan
    sink: Sink
    step: Tell
    """Called before each step of the work, with its name."""
    note: Tell
    """For what is left out."""

    @property
    def postgres(self) -> bool:
        return is_postgres(self.server)

    @property
    def store(self) -> str:
        return "PostgreSQL" if self.postgres else "SQLite"

    async def in_turns(
        self, part: str, contestants: Mapping[str, Callable[[], Awaitable[_T]]], rounds: int | None = None
    ) -> dict[str, tuple[_T, ...]]:
        """Each of them once, then each again: what else the machine does weighs on all of them."""
        found: dict[str, list[_T]] = {name: [] for name in contestants}
        for number in range(rounds or self.plan.rounds):
            for name, contestant in contestants.items():
                self.step(f"{part}: {name}, round {number + 1}")
                found[name].append(await contestant())
        return {name: tuple(values) for name, values in found.items()}
