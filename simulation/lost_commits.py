"""A store that loses its last commits and goes on, as after a failover to a standby that lagged behind.

What the checkers know about the store goes back with it. What has happened outside of the store does not:
processes keep their memory, providers the calls, and callers the answers.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from copy import deepcopy
from random import Random
from typing import Any

from simulation.invariants import InvariantChecker
from simulation.plan import LONGEST_LOSS_MS
from simulation.shadow_state import ShadowState, SimulationState


class StoreSnapshot:
    """The contents of the store at one moment, with what the checkers know about it."""

    def __init__(self, state: SimulationState, watch: InvariantChecker) -> None:
        self._state = state
        self._watch = watch
        self._database = sqlite3.connect(":memory:")
        watch.database.connection.backup(self._database)
        self._commits = watch.database.commits
        self._shadows = {id: shadow.copied() for id, shadow in state.shadows.items()}
        self._removed = {id: shadow.copied() for id, shadow in watch.rows.removed.items()}
        self._known = [deepcopy(getattr(owner, name)) for owner, name in _mirrors(watch)]

    def restore(self) -> None:
        """Takes the store back to this moment."""
        state, watch = self._state, self._watch
        lost = watch.database.commits - self._commits
        with closing(self._database) as database:
            database.backup(watch.database.connection)
        current = {**state.shadows, **watch.rows.removed}
        gone = current.keys() - self._shadows.keys() - self._removed.keys()
        state.lost |= gone
        watch.loss_reports.lost(gone)
        state.shadows.clear()
        state.shadows.update({id: _returned(now, current[id]) for id, now in self._shadows.items()})
        watch.rows.removed.clear()
        watch.rows.removed.update({id: _returned(now, current[id]) for id, now in self._removed.items()})
        for (owner, name), known in zip(_mirrors(watch), self._known, strict=True):
            setattr(owner, name, known)
        for id in [id for id in watch.answered if id in state.lost]:
            del watch.answered[id]
        watch.breakers.rolled_back()
        watch.events.rolled_back()
        state.rollbacks += 1
        state.rolled_back_ms = state.ms
        state.note("sim", f"the store loses its last {lost} commits")


def _mirrors(watch: InvariantChecker) -> list[tuple[Any, str]]:
    """Returns the attributes in which checkers keep what the store contains, apart from notifications."""
    return [
        (watch.counts, "_cells"),
        (watch.counts, "_purged"),
        (watch.counts, "_goals"),
        (watch.requests, "_keys"),
        (watch.requests, "_dedups"),
        (watch.directory, "_filed"),
        (watch.events, "_sinks"),
        (watch.events, "_expected"),
        (watch.workers, "_seen_at"),
        (watch, "_breakers"),
        (watch, "receipts"),
    ]


def _returned(before: ShadowState, now: ShadowState) -> ShadowState:
    """Returns the expected state of a notification after the loss.

    One that has not changed since keeps its state. The processes know more about any other than the store.
    """
    if before.touched == now.touched:
        return now
    before.rolled_back = True
    return before


async def lose_commits(state: SimulationState, watch: InvariantChecker, *, noticed: bool) -> None:
    """Takes the store back to an earlier state at random times, until cancelled.

    If `noticed`, the store has another identity afterwards.
    """
    rng = Random(f"{state.plan.seed}/lost commits")
    while True:
        await asyncio.sleep(round(rng.expovariate(1 / state.plan.fault_plan.lost_commits_every_ms)) / 1000)
        snapshot = StoreSnapshot(state, watch)
        await asyncio.sleep(rng.choice((5, 50, 500, 2_000, LONGEST_LOSS_MS)) / 1000)
        snapshot.restore()
        if noticed:
            watch.database.history = f"after loss {state.rollbacks}"
