"""Checks how long after its due time a row is claimed. This is a part of invariant 18."""

from __future__ import annotations

from homing.core.lifecycle.claims import ClaimBatch
from simulation.shadow_state import SimulationState


def check_lateness(state: SimulationState, batch: ClaimBatch) -> None:
    """Checks that a claim comes at most a poll interval after the due time (invariant 18).

    Applies only to plans whose capacity suffices at any time, and without faults that delay a claim.
    """
    if (longest_ms := state.plan.max_lateness_ms) is None:
        return
    for claim in batch.claims:
        if (late_ms := batch.now - claim.due_at) > longest_ms and not claim.overdue:
            state.violate("18", f"claimed {late_ms} ms after it was due", claim.id)
