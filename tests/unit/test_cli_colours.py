"""The colours of the command line: one per status, outcome and breaker phase."""

from __future__ import annotations

from homing.cli.common.screen import STYLES
from homing.core.notifications import OutcomeKind, Status
from homing.core.routing.breaker import Phase


def test_every_status_outcome_and_breaker_phase_has_a_colour() -> None:
    assert {one.value for kind in (Status, OutcomeKind, Phase) for one in kind} == set(STYLES)
