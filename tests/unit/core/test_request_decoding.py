"""Requests parsed from mappings: both spellings, short forms of a recipient, errors that name a field."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from homing.core.errors import InvalidRequest
from homing.core.notifications import Attachment, Content, Filter, Recipient, Status
from homing.core.request_decoding import (
    explain_error,
    read_filter,
    read_request,
    to_camel_case,
    unknown_field_problem,
)
from homing.core.send_request import SendRequest

HELLO = {"body": "Hello Ada"}


def refused(field: str, problem: str = "") -> Any:
    return pytest.raises(InvalidRequest, match=f"^{field}: .*{problem}")


@pytest.mark.parametrize(
    "raw",
    [
        {"template_key": "t", "send_at": "2026-01-31T09:00:00Z", "recipient": {"device_token": "d"}},
        {"templateKey": "t", "sendAt": "2026-01-31T09:00:00Z", "recipient": {"deviceToken": "d"}},
        MappingProxyType(
            {
                "template_key": "t",
                "sendAt": datetime(2026, 1, 31, 9, tzinfo=UTC),
                "recipient": Recipient(device_token="d"),
                "content": None,
            }
        ),
    ],
)
def test_keys_are_accepted_in_both_spellings_and_values_as_text_or_typed(raw: Any) -> None:
    assert read_request(raw) == SendRequest(
        template_key="t",
        send_at=datetime(2026, 1, 31, 9, tzinfo=UTC),
        recipient=Recipient(device_token="d"),
    )


@pytest.mark.parametrize("name", SendRequest.__struct_fields__)
def test_every_field_of_a_request_has_a_wire_name(name: str) -> None:
    encoded = dict(zip(SendRequest.__struct_fields__, SendRequest.__struct_encode_fields__, strict=True))
    assert to_camel_case(name) == encoded[name] == to_camel_case(encoded[name])


# Recipients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "address", "recipient"),
    [
        ("email", "ada@example.org", Recipient(email="ada@example.org")),
        ("SMS", "+15550100", Recipient(phone="+15550100")),
        ("push", "token", Recipient(device_token="token")),
        ("webhook", "https://shop.example/in", Recipient(url="https://shop.example/in")),
    ],
)
def test_a_bare_address_belongs_to_the_channel(channel: str, address: str, recipient: Recipient) -> None:
    assert read_request({"recipient": address, "channel": channel}).recipient == recipient
    assert read_request({"recipient": address, "channels": [channel]}).recipient == recipient
    assert read_request({"recipients": [address, {"id": "u"}], "channel": channel}).recipients == (
        recipient,
        Recipient(id="u"),
    )


def test_a_bare_address_needs_exactly_one_channel() -> None:
    with refused("channel", "missing"):
        read_request({"recipient": "ada@example.org"})
    with refused("channel", "'fax'"):
        read_request({"recipient": "ada@example.org", "channel": "fax"})
    with refused("recipient", "several channels"):
        read_request({"recipient": "ada@example.org", "channel": "both"})
    with refused("channel"):
        read_request({"recipient": "ada@example.org", "channel": 7})


@pytest.mark.parametrize("wrong", [7, ["ada@example.org"], True])
def test_a_recipient_is_an_address_or_a_recipient(wrong: Any) -> None:
    with refused("recipient", type(wrong).__name__):
        read_request({"recipient": wrong, "channel": "email"})


@pytest.mark.parametrize("wrong", ["ada@example.org", {"email": "ada@example.org"}, 7])
def test_recipients_must_be_a_list(wrong: Any) -> None:
    with refused("recipients", "must be a list"):
        read_request({"recipients": wrong, "channel": "email"})


# Content ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        {"body": "b", "attachments": [{"filename": "f", "content": "QQ==", "content_type": "text/plain"}]},
        {"body": "b", "attachments": ({"filename": "f", "content": "QQ==", "contentType": "text/plain"},)},
        Content(body="b", attachments=(Attachment("f", "QQ==", "text/plain"),)),
    ],
)
def test_content_is_read_with_its_attachments(content: Any) -> None:
    found = read_request({"content": content}).content
    assert found == Content(body="b", attachments=(Attachment("f", "QQ==", "text/plain"),))


# Errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "field", "problem"),
    [
        ({"templat_key": "t"}, "templatKey", "did you mean templateKey"),
        ({"zzz": 1}, "zzz", "it must be one of recipient, recipients, channel"),
        ({7: 1}, "7", "is not known"),
        ({"recipient": {"e_mail": "x"}}, r"recipient\.eMail", "did you mean email"),
        ({"content": HELLO | {"bodie": "x"}}, r"content\.bodie", "did you mean body"),
        ({"recipients": [{}, {"emial": "x"}]}, r"recipients\[1\]\.emial", "did you mean email"),
        (
            {"content": {"attachments": [{"file_name": "x"}]}},
            r"content\.attachments\[0\]\.fileName",
            "filename",
        ),
        ({"bulk": "yes"}, "bulk", "must be true or false, not a string$"),
        ({"send_at": "tomorrow"}, "sendAt", "is not a time; write it like 2026-11-16T10:00:00Z$"),
        ({"content": 7}, "content", "must be an object, not a whole number$"),
        ({"content": {"body": 7}}, r"content\.body", "must be a string, not a whole number$"),
        ({"content": {"attachments": 7}}, r"content\.attachments", "must be an array, not a whole number$"),
        ({"content": {"attachments": [{"filename": "f"}]}}, r"content\.attachments\[0\]\.content", "missing"),
        ({"channels": "sms"}, "channels", "must be an array, not a string$"),
        ({"metadata": {7: "x"}}, "metadata", ""),
        ("sms", "request", "is str; give a SendRequest or a mapping"),
        (None, "request", "is NoneType"),
    ],
)
def test_an_invalid_value_is_refused_with_its_field(raw: Any, field: str, problem: str) -> None:
    with refused(field, problem):
        read_request(raw)


def test_an_error_without_a_path_is_about_the_request() -> None:
    error = msgspec.ValidationError("Expected `object`, got `int`")
    assert explain_error(error, ()) == ("request", "must be an object, not a whole number")


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (str | int | None, 1.5, "must be a whole number or a string, not a number"),
        (int, None, "must be a whole number, not null"),
        (Annotated[int, Meta(ge=1)], 0, "must be a whole number, at least 1"),
        (Annotated[float, Meta(le=1.0)], 1.5, "must be a number, at most 1.0"),
        (Annotated[float, Meta(gt=0)], 0.0, "must be a number, more than 0.0"),
        (Annotated[str, Meta(max_length=3)], "long", "must have at most 3 characters"),
        (Annotated[list[int], Meta(max_length=1)], [1, 2], "must have at most 1 item"),
        (
            Annotated[datetime, Meta(tz=True)],
            "2026-01-01T00:00:00",
            "has no time zone; write it like 2026-11-16T10:00:00Z",
        ),
    ],
)
def test_a_problem_is_told_in_words_instead_of_types(kind: Any, value: Any, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind)
    assert explain_error(caught.value, ()) == ("request", problem)


def test_an_unknown_field_is_refused_with_a_suggestion() -> None:
    error = msgspec.ValidationError("Object contains unknown field `templatKey`")
    assert explain_error(error, ["templateKey"]) == ("templatKey", "is not known; did you mean templateKey?")


def test_a_field_unlike_any_other_is_refused_with_the_whole_list() -> None:
    assert unknown_field_problem("zzz", ["a", "b"]) == "is not known; it must be one of a, b"


json_values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2)
keys = st.sampled_from([*SendRequest.__struct_fields__, *SendRequest.__struct_encode_fields__, "zzz", ""])
values = json_values | st.dictionaries(st.sampled_from(["email", "body", "attachments", "x"]), json_values)


@given(st.dictionaries(keys, values))
def test_any_input_becomes_a_request_or_an_error_about_a_field(raw: dict[str, Any]) -> None:
    found: SendRequest | InvalidRequest
    try:
        found = read_request(raw)
    except InvalidRequest as error:
        found = error
    if isinstance(found, InvalidRequest):
        assert found.message.startswith(f"{found.field}: ")
    else:
        named = {to_camel_case(key) for key, value in raw.items() if value is not None}
        assert named <= set(SendRequest.__struct_encode_fields__)


def test_a_filter_takes_status_for_statuses_and_metadata_of_any_plain_kind() -> None:
    found = read_filter({"status": "failed", "metadata": {"entry_id": 42, "paid": True, "name": "x"}})
    assert found.statuses == (Status.FAILED,)
    assert found.metadata == {"entry_id": "42", "paid": "true", "name": "x"}
    assert read_filter(Filter(metadata={"a": "1"})).metadata == {"a": "1"}
    with pytest.raises(InvalidRequest, match=r"metadata\.deep: is neither a text nor a number"):
        read_filter({"metadata": {"deep": {}}})
