"""Checks that a claim takes rows in their order and that tenants take turns (invariant 16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from simulation.shadow_state import SimulationState


def check_turns(
    state: SimulationState,
    batch: ClaimBatch,
    request: ClaimRequest,
    left: Sequence[tuple[str, str, str, int]],
) -> None:
    """Checks a claim. `left` has the queues that still have due rows, with the earliest due time of each."""
    latest: dict[tuple[str, str, str], int] = {}
    served: Counter[tuple[str, str]] = Counter()
    twice: set[tuple[str, str]] = set()
    for claim in batch.claims:
        queue = (claim.lane, claim.tenant, claim.outlet)
        latest[queue] = max(claim.due_at, latest.get(queue, 0))
        served[claim.lane, claim.tenant] += 1
        if served[claim.lane, claim.tenant] > 1:
            twice.add((claim.lane, claim.outlet))
    for lane, tenant, outlet, due_at in left:
        if due_at < latest.get((lane, tenant, outlet), 0):
            state.violate("16", f"a row of {tenant} in {lane} was passed over by one that was due later")
        capacity = request.lanes[lane].tenant_capacity.get(tenant, 1) if lane in request.lanes else 0
        if capacity > 0 and (lane, outlet) in twice and not served[lane, tenant]:
            state.violate("16", f"{tenant} had no turn in {lane}, while another tenant had two")
