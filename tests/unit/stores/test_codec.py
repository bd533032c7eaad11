"""Codecs keep columns and fields aligned: a value in the wrong column would be stored without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import EVENT_NAMES
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.row_commands import apply_command
from homing.core.lifecycle.row_events import events_of, roll_up_counts
from homing.core.lifecycle.rows import CauseRecord, Row, claim_of, claims_of, lease, new_row, reclaim, settle
from homing.core.notifications import Channel, Mode, OutcomeKind, Priority, Reason, Status
from homing.stores.common import codec, row_columns
from homing.stores.common.row_columns import LAST_CLAIMED, LAST_RECLAIMED, LAST_SETTLED
from homing.stores.sqlite import columns as sqlite_columns
from homing.testing.builders import a_message, a_notification, a_submission, dead, retry_in, sent

COLUMNS: dict[str, tuple[tuple[str, ...], Callable[[Any], tuple[codec.Column, ...]]]] = {
    "own": (sqlite_columns.OWN_FIELDS, sqlite_columns.own_columns),
    "shared": (sqlite_columns.SHARED_FIELDS, sqlite_columns.shared_columns),
    "leased": (sqlite_columns.LEASED_FIELDS, sqlite_columns.leased_columns),
    "settled": (sqlite_columns.SETTLED_FIELDS, sqlite_columns.settled_columns),
    "mutable": (sqlite_columns.MUTABLE_FIELDS, sqlite_columns.mutable_columns),
}


def a_full_row() -> Row:
    """A row in which every field has a different value."""
    numbers = {name: 1000 + number for number, name in enumerate(Row.__struct_fields__)}
    texts = {name: f"{name}!" for name in Row.__struct_fields__}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Row):
        if field.type in (bool, bool | None):
            values[field.name] = True
        else:
            values[field.name] = (numbers if "int" in str(field.type) else texts)[field.name]
    values |= {
        "channel": Channel.PUSH,
        "mode": Mode.BULK,
        "priority": Priority.LOW,
        "status": Status.IN_DOUBT,
        "reason": Reason.OPERATOR,
        "spent": {"sns": 2},
        "holds": {"twilio": 5},
        "engagement": {"open": 2},
    }
    return msgspec.convert(values, Row)


@pytest.mark.parametrize("name", COLUMNS)
def test_each_value_is_in_its_own_column(name: str) -> None:
    fields, columns = COLUMNS[name]
    row = a_full_row()
    assert columns(row) == tuple(codec.to_column(getattr(row, field)) for field in fields)
    assert set(fields) <= set(row_columns.ROW_FIELDS)


def test_columns_have_plain_types_that_need_no_adapter() -> None:
    for _, columns in COLUMNS.values():
        assert {type(value) for value in columns(a_full_row())} <= {int, str, type(None)}


def test_a_row_survives_encoding_and_decoding() -> None:
    row = a_full_row()
    stored = [codec.to_column(getattr(row, name)) for name in row_columns.ROW_FIELDS]
    for name in row_columns.JSON_FIELDS:
        stored[row_columns.ROW_FIELDS.index(name)] = getattr(row, name)
    [(seq, again)] = codec.decode_rows(msgspec.json.encode([(7, stored)]))
    assert seq == 7
    assert msgspec.structs.asdict(again) == msgspec.structs.asdict(row)


@pytest.mark.parametrize("text", ["null", "true", "1", "", "2.5", "[]"])
def test_a_text_that_looks_like_another_type_stays_text(text: str) -> None:
    row = msgspec.structs.replace(a_full_row(), last_error=text, error_code=text, address=text, worker=text)
    stored = [codec.to_column(getattr(row, name)) for name in row_columns.ROW_FIELDS]
    for name in row_columns.JSON_FIELDS:
        stored[row_columns.ROW_FIELDS.index(name)] = getattr(row, name)
    [(_, again)] = codec.decode_rows(msgspec.json.encode([(7, stored)]))
    assert (again.last_error, again.error_code, again.address, again.worker) == (text,) * 4


def test_attempts_and_causes_are_in_their_own_columns() -> None:
    attempt = AttemptRecord(
        number=3,
        provider="p",
        outcome=OutcomeKind.LOST,
        started_at=5,
        latency_ms=6,
        worker="w",
        error_code="c",
        error="e",
        provider_message_id="m",
    )
    cause = CauseRecord(kind="k", name="n", at=1, before=Status.SENT, after=Status.FAILED, who="w", why="y")
    fields = (*codec.ATTEMPT_OWN_FIELDS, *codec.ATTEMPT_SHARED_FIELDS)
    columns = map(
        codec.to_column, (*codec.attempt_own_values(attempt), *codec.attempt_shared_values(attempt))
    )
    assert dict(zip(fields, columns, strict=True)) == {
        name: codec.to_column(getattr(attempt, name)) for name in codec.ATTEMPT_FIELDS
    }
    assert dict(zip(codec.CAUSE_FIELDS, codec.cause_columns(cause), strict=True)) == {
        name: codec.to_column(getattr(cause, name)) for name in codec.CAUSE_FIELDS
    }


def changed(before: dict[str, Any], row: Row) -> set[str]:
    return {name for name, value in msgspec.structs.asdict(row).items() if before[name] != value}


def test_a_claim_has_the_values_of_its_row_in_the_fields_of_the_same_name() -> None:
    row, message = a_full_row(), a_message()
    claim = claim_of(row, message, 7)
    assert (claim.message, claim.attempt, claim.due_at) == (message, row.attempts, 7)
    same = set(Claim.__struct_fields__) - {"message", "attempt", "due_at", "moved_from"}
    assert {name: getattr(claim, name) for name in same} == {name: getattr(row, name) for name in same}


def test_a_new_row_has_the_given_values_in_the_fields_of_the_same_name() -> None:
    texts = {
        name: f"{name}!" for name in ("lane", "type", "category", "origin", "provider", "outlet", "address")
    }
    numbers = {
        "send_at": 5000,
        "expires_at": 6000,
        "max_age_ms": 7000,
        "max_attempts": 8,
        "attempts_before": 3,
    }
    others = {"resend_of": "before", "last_error": "why", "pinned": True, "mode": Mode.BULK}
    new = msgspec.structs.replace(a_notification(), **texts, **numbers, **others)
    submission = a_submission(new)
    row = new_row(new, submission, 1000).row
    same = set(row.__struct_fields__) & set(new.__struct_fields__)
    assert {name: getattr(row, name) for name in same} == {name: getattr(new, name) for name in same}
    assert (row.tenant, row.batch_id) == (submission.tenant, submission.batch_id)
    assert (row.created_at, row.updated_at, row.aged_from, row.attempts) == (1000, 1000, 5000, 3)


def test_a_new_row_differs_from_the_defaults_only_in_written_columns() -> None:
    defaults = {f.name: f.default for f in msgspec.structs.fields(Row)}
    for submission in (a_submission(), a_submission(lease_to="w", lease_ms=5)):
        new = a_notification(send_at=10**15, expires_at=10**15, pinned=True, resend_of="x")
        row = new_row(new, submission, 1000).row
        written = {*sqlite_columns.OWN_FIELDS, *sqlite_columns.SHARED_FIELDS}
        others = set(row_columns.ROW_FIELDS) - written - row_columns.JSON_FIELDS
        assert all(getattr(row, name) == defaults[name] for name in others)
        assert row.spent == row.holds == row.engagement == {}


def test_a_lease_changes_only_its_written_columns() -> None:
    row = new_row(a_notification(), a_submission(), 1000).row
    before = msgspec.structs.asdict(row)
    lease(row, "w", 60_000, 2000)
    assert changed(before, row) <= set(sqlite_columns.LEASED_FIELDS)
    before = msgspec.structs.asdict(row)
    reclaim(row, "w-2", 60_000, 99_000)
    assert changed(before, row) <= set(sqlite_columns.LEASED_FIELDS)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("how", [sent, dead, lambda claim: retry_in(claim, 5, provider="acs", hold_ms=9)])
def test_a_settlement_changes_only_its_written_columns(how: Any, cancelled: bool) -> None:
    row = new_row(a_notification(), a_submission(), 1000).row
    lease(row, "w", 60_000, 2000)
    row.cancel_requested = cancelled
    before = msgspec.structs.asdict(row)
    settlement = how(claim_of(row, a_message(), 1000))
    assert settle(row, settlement, 3000) is not None
    assert changed(before, row) <= set(sqlite_columns.SETTLED_FIELDS)


def test_immutable_columns_are_those_that_no_command_changes() -> None:
    for name in (CommandName.RETRY, CommandName.RESEND, CommandName.ACKNOWLEDGE):
        row = msgspec.structs.replace(a_full_row(), status=Status.FAILED, resent_as=None, mode=Mode.STANDARD)
        before = msgspec.structs.asdict(row)
        order = Command(name=name, who="ada", provider="acs", new_ids={row.id: "new"})
        assert apply_command(row, order, 10**9) is not None
        assert changed(before, row) <= set(sqlite_columns.MUTABLE_FIELDS)


def cut(row: Row, last: str) -> codec.StoredRow:
    """Returns the row as it is read if the fields after `last` are left out."""
    stored: list[Any] = [codec.to_column(getattr(row, name)) for name in row_columns.ROW_FIELDS]
    for name in row_columns.JSON_FIELDS:
        stored[row_columns.ROW_FIELDS.index(name)] = getattr(row, name)
    shortened = stored[: row_columns.ROW_FIELDS.index(last) + 1]
    [(_, read)] = codec.decode_rows(msgspec.json.encode([(1, shortened)]))
    return read


def stored_after(before: tuple[codec.Column, ...], row: Row) -> tuple[codec.Column, ...]:
    """Returns the stored row after this row is settled over the old one. NULL keeps some old values."""
    columns = zip(sqlite_columns.SETTLED_FIELDS, sqlite_columns.settled_columns(row), before, strict=True)
    return tuple(
        old if name in row_columns.UNCHANGED_IF_NULL_FIELDS and new is None else new
        for name, new, old in columns
    )


def test_claims_of_many_rows_equal_those_of_single_rows() -> None:
    rows = [msgspec.structs.replace(a_full_row(), status=Status.RETRYING) for _ in range(3)]
    for number, row in enumerate(rows):
        row.id, row.holds, row.spent = f"n-{number}", {"acs": number}, {"sns": number}
        lease(row, "w", 60_000, 2000 + number)
    messages, due = [a_message() for _ in rows], [1, 2, 3]
    claims = claims_of(rows, messages, due)
    assert claims == tuple(claim_of(*one) for one in zip(rows, messages, due, strict=True))
    assert all(claim.holds is not row.holds for claim, row in zip(claims, rows, strict=True))


def test_a_claim_does_not_need_the_columns_it_leaves_unread() -> None:
    row = msgspec.structs.replace(a_full_row(), status=Status.RETRYING)
    short = cut(row, LAST_CLAIMED)
    lease(row, "w", 60_000, 2000)
    lease(short, "w", 60_000, 2000)
    assert claim_of(short, a_message(), 1) == claim_of(row, a_message(), 1)
    assert sqlite_columns.leased_columns(short) == sqlite_columns.leased_columns(row)
    settlement = sent(claim_of(row, a_message(), 1))
    before = sqlite_columns.settled_columns(row)
    assert settle(row, settlement, 3000) is not None
    assert settle(short, settlement, 3000) is not None
    assert stored_after(before, short) == sqlite_columns.settled_columns(row)


@pytest.mark.parametrize("status", [Status.SENDING, Status.RETRYING])
def test_a_reclaim_does_not_need_the_columns_it_leaves_unread(status: Status) -> None:
    row = msgspec.structs.replace(a_full_row(), status=status)
    short = cut(row, LAST_RECLAIMED)
    reclaim(row, "w", 60_000, 2000)
    reclaim(short, "w", 60_000, 2000)
    assert claim_of(short, a_message(), 1) == claim_of(row, a_message(), 1)
    assert sqlite_columns.leased_columns(short) == sqlite_columns.leased_columns(row)


@pytest.mark.parametrize("how", [sent, dead, lambda claim: retry_in(claim, 5, provider="acs", hold_ms=9)])
def test_a_settlement_does_not_need_the_columns_it_leaves_unread(how: Any) -> None:
    row = msgspec.structs.replace(a_full_row(), status=Status.SENDING)
    short = cut(row, LAST_SETTLED)
    settlement, before = how(claim_of(row, a_message(), 1)), sqlite_columns.settled_columns(row)
    change, shortened = settle(row, settlement, 3000), settle(short, settlement, 3000)
    assert change is not None
    assert shortened is not None
    assert stored_after(before, short) == sqlite_columns.settled_columns(row)
    assert roll_up_counts(shortened) == roll_up_counts(change)
    assert events_of(shortened, EVENT_NAMES, a_message(), ()) == events_of(
        change, EVENT_NAMES, a_message(), ()
    )
