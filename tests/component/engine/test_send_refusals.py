"""Invalid sends are refused with the field's name and what is allowed, and nothing is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from homing import Homing, InvalidRequest, Recipient
from homing.core.errors import TemplateNotFound
from homing.core.notifications import Attachment, Content
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import START_MS
from support.engine_harness import ADA, PHONE, EngineHarness, refused, serving, stored

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)
EMAIL: dict[str, Any] = {"recipient": ADA, "channel": "email", "body": "Hello"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"more": value}
    return value


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("an unknown channel", {"channel": "fax"}, "channel", "it must be one of sms, email, push"),
    ("no channel", {"channel": None, "recipient": {"email": ADA}}, "channel", "is missing"),
    ("an unknown channel among others", {"channels": ["email", "pigeon"]}, "channel", "'pigeon'"),
    ("a channel that is no text", {"channel": 5}, "channel", ""),
    ("channels that are no list", {"channels": 5}, "channels", ""),
    ("an unknown priority", {"priority": "asap"}, "priority", "critical, high, medium, low"),
    ("an empty recipient", {"recipient": ""}, "recipient.email", "is empty"),
    ("a blank recipient", {"recipient": "   "}, "recipient.email", "is empty"),
    ("no recipient", {"recipient": None}, "recipient", "is missing"),
    ("no recipients", {"recipient": []}, "recipient", "is missing"),
    ("a recipient that is a number", {"recipient": 5}, "recipient", ""),
    ("a recipient without any address", {"recipient": Recipient(locale="de")}, "recipient.email", "is empty"),
    ("an unknown recipient id", {"recipient": {"id": "u-9"}}, "recipient.id", "'u-9' has no email"),
    ("an address that is none", {"recipient": "ada"}, "recipient.email", "name@example.org"),
    ("two addresses in one", {"recipient": f"{ADA}, bob@example.org"}, "recipient.email", "email address"),
    ("a phone number that is none", {"recipient": "call me", "channel": "sms"}, "recipient.phone", "+15550"),
    ("a URL that is none", {"recipient": "ftp://x", "channel": "webhook"}, "recipient.url", "https://"),
    ("an address that is too long", {"recipient": "x" * 9000, "channel": "push"}, "recipient.device", "4096"),
    ("one address for two channels", {"channel": "both"}, "recipient", "several channels"),
    ("a misspelt recipient key", {"recipient": {"emial": ADA, "email": ADA}}, "recipient.emial", "email"),
    ("a locale that is no text", {"recipient": {"email": ADA, "locale": 5}}, "recipient.locale", "str"),
    ("no content", {"body": None}, "content", "is missing"),
    ("content that says nothing here", {"body": None, "subject": "Hi"}, "content", "text, html, body"),
    ("content and a template", {"template_key": "welcome"}, "content", "templateKey"),
    ("content and its short form", {"content": Content(body="x")}, "content", "both given"),
    ("a misspelt part", {"body": None, "content": {"boddy": "x", "body": "y"}}, "content.boddy", "body"),
    ("a body that is no text", {"body": 5}, "content.body", "str"),
    ("a body of a megabyte", {"body": "x" * 1_048_576}, "content", "1048576 bytes; at most 262144"),
    (
        "data of a megabyte",
        {"body": None, "content": {"body": "x", "data": {"x": "y" * 1_048_576}}},
        "cont",
        "",
    ),
    ("a subject of two lines", {"subject": "Hi\r\nBcc: all@example.org"}, "content.subject", "line"),
    ("a type with spaces", {"type": "order confirmed"}, "type", "1 to 100 letters"),
    ("a type that is a number", {"type": 5}, "type", "str"),
    ("an empty category", {"category": ""}, "category", "1 to 100"),
    ("an origin that is too long", {"origin": "o" * 101}, "origin", "1 to 100"),
    ("an idempotency key with an umlaut", {"idempotency_key": "schlüssel"}, "idempotencyKey", "ASCII"),
    ("an empty idempotency key", {"idempotency_key": ""}, "idempotencyKey", "1 to 255"),
    ("a dedup key that is too long", {"dedup_key": "k" * 256}, "dedupKey", "1 to 255"),
    ("an unknown provider", {"provider": "carrier-pigeon"}, "provider", "providers that do: any"),
    ("metadata that is too deep", {"metadata": nested(40)}, "metadata", "32 levels"),
    ("metadata that is too large", {"metadata": {"x": "y" * 20_000}}, "metadata", "at most 16384"),
    ("metadata with a number for a key", {"metadata": {"a": {1: 2}}}, "metadata", "keys must be text"),
    ("metadata with a number for its key", {"metadata": {1: 2}}, "metadata", ""),
    ("metadata that is no JSON", {"metadata": {"x": object()}}, "metadata", "JSON"),
    ("metadata with a number no store holds", {"metadata": {"n": 2**70}}, "metadata", ""),
    ("metadata that is a list", {"metadata": ["x"]}, "metadata", "object"),
    ("a send_at in the past by a duration", {"send_at": timedelta(seconds=-1)}, "sendAt", "negative"),
    ("an expires_at before now", {"expires_at": timedelta(seconds=-1)}, "expiresAt", "negative"),
    ("an expires_at that is now", {"expires_at": timedelta(0)}, "expiresAt", "must be later than now"),
    ("an expiry long ago", {"expires_at": NOW - timedelta(days=1)}, "expiresAt", "must be later than now"),
    (
        "an expiry before its time",
        {"send_at": timedelta(hours=2), "expires_at": timedelta(hours=1)},
        "expiresAt",
        "sendAt",
    ),
    ("a time without a zone", {"send_at": datetime(2030, 1, 1)}, "sendAt", "time zone"),
    ("an expiry without a zone", {"expires_at": datetime(2030, 1, 1)}, "expiresAt", "time zone"),
    ("a time that is no time", {"send_at": "tomorrow"}, "sendAt", ""),
    ("a duration beyond all time", {"send_at": timedelta(days=10**8)}, "sendAt", ""),
    ("a misspelt field", {"priorty": "high"}, "priorty", "priority"),
    ("a flag that is no flag", {"bulk": "yes"}, "bulk", "true or false"),
    ("a synchronous one for later", {"synchronous": True, "send_at": timedelta(1)}, "sendAt", "synchronous"),
    (
        "a synchronous one for two",
        {"synchronous": True, "recipient": [ADA, "bob@example.org"]},
        "synchronous",
        "one recipient",
    ),
    (
        "a synchronous one over two channels",
        {"synchronous": True, "recipient": {"email": ADA, "deviceToken": "t"}, "channel": "both"},
        "synchronous",
        "one channel",
    ),
    (
        "an otp for two",
        {"type": "otp", "recipient": [ADA, "bob@example.org"]},
        "synchronous",
        "one recipient",
    ),
]


@pytest.mark.parametrize(
    ("fields", "field", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
async def test_an_invalid_request_is_refused_by_field(
    harness: EngineHarness, fields: dict[str, Any], field: str, says: str
) -> None:
    error = await refused(harness, fields)
    assert error.field.startswith(field)
    assert says in error.message
    assert error.message.startswith(f"{error.field}: ")


TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("subject", {"subject": "{}"}),
    ("title", {"title": "{}"}),
    ("body", {"body": "{}"}),
    ("html", {"html": "{}"}),
    ("text", {"body": None, "content": {"text": "{}"}}),
    ("content.data", {"body": None, "content": {"body": "x", "data": {"a": ["{}"]}}}),
    ("content.data key", {"body": None, "content": {"body": "x", "data": {"{}": 1}}}),
    ("metadata", {"metadata": {"a": {"b": "{}"}}}),
    ("metadata key", {"metadata": {"{}": 1}}),
    ("template data", {"body": None, "template_key": "t", "data": {"a": "{}"}}),
    ("type", {"type": "{}"}),
    ("category", {"category": "{}"}),
    ("origin", {"origin": "{}"}),
    ("template key", {"body": None, "template_key": "{}"}),
    ("provider", {"provider": "{}"}),
    ("idempotency key", {"idempotency_key": "{}"}),
    ("dedup key", {"dedup_key": "{}"}),
    ("email", {"recipient": {"email": "{}@example.org"}}),
    ("recipient id", {"recipient": {"id": "{}", "email": ADA}}),
    ("recipient locale", {"recipient": {"email": ADA, "locale": "{}"}}),
    ("recipient time zone", {"recipient": {"email": ADA, "time_zone": "{}"}}),
    ("the address of another channel", {"recipient": {"email": ADA, "device_token": "{}"}}),
    ("phone", {"channel": "sms", "recipient": {"phone": "{}15550100"}}),
    ("device token", {"channel": "push", "recipient": {"deviceToken": "t{}"}}),
    ("url", {"channel": "webhook", "recipient": {"url": "https://example.org/{}"}}),
    (
        "attachment name",
        {"body": None, "content": Content(body="x", attachments=(Attachment("{}", "eA=="),))},
    ),
    (
        "attachment type",
        {"body": None, "content": Content(body="x", attachments=(Attachment("a", "eA==", "{}"),))},
    ),
    (
        "attachment content",
        {"body": None, "content": Content(body="x", attachments=(Attachment("a", "{}"),))},
    ),
]


def filled(value: Any, with_: str) -> Any:
    if isinstance(value, str):
        return value.replace("{}", f"a{with_}b")
    if isinstance(value, dict):
        return {filled(key, with_): filled(item, with_) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, with_) for item in value]
    if isinstance(value, Content):
        attached = tuple(
            Attachment(filled(a.filename, with_), filled(a.content, with_), filled(a.content_type, with_))
            for a in value.attachments
        )
        return Content(body=value.body, attachments=attached)
    return value


@pytest.mark.parametrize("fields", [case[1] for case in TEXTS], ids=[case[0] for case in TEXTS])
@pytest.mark.parametrize("hidden", ["\x00", "\ud800"], ids=["NUL", "surrogate"])
async def test_no_text_may_contain_nul_or_a_lone_surrogate(
    harness: EngineHarness, fields: dict[str, Any], hidden: str
) -> None:
    await refused(harness, filled(fields, hidden))


@pytest.mark.parametrize("hidden", ["\x07", "\x1b[2J", "\x7f"], ids=["bell", "escape", "delete"])
@pytest.mark.parametrize("field", ["subject", "title", "body", "html", "type", "recipient"])
async def test_no_text_may_contain_control_characters(
    harness: EngineHarness, field: str, hidden: str
) -> None:
    value = f"a{hidden}b@example.org"
    error = await refused(harness, {field: value})
    assert field in error.field


async def test_line_breaks_and_any_script_are_allowed_in_a_body(harness: EngineHarness) -> None:
    engine = await harness.open({"any": ScriptedProvider()}, working=False)
    body = "Zeile 1\r\n\tZeile 2 · 你好 · 👋🏽 · ‏שלום"
    sent = await engine.send(ADA, channel="email", body=body)
    assert (await engine.get(sent.id)).content.body == body


async def test_an_unserved_channel_is_refused_with_the_served_ones(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": serving("mail", ScriptedProvider())}, working=False)
    with pytest.raises(InvalidRequest, match="sms has no provider; channels with a provider: email"):
        await engine.send(PHONE, channel="sms", body="x")
    assert await stored(harness) == 0


async def test_attachments_have_their_own_size_limit(harness: EngineHarness) -> None:
    content = Content(body="x", attachments=(Attachment("a.bin", "A" * 2000),))
    error = await refused(harness, {"body": None, "content": content}, limits={"attachments_bytes": 1000})
    assert error.field == "content.attachments"
    assert "2000 bytes; at most 1000 are allowed" in error.message


async def test_the_fan_out_has_a_limit(harness: EngineHarness) -> None:
    people = [f"p{n}@example.org" for n in range(11)]
    error = await refused(harness, {"recipient": people}, limits={"fan_out": 10})
    assert (error.field, "11 entries; at most 10 are allowed" in error.message) == ("recipients", True)


async def test_one_invalid_recipient_refuses_the_whole_request(harness: EngineHarness) -> None:
    error = await refused(harness, {"recipient": [ADA, "nobody", "bob@example.org"]})
    assert error.field == "recipient.email"


async def test_recipient_and_recipients_together_are_refused(harness: EngineHarness) -> None:
    error = await refused(harness, {"recipients": ["bob@example.org"]})
    assert error.field == "recipients"


async def test_a_template_key_without_configured_templates_is_not_found(harness: EngineHarness) -> None:
    error = await refused(harness, {"body": None, "template_key": "welcome"})
    assert isinstance(error, TemplateNotFound)
    assert "welcome" in error.message


async def test_a_delay_and_the_equivalent_time_give_the_same_result(harness: EngineHarness) -> None:
    engine: Homing = await harness.open({"any": ScriptedProvider()}, working=False)
    by_duration = await engine.send(ADA, channel="email", body="x", send_at=timedelta(hours=1))
    by_text = await engine.send(ADA, channel="email", body="x", send_at=NOW + timedelta(hours=1))
    assert (await engine.get(by_duration.id)).send_at == (await engine.get(by_text.id)).send_at
