"""Slack's incoming webhooks: requests, and the meaning of responses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Content, OutcomeKind
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpResponse
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import Unsendable
from homing.providers.slack.provider import SlackProvider, build_message
from homing.testing.provider_suite import NOW_MS, a_delivery

OUR_OWN = ("not_slack", "unreadable")
HOOK = "https://hooks.slack.com/services/T0/B0/xyz"


def provider(**settings: Any) -> SlackProvider:
    return SlackProvider(CurlTransport(), **settings)


def test_text_is_posted_to_the_configured_webhook() -> None:
    request = provider(webhook_url=HOOK).build(
        a_delivery(Channel.CHAT, "#alerts", Content(title="Alarm", body="Disk is full")), NOW_MS
    )
    assert request.url == HOOK
    assert msgspec.json.decode(request.body) == {"text": "*Alarm*\nDisk is full"}
    assert HOOK not in repr(request)


def test_without_a_configured_webhook_it_posts_to_the_recipient_s() -> None:
    assert provider().build(a_delivery(Channel.CHAT, HOOK), NOW_MS).url == HOOK


@pytest.mark.parametrize(
    "address",
    [
        "#alerts",
        "http://hooks.slack.com/services/x",
        "https://evil.example/services/x",
        "https://hooks.slack.com@evil.example/",
        "https://hooks.slack.com.evil.example/",
        "https://hooks.slack.com:8443/services/x",
        "https://[::1/",
        "",
    ],
)
def test_a_recipient_s_url_must_be_slack_s(address: str) -> None:
    with pytest.raises(Unsendable) as refused:
        provider().build(a_delivery(Channel.CHAT, address), NOW_MS)
    assert refused.value.outcome.kind is OutcomeKind.BAD_RECIPIENT
    assert "evil" not in str(refused.value)


def test_with_a_base_url_it_posts_to_that_url() -> None:
    request = provider(webhook_url=HOOK, base_url="http://127.0.0.1:9/").build(
        a_delivery(Channel.CHAT, "#alerts"), NOW_MS
    )
    assert request.url == "http://127.0.0.1:9/services/T0/B0/xyz"


@pytest.mark.parametrize("given", ["T0/B0/xyz", "https://hooks.slack.com", "https://", "x://hooks/xyz"])
def test_an_invalid_webhook_url_is_refused_at_start_without_showing_it(given: str) -> None:
    with pytest.raises(ConfigError, match="webhook_url: must be a webhook URL") as raised:
        provider(webhook_url=given)
    assert "xyz" not in str(raised.value)


def test_text_cannot_mention_users() -> None:
    content = Content(text="<!channel> & <b>", title="<x>")
    assert build_message(content) == {"text": "*&lt;x&gt;*\n&lt;!channel&gt; &amp; &lt;b&gt;"}
    assert build_message(content, escape=False) == {"text": "*<x>*\n<!channel> & <b>"}


def test_blocks_are_sent_unchanged() -> None:
    blocks = [{"type": "divider"}]
    assert build_message(Content(body="x", data={"blocks": blocks})) == {"text": "x", "blocks": blocks}
    assert build_message(Content(body="x", data={"blocks": "no"})) == {"text": "x"}


def test_each_code_of_the_error_table_has_its_outcome() -> None:
    for code, meaning in load_error_table("slack").codes.items():
        if code in OUR_OWN:
            continue
        outcome = provider().classify(
            HttpResponse(status=400, headers={}, body=code.encode() + b"\n"), NOW_MS
        )
        assert (outcome.kind, outcome.error_code) == (meaning.outcome, code)


@pytest.mark.parametrize("code", OUR_OWN)
def test_slack_cannot_send_an_error_code_that_homing_reserves(code: str) -> None:
    outcome = provider().classify(HttpResponse(status=400, headers={}, body=code.encode()), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.BAD_CONTENT, "400")


def test_a_deleted_webhook_is_the_recipient_s_fault_or_the_provider_s() -> None:
    gone = HttpResponse(status=404, headers={}, body=b"no_service")
    assert provider().classify(gone, NOW_MS).kind is OutcomeKind.DEAD_ADDRESS
    assert provider(webhook_url=HOOK).classify(gone, NOW_MS).kind is OutcomeKind.PROVIDER_FAULT


@pytest.mark.parametrize("body", [b"", b"<html>", b"okay", b"\xff"])
def test_a_success_status_without_ok_is_ambiguous(body: bytes) -> None:
    answer = HttpResponse(status=200, headers={}, body=body)
    assert provider().classify(answer, NOW_MS).kind is OutcomeKind.AMBIGUOUS


def test_throttling_waits_at_least_a_second() -> None:
    assert provider().classify(HttpResponse(status=429, headers={}), NOW_MS).retry_after_ms == 1_000
    told = HttpResponse(status=429, headers={"retry-after": "30"})
    assert provider().classify(told, NOW_MS).retry_after_ms == 30_000


@pytest.mark.parametrize(("body", "unlisted"), [(b"something_new", True), (b"", False), (b"no_text", False)])
def test_an_unlisted_refusal_is_marked_only_for_the_configured_webhook(body: bytes, unlisted: bool) -> None:
    """Another provider cannot use a recipient's webhook URL."""
    refused = HttpResponse(status=400, headers={}, body=body)
    assert provider(webhook_url=HOOK).classify(refused, NOW_MS).unlisted is unlisted
    assert not provider().classify(refused, NOW_MS).unlisted
