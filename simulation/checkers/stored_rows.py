"""Checks that a commit has stored every column of a row (invariant 12).

The pure transition is applied to the row as it was stored before. The row that is stored afterwards must be
equal to the result in every column, whatever the store had cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from msgspec.structs import astuple

from homing.core.lifecycle.claims import Submission
from homing.core.lifecycle.rows import Change, Row, new_row
from homing.stores.common.row_columns import ROW_FIELDS
from simulation.shadow_state import SimulationState

Transition = Callable[[Row], Change | None]
"""Changes a row as the call should have done."""

ExpectedRow = Callable[[Row | None, Row], Row | None]
"""Returns the row that must be stored, for the row before, or None for a new row, and the row that is stored.

Returns None if that is not known.
"""


def nothing_expected(before: Row | None, stored: Row) -> Row | None:
    """Returns None: the row that must be stored is not known."""
    return None


def expect_transition(transition: Transition) -> ExpectedRow:
    """Expects the row before, changed by a pure transition."""

    def expected(before: Row | None, stored: Row) -> Row | None:
        if before is None:
            return None
        row = copy(before)
        transition(row)
        return row

    return expected


def expect_new_rows(batch: Sequence[Submission], now: int) -> ExpectedRow:
    """Expects the new rows of the submissions."""
    news = {new.id: (new, submission) for submission in batch for new in submission.notifications}

    def expected(before: Row | None, stored: Row) -> Row | None:
        return None if before is not None else new_row(*news[stored.id], now).row

    return expected


def check_columns(state: SimulationState, serving: str, expected: Row | None, stored: Row) -> None:
    """Compares the stored row with the expected one, if it is known, column by column."""
    if expected is None or expected == stored or astuple(expected) == astuple(stored):
        return
    for name in ROW_FIELDS:
        should, found = getattr(expected, name), getattr(stored, name)
        if should != found:
            state.violate("12", f"{serving} stored {found!r} as {name} instead of {should!r}", stored.id)
