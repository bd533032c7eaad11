"""Checks the list of workers against the heartbeats that were committed (invariant 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homing.core.ports.stores import DEAD_AFTER_MS, FORGOTTEN_AFTER_MS, HEARTBEAT_MS, SeenWorker
from simulation.shadow_state import SimulationState


class WorkerChecker:
    """Records the heartbeats of all workers, and checks which workers are listed as live."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._seen_at: dict[str, int] = {}
        """Worker → store time of its last heartbeat. Workers that have stopped are not included."""

    def seen(self, name: str) -> None:
        """Records a heartbeat."""
        self._seen_at[name] = self._state.now

    def gone(self, name: str) -> None:
        """Records that a worker has stopped."""
        self._seen_at.pop(name, None)

    def forgotten(self) -> None:
        """Records that workers which have not been seen for a day were removed.

        A process that starts while no other one runs believes a clock that was set forward by a day. If
        another one finds the step later, the store's time goes back, but the removed workers stay removed.
        """
        since = self._state.now - FORGOTTEN_AFTER_MS
        self._seen_at = {name: seen_at for name, seen_at in self._seen_at.items() if seen_at > since}

    def check(self, listed: Sequence[SeenWorker], working_ms: Mapping[str, int]) -> None:
        """Checks the stored workers.

        `working_ms` contains the workers that run now, with the time since the run began at which each was
        started. Without faults, all of them send heartbeats.
        """
        now = self._state.now
        live = {worker.name for worker in listed if worker.is_live(now)}
        for name in sorted(live):
            if now - self._seen_at.get(name, 0) >= DEAD_AFTER_MS:
                self._state.violate("20", f"{name} is listed as live, but has stopped or died")
        for name, seen_at in self._seen_at.items():
            if now - seen_at < DEAD_AFTER_MS and name not in live:
                self._state.violate("20", f"{name} has sent a heartbeat, but is not listed as live")
        quiet_ms = self._state.quiet_since_ms
        if quiet_ms is None or self._state.ms - self._state.accepted_ms < 2 * HEARTBEAT_MS:
            return  # after a jump was accepted, the heartbeats from before look old or lie in the future
        for name, since_ms in working_ms.items():
            faultless_ms = self._state.ms - max(since_ms, quiet_ms)
            if faultless_ms > DEAD_AFTER_MS and name not in live:
                self._state.violate("20", f"{name} works, but is not listed as live")
