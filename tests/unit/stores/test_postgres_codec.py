"""PostgreSQL's columns and the values written to them are aligned."""

from __future__ import annotations

import re

from msgspec import structs
from msgspec.structs import replace

from homing.core.lifecycle.rows import Row, claim_of, lease, new_row, settle
from homing.core.notifications import Mode, Reason, Status
from homing.stores.common.codec import ROW_FIELDS, UNCHANGED_IF_NULL_FIELDS
from homing.stores.common.migrations import load_migrations
from homing.stores.postgres.columns import (
    MESSAGE,
    NEW,
    SETTLED,
    STATE,
    clean,
    is_id,
    message_columns,
    new_columns,
    settled_columns,
    state_columns,
)
from homing.stores.postgres.rows import CLAIMED, rows_from, rows_to_claim
from homing.testing.builders import a_message, a_notification, a_submission, an_id, postponed

_NAMES = {"holds": '{"x":1}', "engagement": '{"open":2}', "queue": 7, "unhurried": False, "seq": 3}


def a_row() -> Row:
    """A row in which no two fields of one type have the same value."""
    submission = a_submission(a_notification(send_at=5))
    row = new_row(submission.notifications[0], submission, 1).row
    numbers = {
        name: 100 + n for n, name in enumerate(ROW_FIELDS) if isinstance(getattr(row, name), int | None)
    }
    texts = {name: f"{name} text" for name in ("provider", "worker", "last_error", "error_code")}
    acks = {name: f"{name} text" for name in ("acknowledged_by", "acknowledged_why")}
    flags = {"pinned": True, "overdue": False, "cancel_requested": True, "bounce_always": True}
    dicts = {"holds": {"x": 1}, "engagement": {"open": 2}}
    ids = {"resend_of": an_id(), "resent_as": an_id()}
    known = {"status": Status.RETRYING, "reason": Reason.EXPIRED}
    fields = {**numbers, **texts, **acks, **flags, **dicts, **ids, **known}
    return replace(row, **fields)


def in_columns(name: str, row: Row) -> object:
    if name in _NAMES:
        return _NAMES[name]
    value = getattr(row, name)
    return getattr(value, "value", value)


def test_every_state_value_is_in_its_column() -> None:
    row = a_row()
    assert dict(zip(STATE, state_columns(3, row, 7), strict=True)) == {n: in_columns(n, row) for n in STATE}
    synchronous = replace(row, mode=Mode.SYNCHRONOUS)
    assert dict(zip(STATE, state_columns(3, synchronous, 7), strict=True))["unhurried"] is True


def test_a_new_row_has_its_defaults_in_every_unwritten_column() -> None:
    row = a_row()
    assert dict(zip(NEW, new_columns(3, row, 7), strict=True)) == {n: in_columns(n, row) for n in NEW}
    defaults = {field.name: field.default for field in structs.fields(Row)} | {"resent_as": None}
    for new in (
        a_notification(),
        replace(a_notification(), refused=True),
        a_notification(attempts_before=2, delay_ms=5),
    ):
        for submission in (a_submission(new), a_submission(new, lease_to="w", lease_ms=5)):
            stored = new_row(new, submission, 1000).row
            others = set(STATE) - set(NEW) - {"holds", "engagement"}
            assert {n: getattr(stored, n) for n in others} == {n: defaults[n] for n in others}


def test_every_settled_value_is_in_its_column() -> None:
    row = a_row()
    expected = {name: in_columns(name, row) for name in SETTLED}
    assert dict(zip(SETTLED, settled_columns(3, row, 7), strict=True)) == expected


def test_every_part_of_a_message_is_in_its_column() -> None:
    row = a_row()
    found = dict(zip(MESSAGE, message_columns(row, "{}"), strict=True))
    assert found == {name: "{}" if name == "message" else in_columns(name, row) for name in MESSAGE}


def test_the_columns_are_those_of_the_schema() -> None:
    first, *later = (migration.sql for migration in load_migrations("postgres"))
    for table, columns in (("live", STATE), ("messages", {"seq": "bigint", **MESSAGE})):
        body = re.search(rf"CREATE TABLE homing\.{table} \((.*?)\n\)", first, re.DOTALL)
        assert body is not None
        found = dict(re.findall(r"^    (\w+) +(bigint|integer|boolean|text|uuid)", body[1], re.MULTILINE))
        for sql in later:
            for added in re.findall(rf"ALTER TABLE homing\.{table}\n(.*?);", sql, re.DOTALL):
                found |= dict(re.findall(r"ADD COLUMN (\w+) (\w+)", added))
        assert found == columns


def test_a_row_survives_encoding_and_decoding() -> None:
    row = a_row()
    record = (3, *(_NAMES.get(n, in_columns(n, row)) for n in ROW_FIELDS), "more")
    [(seq, found)] = rows_from([record])
    assert seq == 3
    assert {n: getattr(found, n) for n in ROW_FIELDS} == {n: getattr(row, n) for n in ROW_FIELDS}


def test_a_claimed_row_has_everything_that_its_settlement_needs() -> None:
    row = a_row()
    columns = [_NAMES.get(n, in_columns(n, row)) for n in CLAIMED]
    names = {7: (row.lane, row.tenant, row.outlet)}
    [(seq, found)] = rows_to_claim([(3, 7, *columns, '{"x":1}', "{}")], names)
    [(_, without)] = rows_to_claim([(3, 7, *columns, None, "{}")], names)
    assert seq == 3
    assert without.holds == {}
    row.status = found.status = Status.RETRYING
    for name in UNCHANGED_IF_NULL_FIELDS:  # not read by a claim, and left unchanged by its settlement
        setattr(row, name, None)
    for one in (row, found):
        lease(one, "w", 5, 1000)
        later = postponed(claim_of(one, a_message(), 1), 5, Reason.QUIET_HOURS)
        assert settle(one, later, 2000) is not None
    assert settled_columns(3, found, 7) == settled_columns(3, row, 7)


def test_text_that_postgres_cannot_store_is_replaced() -> None:
    assert clean("a\0b") == "a\ufffdb"
    assert (clean("ab"), clean(None)) == ("ab", None)


def test_only_a_lower_case_uuid_is_an_id() -> None:
    id = an_id()
    assert is_id(id)
    assert not any(is_id(other) for other in ("nobody", id.upper(), id + "0", id[:-1], ""))
