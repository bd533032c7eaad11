"""PostgreSQL's columns and the values written to them are aligned."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import convert, structs
from msgspec.structs import replace

from homing.core.lifecycle.rows import Row, claim_of, lease, new_row, settle
from homing.core.notifications import Channel, Mode, Priority, Reason, Status
from homing.stores.common.row_columns import ROW_COLUMNS, ROW_FIELDS, UNCHANGED_IF_NULL_FIELDS, SqlType
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

_JSON_NAMES = ("spent", "holds", "engagement")
_NAMES = {**dict.fromkeys(_JSON_NAMES, '{"x":1}'), "queue": 7, "unhurried": False, "seq": 3}

_VALUES: dict[SqlType, Callable[[int, str], object]] = {
    SqlType.BIGINT: lambda number, _: 100 + number,
    SqlType.INTEGER: lambda number, _: 100 + number,
    SqlType.BOOLEAN: lambda number, _: number % 2 == 0,
    SqlType.TEXT: lambda _, name: f"{name} text",
    SqlType.UUID: lambda *_: an_id(),
    SqlType.JSON: lambda *_: {"x": 1},
}


def a_row() -> Row:
    """A row in which no two numbers or texts are equal."""
    values = {c.name: _VALUES[c.type](number, c.name) for number, c in enumerate(ROW_COLUMNS)}
    known = {"channel": Channel.SMS, "mode": Mode.STANDARD, "priority": Priority.LOW}
    return convert(values | known | {"status": Status.RETRYING, "reason": Reason.EXPIRED}, Row)


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
            others = set(STATE) - set(NEW) - set(_JSON_NAMES)
            assert {n: getattr(stored, n) for n in others} == {n: defaults[n] for n in others}


def test_every_settled_value_is_in_its_column() -> None:
    row = a_row()
    expected = {name: in_columns(name, row) for name in SETTLED}
    assert dict(zip(SETTLED, settled_columns(3, row, 7), strict=True)) == expected


def test_every_part_of_a_message_is_in_its_column() -> None:
    row = a_row()
    found = dict(zip(MESSAGE, message_columns(row, "{}"), strict=True))
    assert found == {name: "{}" if name == "message" else in_columns(name, row) for name in MESSAGE}


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
    [(seq, found)] = rows_to_claim([(3, 7, *columns, '{"x":1}', '{"x":1}', "{}")], names)
    [(_, without)] = rows_to_claim([(3, 7, *columns, None, None, "{}")], names)
    [(_, held)] = rows_to_claim([(3, 7, *columns, None, '{"y":2}', "{}")], names)
    [(_, used)] = rows_to_claim([(3, 7, *columns, '{"y":2}', None, "{}")], names)
    assert seq == 3
    assert (without.spent, without.holds) == ({}, {})
    assert (held.spent, held.holds) == ({}, {"y": 2})
    assert (used.spent, used.holds) == ({"y": 2}, {})
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
