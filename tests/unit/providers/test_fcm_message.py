"""FCM's requests: the vectors of Google's SDK, and every body checked against Google's discovery document."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing import Content, OutcomeKind, Priority
from homing.core.errors import ConfigError
from homing.net.http_client import CurlTransport
from homing.providers.common.http_provider import Unsendable
from homing.providers.common.push_content import MAX_TTL_S
from homing.providers.fcm.message import MAX_PAYLOAD_BYTES, FcmMessageBuilder
from homing.providers.fcm.provider import FcmProvider
from support.google_discovery import complaints
from support.push_deliveries import FCM, KEY_FILE, NOW_MS, a_push, an_fcm
from support.vector_files import VECTORS

SCHEMAS = json.loads((VECTORS / "specs/fcm.v1.discovery.json").read_text())["schemas"]


def message_of(
    messages: FcmMessageBuilder | None = None, now_ms: int = NOW_MS, **fields: Any
) -> dict[str, Any]:
    body = json.loads((messages or FcmMessageBuilder()).body(a_push(**fields), now_ms))
    assert list(complaints(body, {"$ref": "SendMessageRequest"}, SCHEMAS)) == []
    message: dict[str, Any] = body["message"]
    return message


def refusal_of(messages: FcmMessageBuilder | None = None, **fields: Any) -> Unsendable:
    with pytest.raises(Unsendable) as refused:
        (messages or FcmMessageBuilder()).body(a_push(**fields), NOW_MS)
    assert refused.value.outcome.kind is OutcomeKind.BAD_CONTENT
    return refused.value


def test_the_request_equals_that_of_google_s_sdk() -> None:
    vector = FCM["send"]["body"]["message"]
    provider = an_fcm(
        CurlTransport(),
        "https://fcm.googleapis.com",
        android={"ttl": vector["android"]["ttl"], "collapse_key": vector["android"]["collapse_key"]},
        apns={"payload": vector["apns"]["payload"]},
        webpush=vector["webpush"],
    )
    request = provider.build(a_push(), NOW_MS)
    assert request.url == f"https://fcm.googleapis.com{FCM['send']['path']}"
    expected = copy.deepcopy(FCM["send"]["body"])
    expected["message"]["webpush"]["headers"]["Urgency"] = (
        "high"  # from our priority; the SDK's caller gave none
    )
    assert json.loads(request.body) == expected


def test_a_dry_run_is_marked_as_in_the_sdk() -> None:
    body = json.loads(FcmMessageBuilder(validate_only=True).body(a_push(), NOW_MS))
    assert {"validate_only": body["validate_only"]} == FCM["send"]["dry_run_member"]


def test_the_test_s_own_checker_refuses_wrong_bodies() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"message": {"token": 7}},
        {"message": {"tokn": "x"}},
        {"message": {"data": {"k": 7}}},
        {"message": {"android": {"priority": "urgent"}}},
        {"message": {"android": {"ttl": "1 hour"}}},
        {"message": {"apns": {"headers": {"apns-priority": 5}}}},
        {"message": []},
    )
    for wrong in wrongs:
        assert list(complaints(wrong, {"$ref": "SendMessageRequest"}, SCHEMAS)), wrong


def test_an_installation_id_is_in_the_field_that_google_requires() -> None:
    message = message_of(FcmMessageBuilder(target="fid"))
    assert (message["fid"], "token" in message) == ("tok1", False)


@pytest.mark.parametrize(
    ("priority", "android", "apple", "web"),
    [
        (Priority.CRITICAL, "high", "10", "high"),
        (Priority.HIGH, "high", "10", "high"),
        (Priority.MEDIUM, "normal", "5", "normal"),
        (Priority.LOW, "normal", "5", "low"),
    ],
)
def test_the_priority_is_set_for_every_platform(
    priority: Priority, android: str, apple: str, web: str
) -> None:
    message = message_of(priority=priority)
    assert message["android"]["priority"] == android
    assert message["apns"]["headers"]["apns-priority"] == apple
    assert message["webpush"]["headers"]["Urgency"] == web


def test_an_expiry_limits_the_time_to_live_on_every_platform() -> None:
    message = message_of(expires_at=NOW_MS + 90_500)
    assert message["android"]["ttl"] == "90s"
    assert message["apns"]["headers"]["apns-expiration"] == str(NOW_MS // 1000 + 90)
    assert message["webpush"]["headers"]["TTL"] == "90"


def test_an_expired_message_has_a_time_to_live_of_zero() -> None:
    message = message_of(expires_at=NOW_MS - 1)
    assert (message["android"]["ttl"], message["apns"]["headers"]["apns-expiration"]) == ("0s", "0")


def test_the_time_to_live_is_at_most_four_weeks() -> None:
    assert message_of(expires_at=NOW_MS + 10**12)["android"]["ttl"] == f"{MAX_TTL_S}s"


def test_an_expiry_overrides_the_default_time_to_live_and_the_settings() -> None:
    messages = FcmMessageBuilder(ttl_seconds=7, android={"ttl": "9s"})
    assert message_of(messages)["android"]["ttl"] == "7s"
    assert message_of(messages, expires_at=NOW_MS + 5_000)["android"]["ttl"] == "5s"


def test_settings_override_the_priority_and_messages_do_not_affect_each_other() -> None:
    messages = FcmMessageBuilder(
        collapse="type", android={"priority": "normal", "restricted_package_name": "org.example"}
    )
    first = message_of(messages, type="first", expires_at=NOW_MS + 1_000)
    second = message_of(messages, type="second")
    assert first["android"]["priority"] == "normal"
    assert first["android"]["restricted_package_name"] == "org.example"
    assert "ttl" not in second["android"]
    assert (first["android"]["collapse_key"], second["android"]["collapse_key"]) == ("first", "second")
    assert second["apns"]["headers"]["apns-collapse-id"] == second["webpush"]["headers"]["Topic"] == "second"


def test_data_without_text_reaches_an_apple_app_silently() -> None:
    message = message_of(content=Content(data={"k": "v"}))
    assert "notification" not in message
    assert message["apns"]["headers"]["apns-priority"] == "5"
    assert message["apns"]["payload"] == {"aps": {"content-available": 1}}


def test_an_image_is_taken_from_the_data() -> None:
    message = message_of(content=Content(body="B", data={"image": "https://example.org/i.png", "k": "v"}))
    assert message["notification"] == {"body": "B", "image": "https://example.org/i.png"}
    assert message["data"] == {"k": "v"}


def test_an_image_that_is_not_an_https_url_is_ignored() -> None:
    message = message_of(content=Content(body="B", data={"image": "http://example.org/i.png"}))
    assert message["data"] == {"image": "http://example.org/i.png"}


def test_a_subject_is_used_as_the_title() -> None:
    assert message_of(content=Content(subject="S", body="B"))["notification"] == {"title": "S", "body": "B"}
    assert "notification" not in message_of(content=Content(subject="S", data={"k": "v"}))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (2.5, "2.5"),
        (True, "true"),
        (None, "null"),
        (["a", 1], '["a",1]'),
        ({"a": {"b": 1}}, '{"a":{"b":1}}'),
        ("5", "5"),
    ],
)
def test_data_that_is_not_text_is_written_as_json(value: Any, text: str) -> None:
    message = message_of(content=Content(body="B", data={"count": value, "k": "v"}))
    assert message["data"] == {"count": text, "k": "v"}


@pytest.mark.parametrize("key", ["from", "message_type", "google.x", "gcm.notification.x"])
def test_names_that_google_reserves_are_refused(key: str) -> None:
    assert key in str(refusal_of(content=Content(body="B", data={key: "x"})))


def test_an_empty_push_is_refused() -> None:
    assert refusal_of(content=Content(text="for an email")).outcome.error_code == "empty"


def test_the_payload_may_have_at_most_4096_bytes() -> None:
    shown = len(b'{"body":""}') + len(b"{}")
    room = MAX_PAYLOAD_BYTES - shown
    message_of(content=Content(body="x" * room))
    assert refusal_of(content=Content(body="x" * (room + 1))).outcome.error_code == "too_large"
    assert refusal_of(content=Content(body="ä" * (room // 2 + 1))).outcome.error_code == "too_large"


def test_a_long_token_and_settings_do_not_count_as_payload() -> None:
    message_of(FcmMessageBuilder(android={"notification": {"tag": "t" * 2000}}), address="t" * 4000)


@given(
    title=st.none() | st.text(),
    body=st.none() | st.text(),
    data=st.dictionaries(st.text(), st.text(), max_size=4) | st.dictionaries(st.text(), st.integers()),
    priority=st.sampled_from(Priority),
    expires_at=st.none() | st.integers(-(2**60), 2**60),
    type=st.text(min_size=1),
    collapse=st.sampled_from(["none", "type", "notification"]),
)
def test_every_message_is_refused_or_valid_by_google_s_description(
    title: str | None, body: str | None, data: Any, priority: Priority, expires_at: int | None, type: str,
    collapse: str,
) -> None:  # fmt: skip
    content = Content(title=title, body=body, data=data)
    with suppress(Unsendable):
        message_of(
            FcmMessageBuilder(collapse=collapse),
            content=content,
            priority=priority,
            expires_at=expires_at,
            type=type,
        )


# Settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("service_account", "not json, with a secret in it"),
        ("service_account", "{}"),
        ("service_account", json.dumps({**json.loads(KEY_FILE), "private_key": "-----BEGIN secret"})),
        ("service_account", '{"client_email": "svc@demo-proj.example"}'),
        ("project_id", "../other"),
        ("base_url", "fcm.googleapis.com"),
        ("base_url", "https://user:secret in it@fcm.example"),
        ("token_uri", "https://oauth2.example:port/token"),
        ("target", "topic"),
        ("collapse", "always"),
        ("ttl_seconds", MAX_TTL_S + 1),
        ("ttl_seconds", -1),
    ],
)
def test_a_wrong_setting_is_named_without_its_secret(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        an_fcm(CurlTransport(), **{setting: value})
    assert refused.value.field == setting
    assert "secret in it" not in str(refused.value)
    assert "BEGIN" not in str(refused.value)


def test_without_a_key_file_the_project_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(ConfigError, match="set project_id") as refused:
        an_fcm(CurlTransport(), service_account="", token_uri="")
    assert refused.value.field == "service_account"


def test_a_key_file_without_a_project_needs_one_in_the_settings() -> None:
    key = json.dumps({k: v for k, v in json.loads(KEY_FILE).items() if k != "project_id"})
    with pytest.raises(ConfigError, match="project_id"):
        FcmProvider(CurlTransport(), service_account=key)
    made = FcmProvider(CurlTransport(), service_account=key, project_id="mine")
    assert made.build(a_push(), NOW_MS).url.endswith("/v1/projects/mine/messages:send")
