"""Values of other types become built-in values, or an error with their path."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from numbers import Integral
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from django.utils.safestring import mark_safe  # type: ignore[import-untyped]
from django.utils.translation import gettext_lazy  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from homing import Content, InvalidRequest, Recipient, SendRequest
from homing.core.notifications import Attachment
from homing.core.plain_values import plain_json, plain_text, plain_time
from homing.core.request_decoding import plain_request, read_request


class Colour(StrEnum):
    RED = "red"


class Shade(str, Enum):  # noqa: UP042  # what many programs still have
    DARK = "dark"


class Size(IntEnum):
    BIG = 3


class Kind(Enum):
    ONE = "one"


class Whole(int):
    pass


class Broken(float):
    pass


class Int64:
    """An integer like NumPy's: not an `int`, but registered as one."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


Integral.register(Int64)


class Stamp(datetime):
    """A time like those of pandas and pendulum."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (mark_safe("a"), "a"),
        (Markup("<b>"), "<b>"),
        (Colour.RED, "red"),
        (Shade.DARK, "dark"),
        (Size.BIG, 3),
        (Kind.ONE, "one"),
        (Whole(7), 7),
        (Broken(0.5), 0.5),
        (Int64(9), 9),
        (Fraction(1, 2), 0.5),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (Stamp(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (OrderedDict(a=Markup("x")), {"a": "x"}),
        ((1, Markup("x")), [1, "x"]),
        ({Markup("k"): {Colour.RED: [mark_safe("v")]}}, {"k": {"red": ["v"]}}),
        (True, True),
        (None, None),
    ],
)
def test_a_value_with_a_json_equivalent_becomes_that_value(value: Any, expected: Any) -> None:
    found = plain_json({"k": value}, "data")["k"]
    assert found == expected
    assert _kinds(found) <= {str, int, float, bool, type(None), dict, list}


def _kinds(value: Any) -> set[type]:
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value if type(value) is list else []
    return {type(value)}.union(*map(_kinds, inner))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": gettext_lazy("Hello")}]}, "data.a[1].b"),
        ({"a": object()}, "data.a"),
        ({"a": {"b": Markup("\ud800")}}, "data.a.b"),
        ({"a": Whole(2**63)}, "data.a"),
        ({"a": Broken("nan")}, "data.a"),
        ({"x" * 80: object()}, f"data['{'x' * 49}]"),
        ({b"a": 1}, "data"),
    ],
)
def test_a_value_without_a_json_equivalent_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_json(value, "data")
    assert caught.value.field == path


def test_a_value_that_contains_itself_is_nested_too_deeply() -> None:
    value: dict[str, Any] = {}
    value["k"] = value
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        plain_json(value, "data")


def test_a_framework_s_text_becomes_plain_text() -> None:
    for text in (mark_safe("a"), Markup("a"), Shade.DARK, Colour.RED):
        assert type(plain_text(text, "x")) is str
    assert plain_text(Shade.DARK, "x") == "dark"


def test_a_time_of_another_library_keeps_its_time_zone() -> None:
    zone = UTC
    found = plain_time(Stamp(2026, 1, 31, 9, 30, tzinfo=zone))
    assert (type(found), found) == (datetime, datetime(2026, 1, 31, 9, 30, tzinfo=zone))


def everywhere(text: Any) -> SendRequest:
    """Returns a request with this text in every text field."""
    return SendRequest(
        recipient=Recipient(id=text, email=text, locale=text),
        channel=text,
        channels=(text,),
        type=text,
        category=text,
        priority=text,
        origin=text,
        template_key=text,
        data={text: {"k": [text]}},
        accept_language=text,
        content=Content(
            subject=text,
            body=text,
            html=text,
            data={text: text},
            headers={text: text},
            attachments=(Attachment(text, text, text),),
            unsubscribe_url=text,
        ),
        provider=text,
        idempotency_key=text,
        dedup_key=text,
        send_at=cast("datetime", Stamp(2026, 1, 1, tzinfo=UTC)),
        metadata={text: [text]},
    )


@given(st.sampled_from([Markup, mark_safe]), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_request_with_a_framework_s_text_equals_one_with_plain_text(kind: Any, text: str) -> None:
    text = text.replace("\x00", "")
    plain = plain_request(everywhere(kind(text)))
    assert plain == plain_request(everywhere(text))
    msgspec.json.encode(plain)


def test_a_request_keeps_all_its_fields() -> None:
    given_ = SendRequest(
        recipients=(Recipient(phone="+15550100", device_token="t", url="u", time_zone="UTC"),),
        synchronous=False,
        bulk=True,
        content=Content(title="t", text="x"),
        expires_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert plain_request(given_) == given_


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": 5}, "type"),
        ({"channel": b"email"}, "channel"),
        ({"metadata": [1]}, "metadata"),
        ({"data": "x"}, "data"),
        ({"bulk": "yes"}, "bulk"),
        ({"send_at": "tomorrow"}, "sendAt"),
        ({"recipient": Recipient(email=cast("str", 0))}, "recipient.email"),
        ({"recipient": "ada@example.org"}, "recipient"),
        ({"recipients": (Recipient(email=cast("str", 0)),)}, "recipients[0].email"),
        ({"content": Content(body=cast("str", 5))}, "content.body"),
        ({"content": Content(body=cast("str", gettext_lazy("Hello")))}, "content.body"),
        ({"content": Content(data=cast("dict[str, Any]", [1]))}, "content.data"),
        ({"content": Content(headers=cast("dict[str, str]", {"X-A": 5}))}, "content.headers[...]"),
        ({"content": Content(attachments=(cast("Attachment", 5),))}, "content.attachments[0]"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_request(SendRequest(**fields))
    assert caught.value.field == field


def test_none_means_absent() -> None:
    assert plain_request(SendRequest(priority=cast("str", None))).priority == "medium"


def test_a_mapping_with_structs_and_lazy_text_is_read_too() -> None:
    raw = {
        "recipient": Recipient(email=Markup("ada@example.org")),
        "channel": Colour.RED,
        "content": Content(body=mark_safe("Hello"), attachments=(Attachment(Markup("a"), "eA=="),)),
        "send_at": Stamp(2026, 1, 1, tzinfo=UTC),
    }
    request = plain_request(read_request(raw))
    assert request.recipient == Recipient(email="ada@example.org")
    assert request.content == Content(body="Hello", attachments=(Attachment("a", "eA=="),))
    assert type(request.send_at) is datetime
    with pytest.raises(InvalidRequest) as caught:
        read_request({**raw, "content": {"subject": gettext_lazy("Hello")}})
    assert caught.value.field == "content.subject"
    assert "str()" in caught.value.message
