"""What the text of a search may mean, and the lines of an exported search."""

from __future__ import annotations

import csv
from datetime import UTC, datetime

import pytest

from homing import InvalidRequest
from homing.core.notifications import (
    Channel,
    Content,
    Filter,
    Mode,
    Notification,
    Priority,
    Recipient,
    Status,
)
from homing.core.search import SearchKind, has_index, id_prefix, needs_scan, plan_search
from homing.engine.operations.search_export import COLUMNS, csv_header, csv_line

K = SearchKind

ID = "01938a2b-1111-7abc-8def-0123456789ab"


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        (ID, ID),
        (ID.replace("-", ""), ID),
        ("01938A2B-11", "01938a2b-11"),
        ("01938a2b1111", "01938a2b-1111"),
        ("0193", "0193"),
        ("019", None),
        ("order", None),
        (f"{ID}0", None),
    ],
)
def test_the_beginning_of_an_id_may_be_written_in_any_form(text: str, prefix: str | None) -> None:
    assert id_prefix(text) == prefix


def test_a_text_is_compared_with_everything_that_has_an_index() -> None:
    found = plan_search(" user-7 ", Filter(statuses=(Status.FAILED,)))
    assert set(found) == {K.ADDRESS, K.RECIPIENT, K.BATCH, K.PROVIDER_MESSAGE}
    assert found[K.RECIPIENT] == Filter(statuses=(Status.FAILED,), recipient_id="user-7")
    assert found[K.BATCH].batch_id == found[K.PROVIDER_MESSAGE].provider_message_id == "user-7"
    assert all(has_index(one) and not needs_scan(one) for one in found.values())
    assert plan_search(ID, Filter())[K.ID].id_prefix == ID


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Ada@EXAMPLE.org", "Ada@example.org"),
        ("+49 30 123456", "+4930123456"),
        ("+49", "+49"),
        ("@", "@"),
        ("https://example.org/hook?a=b", "https://example.org/hook?a=b"),
    ],
)
def test_an_address_is_searched_as_notifications_store_it(text: str, address: str) -> None:
    assert plan_search(text, Filter())[K.ADDRESS].address == address


@pytest.mark.parametrize("text", ["order=42", "metadata order=42", "metadata.order=42", "order= 42 "])
def test_a_key_and_a_value_are_compared_with_the_metadata(text: str) -> None:
    found = plan_search(text, Filter(metadata={"a": "b"}))
    assert found == {K.METADATA: Filter(metadata={"a": "b", "order": "42"})}
    assert needs_scan(found[K.METADATA])


def test_only_statuses_need_no_scan() -> None:
    assert not needs_scan(Filter())
    assert not needs_scan(Filter(statuses=(Status.FAILED,), acknowledged=False))
    assert needs_scan(Filter(type="alarm"))


@pytest.mark.parametrize("text", ["x" * 1_001, "a\x00b", "\ud800"])
def test_a_text_that_no_store_can_search_for_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="q"):
        plan_search(text, Filter())


def test_an_exported_line_has_every_column_and_no_formula() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    one = Notification(
        id=ID,
        tenant="a",
        batch_id="b",
        status=Status.FAILED,
        channel=Channel.EMAIL,
        type="=cmd()",
        category="x",
        priority=Priority.MEDIUM,
        mode=Mode.STANDARD,
        origin="",
        recipient=Recipient(id="+1"),
        content=Content(),
        created_at=at,
        updated_at=at,
        provider="p",
        last_error='two\nlines, and a "quote"',
    )
    header, line = csv.reader([csv_header()]), csv.reader(csv_line(one, "@x").splitlines(keepends=True))
    assert next(header) == list(COLUMNS)
    found = dict(zip(COLUMNS, next(line), strict=True))
    assert (found["type"], found["address"], found["recipient_id"]) == ("'=cmd()", "'@x", "'+1")
    assert (found["last_error"], found["reason"], found["sent_at"]) == ('two\nlines, and a "quote"', "", "")
    assert found["created_at"] == "2026-01-02T00:00:00.000+00:00"
