"""Final checks: nothing is lost, everything has ended, and the records add up.

Invariant numbers are those in docs/explanation/simulation.md. This module checks 2, 11, 12 and 14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from homing.core.lifecycle.receipt_decision import attempt_of
from homing.core.lifecycle.receipts import Receipt
from homing.core.notifications import Status
from homing.core.routing.breaker import Phase
from simulation.checkers.receipts import ReceiptTrial
from simulation.database import SimulatedDatabase
from simulation.shadow_state import ShadowState, SimulationState

GRACE_MS = 240_000
"""Longest time that a row may stay overdue once there are no more faults. Rates and breakers extend it."""

_TRIAL_MS = 40_000
"""Time between the trials of a provider that is slower than the timeouts. Each row waits for its turn."""

_MAX_CHANGES = 60

_SAMPLED_MESSAGES = 40


def check_progress(state: SimulationState, database: SimulatedDatabase) -> None:
    """Checks that, without faults, no row stays overdue or changes endlessly (invariant 14)."""
    if state.quiet_since_ms is None or state.ms - state.quiet_since_ms < GRACE_MS:
        return
    rates = [provider.rate.per_second for provider in state.plan.providers if provider.rate is not None]
    live = database.live()
    tried = {provider for provider, one in database.breakers().items() if one.phase is not Phase.CLOSED}
    backlog = max(state.quiet_backlog, len(live))
    patience_ms = GRACE_MS + (int(1000 * backlog / min(rates)) if rates else 0)
    for row in live:
        shadow = state.shadows[row.id]
        due_at = row.due_at if row.due_at is not None else row.lease_until
        late_ms = min(
            state.now - (due_at or 0),
            state.ms - shadow.changed_ms,
            state.ms - state.quiet_since_ms,
            state.ms - state.accepted_ms,  # it may be due only since processes believe a jump
        )
        if late_ms > patience_ms + (_TRIAL_MS * backlog if row.provider in tried else 0):
            state.violate("14", f"{row.status}, and unchanged although overdue by {late_ms} ms", row.id)
        if shadow.quiet_changes > _MAX_CHANGES:
            state.violate("14", f"{row.status}, and not final after {shadow.quiet_changes} changes", row.id)


def check_end(
    state: SimulationState,
    database: SimulatedDatabase,
    answered: Mapping[str, str],
    removed: Mapping[str, ShadowState],
    receipts: Mapping[tuple[str, str], dict[str, Receipt]],
) -> None:
    """Checks all notifications after the end of the run."""
    named: dict[str, list[Receipt]] = {}
    for receipt in (r for received in receipts.values() for r in received.values()):
        if receipt.notification_id is not None:
            named.setdefault(receipt.notification_id, []).append(receipt)
    for id in answered:
        if id not in removed and database.find_row(id) is None:
            state.violate("2", "reported as accepted, but missing", id)
    for shadow in state.shadows.values():
        if shadow.status in (Status.PENDING, Status.RETRYING, Status.SENDING):
            state.violate("14", f"still {shadow.status} at the end of the run", shadow.id)
        _check_record(state, database, shadow)
        _check_receipts(state, database, shadow, receipts, named.get(shadow.id, ()))
    _check_orders(state, receipts)


def _check_record(state: SimulationState, database: SimulatedDatabase, shadow: ShadowState) -> None:
    """Checks that the stored history equals the committed one and ends with the row's status.

    This is invariant 12.
    """
    kept = database.find(shadow.id)
    if kept is None:
        state.violate("2", "missing, but not purged", shadow.id)
    attempts = [f"attempt {a.number}" for a in kept.attempts]
    causes = [f"{c.kind} {c.name}" for c in kept.causes]
    logged_attempts = [what for what, _, _ in shadow.log if what.startswith("attempt")]
    logged_causes = [what for what, _, _ in shadow.log if not what.startswith("attempt")]
    if attempts != logged_attempts or causes != logged_causes:
        state.violate("12", f"stored {attempts} {causes}, but committed {shadow.log}", shadow.id)
    status = Status.PENDING
    for what, before, after in shadow.log:
        waits = status in (Status.PENDING, Status.RETRYING)
        fits = before is status or (waits and before in (Status.SENDING, Status.PENDING, Status.RETRYING))
        # A cancelled attempt leaves two records of one change: the attempt and the cancel command.
        recorded_twice = what == "command cancel" and status is after
        if not (fits or recorded_twice):
            state.violate("12", f"{what} followed {status}, but is recorded as following {before}", shadow.id)
        status = after
    rests = shadow.status in (Status.PENDING, Status.RETRYING)
    if status is not shadow.status and not (rests and status in (Status.PENDING, Status.RETRYING)):
        state.violate("12", f"its record ends with {status}, but it is {shadow.status}", shadow.id)


def _check_receipts(
    state: SimulationState,
    database: SimulatedDatabase,
    shadow: ShadowState,
    receipts: Mapping[tuple[str, str], dict[str, Receipt]],
    named: Sequence[Receipt],
) -> None:
    """Checks that spam reports and deliveries decide the status, in whatever order receipts arrived.

    This is invariant 11.
    """
    kept = database.find(shadow.id)
    assert kept is not None, "checked before"
    if any(what.startswith("command") and after is not before for what, before, after in shadow.log):
        return  # an operator overruled the receipts
    messages = {
        (a.provider, a.provider_message_id): None for a in kept.attempts if a.provider_message_id is not None
    }
    events = {r.event.value for message in messages for r in receipts.get(message, {}).values()}
    events |= {r.event.value for r in named if attempt_of(r, kept.attempts) is not None}
    if "spam_report" in events and shadow.status is not Status.FAILED:
        state.violate("11", f"reported as spam, but {shadow.status}", shadow.id)
    if "delivered" in events and "spam_report" not in events and shadow.status is not Status.DELIVERED:
        state.violate("11", f"its delivery was reported, but it is {shadow.status}", shadow.id)


def _check_orders(state: SimulationState, receipts: Mapping[tuple[str, str], dict[str, Receipt]]) -> None:
    """Checks that the same receipts, shuffled and repeated, lead to the same status (invariant 11)."""
    rng = Random(f"{state.plan.seed}/orders")
    several = [list(received.values()) for _, received in sorted(receipts.items()) if len(received) > 1]
    trial = ReceiptTrial()
    for received in rng.sample(several, min(_SAMPLED_MESSAGES, len(several))):
        first = trial.expected_status(received)
        shuffled = [*received, *received]
        for _ in range(3):
            rng.shuffle(shuffled)
            other = trial.expected_status(shuffled)
            if other != first:
                order = ", ".join(r.event.value for r in shuffled)
                state.violate("11", f"receipts lead to {first}, but in the order {order} to {other}")
