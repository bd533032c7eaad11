"""Checks which lost notifications each process reports (invariant 26)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from homing.core.lifecycle.claims import Acceptance
from homing.core.lifecycle.events import Event
from simulation.shadow_state import SimulationState

_REMEMBERED_MS = 600_000
"""Time for which a process remembers the ids that it has acknowledged."""

_REPORTED_WITHIN_MS = 60_000
"""Time in which a process that runs without faults notices a loss and reports it."""

_MAX_IDS = 100
"""Maximum number of ids in an alert."""


class LossReportChecker:
    """Records what each process has acknowledged, and compares it with what the process reports as lost."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._acknowledged: dict[str, dict[str, int]] = {}
        """Process → id of a notification that it has acknowledged first → loop time."""
        self._lost_ms: dict[str, int] = {}
        """Id of a lost notification → loop time of the loss."""
        self._reported: dict[str, set[str]] = {}
        """Process → ids that it has reported."""
        self._shortened: set[str] = set()
        """Processes with a report of more ids than an alert has room for."""

    def acknowledged(self, process: str, answers: Sequence[Acceptance]) -> None:
        """Records that a process has got these answers of the store."""
        known = self._acknowledged.setdefault(process, {})
        for answer in answers:
            known.update((id, self._state.ms) for id in answer.ids if id not in answer.duplicates)

    def lost(self, ids: Iterable[str]) -> None:
        """Records that the store has lost these notifications."""
        self._lost_ms.update(dict.fromkeys(ids, self._state.ms))

    def emitted(self, process: str, events: Sequence[Event]) -> None:
        """Checks reports that the process knows to be stored: each lost notification is reported once."""
        for event in events:
            if event.payload.get("alert") != "NotificationsLost":
                continue
            ids, reported = event.payload["notificationIds"], self._reported.setdefault(process, set())
            if len(ids) != min(event.payload["lost"], _MAX_IDS):
                self._state.violate("26", f"a report of {event.payload['lost']} has {len(ids)} ids")
            for id in ids:
                if id in reported:
                    self._state.violate("26", f"{process} reported it twice as lost", id)
            reported.update(ids)
            if event.payload["lost"] > _MAX_IDS:
                self._shortened.add(process)
            if process not in self._shortened:
                self._check_whole(process, ids)

    def _check_whole(self, process: str, ids: Sequence[str]) -> None:
        """Checks that a report has everything that the same losses took from the process."""
        if self._may_purge_remembered():
            return
        losses = {self._lost_ms[id] for id in ids if id in self._lost_ms}
        for id, acknowledged_ms in self._acknowledged[process].items():
            lost_ms = self._lost_ms.get(id, -1)
            remembered = acknowledged_ms < lost_ms < acknowledged_ms + _REMEMBERED_MS
            if lost_ms in losses and remembered and id not in self._reported[process]:
                self._state.violate("26", f"{process} left it out of its report of the same loss", id)

    def check_complete(self, workers: Mapping[str, int], stored: Mapping[str, object]) -> None:
        """Checks that these workers have reported what they know to be lost.

        `workers` says since when each has run without a pause. `stored` has the notifications that exist.
        """
        now_ms = self._state.ms
        if not self._state.plan.fault_plan.lost_commits_are_noticed or self._may_purge_remembered():
            return
        for process, since_ms in workers.items():
            missing = self._acknowledged.get(process, {}).keys() - self._reported.get(process, set())
            for id in sorted(missing & self._lost_ms.keys() - stored.keys()):
                lost_ms, acknowledged_ms = self._lost_ms[id], self._acknowledged[process][id]
                has_time = now_ms - max(lost_ms, since_ms) > _REPORTED_WITHIN_MS
                remembered = acknowledged_ms < lost_ms and now_ms - acknowledged_ms < _REMEMBERED_MS
                if has_time and remembered and process not in self._shortened:
                    self._state.violate("26", f"{process} has not reported that it is lost", id)

    def _may_purge_remembered(self) -> bool:
        """Returns True if a notification may be purged while a process remembers its id."""
        kept = self._state.plan.retention
        return min(kept.delivered_ms, kept.sent_ms, kept.others_ms) < _REMEMBERED_MS
