"""The webhook provider's requests: signed, equal for every attempt except for their time, and guarded."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook

from homing.core.errors import ConfigError
from homing.core.ids import uuid7
from homing.core.notifications import Channel, Content, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import Unsendable
from homing.providers.webhook.provider import WebhookProvider
from homing.testing.provider_suite import NOW_MS, a_delivery

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "https://hooks.example.org/in?x=1"


def provider(**settings: Any) -> WebhookProvider:
    return WebhookProvider(CurlTransport(), **{"secret": SECRET, **settings})


def delivery(content: Content | None = None, **fields: Any) -> Delivery:
    return a_delivery(Channel.WEBHOOK, URL, content or Content(data={"order": 7}), **fields)


def said(request: HttpRequest) -> Any:
    return msgspec.json.decode(request.body)


def test_the_official_library_verifies_our_signature() -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    request = provider().build(delivery(), now_ms)
    assert Webhook(SECRET).verify(request.body, dict(request.headers))["data"] == {"order": 7}


def test_the_payload_has_type_time_and_data() -> None:
    made_ms = 1_700_000_000_123
    asked = delivery(type="order-confirmed/v2", notification_id=uuid7(made_ms, 1))
    assert said(provider().build(asked, NOW_MS)) == {
        "type": "order_confirmed_v2",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "data": {"order": 7},
    }


def test_texts_are_included_and_data_overrides_them() -> None:
    content = Content(title="Hello", body="Hi Ada", data={"title": "mine", "n": 1})
    assert said(provider().build(delivery(content), NOW_MS))["data"] == {
        "title": "mine",
        "body": "Hi Ada",
        "n": 1,
    }


def test_attempts_differ_only_in_time_and_signature() -> None:
    first = provider().build(delivery(attempt=1), NOW_MS)
    again = provider().build(delivery(attempt=2), NOW_MS + 5_000)
    assert first.body == again.body
    changed = {
        name for (name, one), (_, other) in zip(first.headers, again.headers, strict=True) if one != other
    }
    assert changed == {"webhook-timestamp", "webhook-signature"}
    assert dict(first.headers)["webhook-id"] == delivery().notification_id


def test_receivers_see_the_same_id_whatever_another_provider_reported() -> None:
    made = provider().build(delivery(idempotency_key=f"{delivery().notification_id}-2"), NOW_MS)
    assert dict(made.headers)["webhook-id"] == delivery().notification_id


def test_a_recipient_s_url_is_guarded_and_our_base_url_is_not() -> None:
    plain = provider().build(delivery(), NOW_MS)
    assert (plain.url, plain.guarded) == (URL, True)
    ours = provider(base_url="http://127.0.0.1:9/").build(delivery(), NOW_MS)
    assert (ours.url, ours.guarded) == ("http://127.0.0.1:9/in?x=1", False)


@pytest.mark.source("003", "30")
def test_headers_come_from_the_settings_the_environment_and_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FUNCTION_KEY", "Bearer secret-1")
    (tmp_path / "key").write_text("secret-2\n")
    headers = {"Authorization": "env:FUNCTION_KEY", "X-Key": f"file:{tmp_path / 'key'}", "x-from": "homing"}
    made = provider(headers=headers, recipient_hosts=["Hooks.example.org"]).build(delivery(), NOW_MS)
    sent = dict(made.headers)
    assert (sent["authorization"], sent["x-key"], sent["x-from"]) == ("Bearer secret-1", "secret-2", "homing")
    assert sent.items() >= dict(provider().build(delivery(), NOW_MS).headers).items()
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.org/in",
        "https://hooks.example.org.evil.example/in",
        "https://hooks.example.org@evil.example/in",
        "https://evil.example\\@hooks.example.org/in",
        "https://[::1]/in",
    ],
)
def test_headers_go_only_to_the_hosts_that_are_listed(url: str) -> None:
    ours = provider(headers={"Authorization": "x"}, recipient_hosts=["hooks.example.org"])
    with pytest.raises(Unsendable) as refused:
        ours.build(a_delivery(Channel.WEBHOOK, url), NOW_MS)
    assert (refused.value.outcome.kind, refused.value.outcome.error_code) == (
        OutcomeKind.BAD_RECIPIENT,
        "host",
    )
    sent = ours.build(a_delivery(Channel.WEBHOOK, "https://hooks.example.org:8443/a"), NOW_MS)
    assert ("authorization", "x") in sent.headers


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"headers": {"Authorization": "x"}}, "recipient_hosts: is missing; headers are sent only"),
        ({"headers": {"Webhook-Id": "x"}}, "headers.Webhook-Id: is not allowed"),
        ({"headers": {"Host": "x"}}, "headers.Host: is not allowed"),
        ({"headers": {"X:Y": "x"}}, "headers.X:Y: is not allowed"),
        ({"headers": {"X-Key": "a\r\nb: c"}}, "headers.X-Key: contains a line break"),
        ({"headers": {"X-Key": "env:NOT_THERE"}}, "headers.X-Key: refers to the environment variable"),
    ],
)
def test_impossible_headers_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        provider(**settings)
    assert problem in str(refused.value)


def test_several_secrets_sign_during_a_rotation() -> None:
    other = "whsec_" + "b" * 32
    request = provider(secrets=[other]).build(delivery(), NOW_MS)
    assert len(dict(request.headers)["webhook-signature"].split(" ")) == 2


def test_a_valid_secret_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="secret: is missing; set it to whsec_"):
        provider(secret="")
    with pytest.raises(ConfigError, match="is a public key"):
        provider(secret="whpk_" + "A" * 43 + "=")
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    assert provider(secret="env:HOOK_SECRET").build(delivery(), NOW_MS).headers == (
        provider().build(delivery(), NOW_MS).headers
    )


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_status_means_delivered(status: int) -> None:
    outcome = provider().classify(HttpResponse(status=status, headers={}, truncated=True), NOW_MS)
    assert (outcome.kind, outcome.delivered) == (OutcomeKind.ACCEPTED, True)


def test_each_row_of_the_error_table_has_its_outcome() -> None:
    for status, meaning in load_error_table("webhook").statuses.items():
        answer = HttpResponse(status=int(status.replace("xx", "18")), headers={})
        assert provider().classify(answer, NOW_MS).kind is meaning.outcome


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_is_honoured_in_both_forms(status: int) -> None:
    for value in ("90", "Fri, 15 Jan 2027 08:01:30 GMT"):
        outcome = provider().classify(HttpResponse(status=status, headers={"retry-after": value}), NOW_MS)
        assert outcome.retry_after_ms == 90_000
