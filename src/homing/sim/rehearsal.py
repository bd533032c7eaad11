"""Rehearses an outage: the engine's own code on virtual time over the memory store.

`homing policy simulate` is this. The answer is not a model of the engine: it is the engine. The same
rehearsal gives the same report.
"""

from __future__ import annotations

from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.sim.rehearsal_report import report_of
from homing.sim.rehearsal_run import run_rehearsal


def rehearse(rehearsal: Rehearsal) -> RehearsalReport:
    """Runs the rehearsal and reports. It takes no wall-clock waiting: hours pass in seconds.

    Must not be called from a running event loop: it runs one of its own (`sim.apart` is for there).
    """
    return report_of(rehearsal, run_rehearsal(rehearsal))
