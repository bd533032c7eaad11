"""The send request: accepted forms, and refusals with the field's name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.notifications import Attachment, Channel, Content, Priority, Recipient
from homing.core.send_request import (
    SendLimits,
    SendRequest,
    address_of,
    channels_of,
    check_content,
    check_json,
    check_keys,
    check_names,
    find_provider_id,
    priority_of,
    provider_id,
    recipients_of,
)

LIMITS = SendLimits()
ADA = Recipient(email="ada@example.org")


def refused(field: str, problem: str = "") -> Any:
    """Expects the request to be refused because of this field."""
    return pytest.raises(InvalidRequest, match=f"^{field}: .*{problem}")


# Wire names ------------------------------------------------------------------------------------------


def test_wire_names_are_camel_case_and_a_misspelt_field_is_refused() -> None:
    found = msgspec.json.decode(
        b'{"templateKey": "t", "idempotencyKey": "k", "sendAt": "2026-01-31T09:00:00Z",'
        b' "recipient": {"deviceToken": "d", "timeZone": "Europe/Berlin"}}',
        type=SendRequest,
    )
    assert (found.template_key, found.idempotency_key, found.priority) == ("t", "k", "medium")
    assert found.recipient == Recipient(device_token="d", time_zone="Europe/Berlin")
    with pytest.raises(msgspec.ValidationError, match="templatKey"):
        msgspec.json.decode(b'{"templatKey": "t"}', type=SendRequest)


# Channels, recipients, priority, provider ------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "channels", "found"),
    [
        ("sms", (), (Channel.SMS,)),
        ("SMS", (), (Channel.SMS,)),
        (None, ("push", "email"), (Channel.PUSH, Channel.EMAIL)),
        ("sms", ("push", "sms", "push"), (Channel.SMS, Channel.PUSH)),
        ("both", (), (Channel.EMAIL, Channel.PUSH)),
        ("Both", ("email", "chat"), (Channel.EMAIL, Channel.PUSH, Channel.CHAT)),
        ("push", ("both",), (Channel.PUSH, Channel.EMAIL)),
    ],
)
def test_repeated_channels_count_once_and_keep_their_order(
    channel: str | None, channels: tuple[str, ...], found: tuple[Channel, ...]
) -> None:
    assert channels_of(SendRequest(channel=channel, channels=channels)) == found


def test_a_missing_or_unknown_channel_is_refused_with_the_known_ones() -> None:
    for request in (SendRequest(), SendRequest(channel="fax"), SendRequest(channels=("sms", "fax"))):
        with refused("channel", "sms, email, push, webhook, chat, queue or both"):
            channels_of(request)


def test_one_recipient_or_a_list_is_accepted_but_not_both() -> None:
    other = Recipient(id="u-2")
    assert recipients_of(SendRequest(recipient=ADA), LIMITS) == (ADA,)
    assert recipients_of(SendRequest(recipients=(ADA, other)), LIMITS) == (ADA, other)
    with refused("recipients", "both given"):
        recipients_of(SendRequest(recipient=ADA, recipients=(other,)), LIMITS)
    with refused("recipient", "missing"):
        recipients_of(SendRequest(), LIMITS)


def test_the_number_of_recipients_is_limited() -> None:
    limits = SendLimits(fan_out=2)
    assert len(recipients_of(SendRequest(recipients=(ADA, ADA)), limits)) == 2
    with refused("recipients", "at most 2 are allowed"):
        recipients_of(SendRequest(recipients=(ADA, ADA, ADA)), limits)


@pytest.mark.parametrize("name", Recipient.__struct_fields__)
@pytest.mark.parametrize("bad", ["a\x00b", "a\nb", "a\ud800b", "x" * 5_000])
def test_no_field_of_a_recipient_may_contain_text_that_a_store_cannot_keep(name: str, bad: str) -> None:
    request = SendRequest(recipients=(ADA, replace(ADA, **{name: bad})))
    with refused(r"recipient\.(id|email|phone|deviceToken|url|locale|timeZone)"):
        recipients_of(request, LIMITS)


def test_normal_means_medium_priority_and_case_does_not_matter() -> None:
    assert {priority_of(name) for name in ("medium", "normal", "NORMAL", "Medium")} == {Priority.MEDIUM}
    assert [priority_of(p.value.upper()) for p in Priority] == list(Priority)
    with refused("priority", "critical, high, medium, low"):
        priority_of("urgent")


@pytest.mark.parametrize(
    ("given_name", "found"),
    [
        ("twilio", "twilio"),
        ("Twilio", "twilio"),
        ("AWS_SNS", "sns"),
        ("AWS SNS", "sns"),
        ("aws-sns", "sns"),
        ("Azure Communication Services", "acs"),
        ("AZURE-COMMUNICATION_services", "acs"),
        ("Firebase Cloud Messaging", "fcm"),
        ("My Own-Provider", "my own-provider"),
        (" SendGrid ", "sendgrid"),
        ("Azure_Communication_Services", "acs"),
        ("FCM", "fcm"),
    ],
)
def test_provider_names_are_accepted_as_the_sources_spell_them(given_name: str, found: str) -> None:
    assert find_provider_id(given_name, ()) == found


@pytest.mark.parametrize("name", ["aws-sns", "AWS-SNS ", "azure-communication-services", "aws sns"])
def test_an_id_goes_before_an_alias_and_settings_keep_their_ids(name: str) -> None:
    id = name.strip().lower()
    assert find_provider_id(name, {id, "sns", "acs"}) == provider_id(name) == id


def test_four_spellings_are_the_same_provider_in_the_settings() -> None:
    names = ("AWS_SNS", "azure", "Azure_Communication_Services", "firebase", "firebase-cloud-messaging")
    assert [*map(provider_id, names)] == ["sns", "acs", "acs", "fcm", "firebase-cloud-messaging"]


# Addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "recipient", "address"),
    [
        (Channel.EMAIL, Recipient(email=" Ada@Example.ORG "), "Ada@example.org"),
        (Channel.EMAIL, Recipient(email="ada+x@localhost"), "ada+x@localhost"),
        (Channel.SMS, Recipient(phone="+1 (555) 01-00.00"), "+15550100" + "00"),
        (Channel.SMS, Recipient(phone="112"), "112"),
        (Channel.PUSH, Recipient(device_token="t:1/x"), "t:1/x"),
        (
            Channel.WEBHOOK,
            Recipient(url="https://shop.example:8443/in?x=1"),
            "https://shop.example:8443/in?x=1",
        ),
        (Channel.WEBHOOK, Recipient(url="http://[::1]/in"), "http://[::1]/in"),
        (Channel.CHAT, Recipient(url="slack://a/b/c"), "slack://a/b/c"),
        (Channel.QUEUE, Recipient(url="orders.created"), "orders.created"),
    ],
)
def test_an_address_is_normalized(channel: Channel, recipient: Recipient, address: str) -> None:
    assert address_of(recipient, channel) == address


@pytest.mark.parametrize(
    ("channel", "field", "raw"),
    [
        (Channel.EMAIL, "email", "ada"),
        (Channel.EMAIL, "email", "ada@"),
        (Channel.EMAIL, "email", "@example.org"),
        (Channel.EMAIL, "email", "a@b@example.org"),
        (Channel.EMAIL, "email", "ada@example..org"),
        (Channel.EMAIL, "email", "ada@example.org."),
        (Channel.EMAIL, "email", "Ada <ada@example.org>"),
        (Channel.EMAIL, "email", "ada@example.org,bob@example.org"),
        (Channel.EMAIL, "email", "ada@example.org\r\nBcc: all@example.org"),
        (Channel.EMAIL, "email", "a\ud800@example.org"),
        (Channel.EMAIL, "email", "x" * 2_049),
        (Channel.SMS, "phone", "12"),
        (Channel.SMS, "phone", "+1234567890123456"),
        (Channel.SMS, "phone", "call me"),
        (Channel.SMS, "phone", "１２３４"),
        (Channel.WEBHOOK, "url", "shop.example/in"),
        (Channel.WEBHOOK, "url", "ftp://shop.example/in"),
        (Channel.WEBHOOK, "url", "file:///etc/passwd"),
        (Channel.WEBHOOK, "url", "https:///in"),
        (Channel.WEBHOOK, "url", "https://shop.example:99999/in"),
        (Channel.WEBHOOK, "url", "https://shop.example:0/in"),
        (Channel.WEBHOOK, "url", "https://[::1/in"),
        (Channel.WEBHOOK, "url", "https://shop.example/a b"),
        (Channel.WEBHOOK, "url", "https://shop.example/\r\nX-Evil:yes"),
        (Channel.PUSH, "deviceToken", "a\x00b"),
        (Channel.PUSH, "deviceToken", "   "),
    ],
)
def test_an_invalid_address_is_refused(channel: Channel, field: str, raw: str) -> None:
    names = {"deviceToken": "device_token"}
    with refused(rf"recipient\.{field}"):
        address_of(Recipient(**{names.get(field, field): raw}), channel)


@pytest.mark.parametrize("channel", list(Channel))
def test_a_missing_address_is_named_together_with_a_known_recipient_s_id(channel: Channel) -> None:
    with refused(r"recipient\.(email|phone|deviceToken|url)", "is empty"):
        address_of(Recipient(), channel)
    with refused(r"recipient\.id", f"'u-1' has no .* which {channel.value} needs"):
        address_of(Recipient(id="u-1"), channel)


# Content ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "content"),
    [
        (Channel.EMAIL, Content(subject="s")),
        (Channel.EMAIL, Content(title="t", data={"a": 1})),
        (Channel.SMS, Content(html="<p>")),
        (Channel.SMS, Content(text="")),
        (Channel.PUSH, Content(text="t")),
        (Channel.CHAT, Content(subject="s")),
        (Channel.QUEUE, Content(title="t")),
        (Channel.WEBHOOK, Content(html="<p>")),
    ],
)
def test_content_that_is_empty_for_its_channel_is_refused(channel: Channel, content: Content) -> None:
    with refused("content", f"empty for {channel.value}"):
        check_content(content, channel, LIMITS)


@pytest.mark.parametrize("channel", list(Channel))
def test_a_body_is_enough_on_every_channel(channel: Channel) -> None:
    check_content(Content(body="Grüße,\n\tAda 🐦"), channel, LIMITS)


@pytest.mark.parametrize("part", ["subject", "title"])
@pytest.mark.parametrize("bad", ["a\nb", "a\r\nBcc: x", "a\x00b", "a\u2028b", "a\ud800b"])
def test_a_line_break_in_a_single_line_field_is_refused(part: str, bad: str) -> None:
    with refused(rf"content\.{part}"):
        check_content(replace(Content(body="b"), **{part: bad}), Channel.EMAIL, LIMITS)


@pytest.mark.parametrize("part", ["body", "text", "html"])
@pytest.mark.parametrize("bad", ["a\x00b", "a\x1bb", "a\udfffb"])
def test_text_with_hidden_characters_is_refused(part: str, bad: str) -> None:
    with refused(rf"content\.{part}"):
        check_content(replace(Content(body="b"), **{part: bad}), Channel.EMAIL, LIMITS)


def test_the_size_of_the_content_is_its_total_in_bytes() -> None:
    limits = SendLimits(content_bytes=10)
    check_content(Content(body="ü" * 5), Channel.SMS, limits)
    with refused("content", "has 12 bytes; at most 10 are allowed"):
        check_content(Content(body="ü" * 5, subject="ab"), Channel.SMS, limits)
    with refused("content", "at most 10 are allowed"):
        check_content(Content(data={"k": "123456"}), Channel.PUSH, limits)


def test_attachments_have_their_own_limit_and_plain_names() -> None:
    def attached(**fields: str) -> Content:
        return Content(body="b", attachments=(Attachment(**{"filename": "f", "content": "QQ==", **fields}),))

    check_content(attached(), Channel.EMAIL, LIMITS)
    with refused(r"content\.attachments", "have 4 bytes; at most 3 are allowed"):
        check_content(attached(), Channel.EMAIL, SendLimits(attachments_bytes=3))
    with refused(r"content\.attachments\.content", "not base64"):
        check_content(attached(content="not base64!"), Channel.EMAIL, LIMITS)
    with refused(r"content\.attachments\.filename"):
        check_content(attached(filename="a\r\nb"), Channel.EMAIL, LIMITS)
    with refused(r"content\.attachments\.contentType"):
        check_content(attached(content_type="text/plain\nX: y"), Channel.EMAIL, LIMITS)


# Names and free JSON ---------------------------------------------------------------------------------


def test_common_names_and_keys_are_accepted() -> None:
    usual = SendRequest(
        type="order.confirmed/v2",
        category="a-b:c",
        origin="auth",
        template_key="t",
        idempotency_key="~ k",
    )
    for request in (SendRequest(), usual):
        check_names(request)
        check_keys(request)


@pytest.mark.parametrize(
    ("field", "name", "bad"),
    [
        ("type", "type", ""),
        ("type", "type", "a b"),
        ("type", "type", "x" * 101),
        ("category", "category", "a\nb"),
        ("template_key", "templateKey", "a'b"),
        ("origin", "origin", "a*b"),
        ("idempotency_key", "idempotencyKey", ""),
        ("idempotency_key", "idempotencyKey", "ü"),
        ("idempotency_key", "idempotencyKey", "x" * 256),
        ("dedup_key", "dedupKey", "a\tb"),
    ],
)
def test_an_invalid_name_or_key_is_refused(field: str, name: str, bad: str) -> None:
    with refused(name):
        check_names(replace(SendRequest(), **{field: bad}))
        check_keys(replace(SendRequest(), **{field: bad}))


def nested(levels: int) -> Any:
    value: Any = "leaf"
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def test_free_json_is_limited_in_depth_and_size() -> None:
    check_json(None, "metadata", LIMITS)
    check_json(nested(32), "metadata", LIMITS)
    with refused(r"metadata\.k\[0\]\..*", "nested too deeply"):
        check_json(nested(33), "metadata", LIMITS)
    check_json({"k": "12345"}, "metadata", LIMITS, 13)
    with refused("metadata", "has 13 bytes; at most 12 are allowed"):
        check_json({"k": "12345"}, "metadata", LIMITS, 12)


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ({"k": "a\x00b"}, "metadata.k"),
        ({"a\x00b": 1}, r"metadata['a\x00b']"),
        ({"k": ["x", ("a\ud800b",)]}, "metadata.k[1][0]"),
        ({"\ud800": 1}, r"metadata['\ud800']"),
        ({1: "x"}, "metadata"),
        ({"k": object()}, "metadata.k"),
        ({"k": {"deep": [1, {2: 3}]}}, "metadata.k.deep[1]"),
        ({"k": 2**63}, "metadata.k"),
        ({"k": [-(2**63) - 1]}, "metadata.k[0]"),
        ({"k": float("nan")}, "metadata.k"),
        ({"k": float("-inf")}, "metadata.k"),
    ],
)
def test_json_that_a_store_cannot_keep_is_refused_with_its_path(bad: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_json(bad, "metadata", LIMITS)
    assert caught.value.field == path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abc"), json_values))
def test_accepted_free_json_can_be_written_and_read_back(value: dict[str, Any]) -> None:
    try:
        check_json(value, "metadata", LIMITS)
    except InvalidRequest:
        assert "\\u0000" in msgspec.json.encode(value).decode()
    else:
        assert msgspec.json.decode(msgspec.json.encode(value)) == value


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00")), st.floats() | json_values
    )
)
def test_free_json_is_refused_exactly_above_its_size_limit(value: dict[str, Any]) -> None:
    try:
        check_json(value, "metadata", LIMITS)
    except InvalidRequest:
        return  # refused for another reason
    size = len(msgspec.json.encode(value))
    check_json(value, "metadata", LIMITS, size)
    if value:
        with refused("metadata", f"has {size} bytes; at most {size - 1} are allowed"):
            check_json(value, "metadata", LIMITS, size - 1)
