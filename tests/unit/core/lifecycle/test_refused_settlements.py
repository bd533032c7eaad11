"""Settlements that the store has refused: what the last, simplest form does to the row."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.refused_settlements import simpler_forms
from homing.core.lifecycle.rows import claim_of, lease, reclaim, settle
from homing.core.notifications import OutcomeKind, Status
from homing.core.retry.decide import decide, postpone, wait_for_next_round
from support.core_builders import DAY, MESSAGE, MINUTE, NOW, STEADY, TWO, make_outcome, make_row

MOVING = {"status": Status.RETRYING, "attempts": 1, "moves": 1, "free_move": True, "spent": {"twilio": 1}}


@pytest.mark.parametrize("new_round", [False, True])
def test_a_parked_notification_has_not_made_the_move_of_an_attempt_that_was_given_back(
    new_round: bool,
) -> None:
    row = make_row(provider="sns", **MOVING)
    lease(row, "w", MINUTE, NOW)
    claim = claim_of(row, MESSAGE, NOW)
    if new_round:
        refused = wait_for_next_round(claim, STEADY, TWO, now=NOW, u=0.0)
    else:
        refused = postpone(claim, STEADY, MINUTE, None)
    *_, parked = simpler_forms(refused, claim)
    assert settle(row, parked, NOW) is not None
    assert (row.status, row.attempts, row.moves, row.free_move) == (Status.IN_DOUBT, 1, 0, False)


def test_a_parked_overdue_notification_has_not_made_its_move_either() -> None:
    row = make_row(provider="sns", **MOVING)
    reclaim(row, "w", MINUTE, NOW + DAY)
    claim = claim_of(row, MESSAGE, NOW)
    *_, parked = simpler_forms(postpone(claim, STEADY, MINUTE, None), claim)
    assert settle(row, parked, NOW) is not None
    assert (row.status, row.attempts, row.moves, row.free_move) == (Status.IN_DOUBT, 1, 0, False)


def test_a_parked_notification_has_made_the_move_of_its_attempt_but_not_the_next_one() -> None:
    row = make_row(provider="sns", **MOVING)
    lease(row, "w", MINUTE, NOW)
    claim = claim_of(row, MESSAGE, NOW)
    outcome = make_outcome(OutcomeKind.PROVIDER_FAULT)
    refused = decide(claim, outcome, STEADY, TWO, elapsed_ms=0, latency_ms=0, u=0.0)
    *_, parked = simpler_forms(refused, claim)
    assert settle(row, parked, NOW) is not None
    assert (row.status, row.attempts, row.moves, row.free_move) == (Status.IN_DOUBT, 2, 1, False)
