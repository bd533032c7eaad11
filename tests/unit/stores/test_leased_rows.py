"""Rows that a process has leased and keeps in memory."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict

from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.rows import claim_of, lease, new_row
from homing.stores.common.codec import StoredRow
from homing.stores.common.leased_rows import LeasedRows, SeqAndRow
from homing.stores.common.row_columns import ROW_FIELDS
from homing.testing.builders import a_message, a_notification, a_submission, sent


def a_leased_row(seq: int = 1) -> tuple[SeqAndRow, Settlement]:
    row = new_row(a_notification(), a_submission(), 1000).row
    lease(row, "w", 60_000, 2000)
    fields = asdict(row)
    stored = msgspec.convert([fields[name] for name in ROW_FIELDS], StoredRow)
    return (seq, stored), sent(claim_of(row, a_message(), 1000))


def test_a_row_is_returned_only_once() -> None:
    held, (found, settlement) = LeasedRows(), a_leased_row()
    held.keep([found])
    assert held.take([settlement]) == {settlement.id: found}
    assert held.take([settlement]) == {}


def test_a_settlement_with_another_token_must_read_the_row_itself() -> None:
    held, (found, settlement) = LeasedRows(), a_leased_row()
    held.keep([found])
    assert held.take([msgspec.structs.replace(settlement, token=settlement.token + 1)]) == {}


def test_rows_with_a_matching_token_are_returned_by_id() -> None:
    held, (one, settled), (other, later) = LeasedRows(), a_leased_row(1), a_leased_row(2)
    held.keep([one, other])
    later = msgspec.structs.replace(later, token=later.token + 1)
    assert held.take([settled, later, settled]) == {settled.id: one}


def test_the_oldest_rows_are_dropped_when_there_are_too_many() -> None:
    held = LeasedRows(most=10)
    leased = [a_leased_row(seq) for seq in range(11)]
    held.keep(found for found, _ in leased)
    taken = held.take(settlement for _, settlement in leased)
    assert list(taken) == [settlement.id for _, settlement in leased[-5:]]
