"""Checks the order in which a claim takes rows: by mode, tenants in turn, the oldest first (invariant 16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.notifications import Mode, mode_of
from simulation.shadow_state import SimulationState

_URGENCY = {Mode.PRIORITY: 0, Mode.STANDARD: 1, Mode.BULK: 2}

DueQueueLeft = tuple[str, str, str, int]
"""(lane, tenant, outlet, earliest due time) of a queue that still has due rows after a claim."""


def check_order(
    state: SimulationState, batch: ClaimBatch, request: ClaimRequest, left: Sequence[DueQueueLeft]
) -> None:
    """Checks a claim. `left` has the queues that still have due rows."""
    latest: dict[tuple[str, str, str], int] = {}
    turns: Counter[tuple[Mode, str, str]] = Counter()
    modes: Counter[tuple[str, Mode]] = Counter()
    lanes = Counter([claim.lane for claim in batch.claims])
    in_lanes = {(claim.lane, claim.tenant) for claim in batch.claims}
    outlets = Counter([claim.outlet for claim in batch.claims])
    twice: set[tuple[str, str]] = set()
    for claim in batch.claims:
        queue = (claim.lane, claim.tenant, claim.outlet)
        latest[queue] = max(claim.due_at, latest.get(queue, 0))
        provider = _target(request, claim.outlet)
        modes[provider, claim.mode] += 1
        turns[claim.mode, provider, claim.tenant] += 1
        if turns[claim.mode, provider, claim.tenant] > 1:
            twice.add((claim.lane, claim.outlet))
    for lane, tenant, outlet, due_at in left:
        if due_at < latest.get((lane, tenant, outlet), 0):
            state.violate("16", f"a row of {tenant} in {lane} was passed over by one that was due later")
        mode, provider = mode_of(lane), _target(request, outlet)
        has_started = turns[mode, provider, tenant] or (lane, tenant) in in_lanes
        if has_started or not _is_first(request, lane, tenant, provider):
            continue  # the tenant has something already, so that its share may be used up
        if (lane, outlet) in twice:
            state.violate("16", f"{tenant} had no turn in {lane}, while another tenant had two")
        if request.limit is not None or lanes[lane] >= request.lanes[lane].slots:
            continue
        if outlet in request.hanging or outlets[outlet] >= _outlet_slots(request, provider, outlet):
            continue
        if mode is Mode.PRIORITY and _has_free_slot(request, provider, modes):
            state.violate("16", f"the first row of {tenant} in {lane} waits, and {provider} has free slots")
        for (at, other), number in modes.items():
            if at == provider and _URGENCY[other] > _URGENCY[mode] and number > _own(request, at, other):
                state.violate("16", f"{other} rows were started at {at}, while a row in {lane} was due")


def check_chosen(state: SimulationState, batch: ClaimBatch, request: ClaimRequest) -> None:
    """Checks that a claim for one tenant, or for chosen rows, takes no others."""
    for claim in batch.claims:
        if request.tenant is not None and claim.tenant != request.tenant:
            state.violate("16", f"a row of {claim.tenant} was claimed for {request.tenant} alone", claim.id)
        if request.ids is not None and claim.id not in request.ids:
            state.violate("16", "a row was claimed that was not chosen", claim.id)


def _target(request: ClaimRequest, outlet: str) -> str:
    """Returns the provider whose capacity the rows of an outlet use."""
    provider = outlet.partition("@")[0]
    return request.stand_ins.get(provider, provider)


def _outlet_slots(request: ClaimRequest, provider: str, outlet: str) -> int:
    """Returns the free slots of an outlet, before the claim."""
    known = request.providers.get(provider)
    new = known.outlet_slots if known is not None and "@" in outlet else None
    return request.outlet_capacity.get(outlet, request.outlet_slots if new is None else new)


def _is_first(request: ClaimRequest, lane: str, tenant: str, provider: str) -> bool:
    """Returns True if the tenant has nothing in flight in this lane and in this mode at the provider."""
    if lane not in request.lanes or request.lanes[lane].held.get(tenant):
        return False
    known = request.providers.get(provider)
    return known is None or not known.held.get((mode_of(lane), tenant))


def _has_free_slot(request: ClaimRequest, provider: str, claimed: Mapping[tuple[str, Mode], int]) -> bool:
    """Returns True if a priority row could have started at this provider after the claimed rows."""
    known = request.providers.get(provider)
    if known is None:
        return False
    taken = sum(number for (at, _), number in claimed.items() if at == provider)
    reserved = sum(number for mode, number in known.reserved.items() if mode is not Mode.PRIORITY)
    return min(known.slots - reserved, known.starts) > taken


def _own(request: ClaimRequest, provider: str, mode: Mode) -> int:
    """Returns how many starts a mode may have before more urgent ones: its reserve, or what it is owed."""
    known = request.providers.get(provider)
    return 0 if known is None else max(known.reserved.get(mode, 0), known.owed.get(mode, 0))
