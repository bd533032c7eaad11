"""The colours of the command line: one per status, outcome, breaker phase and state of a worker."""

from __future__ import annotations

from homing.cli.common.screen import STYLES
from homing.core.notifications import OutcomeKind, Status
from homing.core.routing.breaker import Phase
from homing.core.system_status import WorkerState


def test_every_status_outcome_breaker_phase_and_worker_state_has_a_colour() -> None:
    assert {one.value for kind in (Status, OutcomeKind, Phase, WorkerState) for one in kind} == set(STYLES)
