"""Rehearses an outage by running the real engine on virtual time over the memory store.

This is what `homing policy simulate` runs. The same rehearsal always gives the same report.
"""

from __future__ import annotations

from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.sim.rehearsal_report import report_of
from homing.sim.rehearsal_run import run_rehearsal


def rehearse(rehearsal: Rehearsal) -> RehearsalReport:
    """Runs the rehearsal and returns its report. Hours of virtual time take seconds.

    Must not be called from a running event loop, because it runs its own. Use `rehearse_apart` there.
    """
    return report_of(rehearsal, run_rehearsal(rehearsal))
