"""Our requests next to those of Twilio's own SDK, both sent to a local server."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from twilio.rest import Client  # type: ignore[import-untyped]

from homing import Channel, Content
from homing.core.notifications import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.twilio.provider import TwilioProvider
from homing.testing.fault_server import FaultServer, ReceivedRequest, answer
from homing.testing.provider_suite import a_delivery
from support.openapi_validation import OpenApi

ACCOUNT, TOKEN, SID = "AC" + "0" * 32, "token", "SM" + "1" * 32
SERVICE, TEMPLATE = "MG" + "2" * 32, "HX" + "3" * 32
NOW_MS = 1_705_320_000_000
URL = "https://notify.example.org/twilio"
ID = "018d0c7e-5a00-7000-8000-000000000001"
CORRELATED = f"{URL}?delivery={ID}&attempt=1"

DELIVERY: dict[str, Any] = {
    "channel": Channel.SMS,
    "address": "+15550100",
    "content": Content(text="Hello"),
    "notification_id": ID,
}

# What a delivery and the settings request, and the same as a call of the SDK.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "sms": (
        {},
        {"content": Content(text="Olá & 100 % + ~ 👍\nbye"), "expires_at": NOW_MS + 90_000},
        {"from_": "+15550000", "body": "Olá & 100 % + ~ 👍\nbye", "validity_period": 90},
    ),
    "messaging service": (
        {"sender": "", "messaging_service_sid": SERVICE, "smart_encoded": True, "risk_check": True},
        {},
        {"messaging_service_sid": SERVICE, "body": "Hello", "smart_encoded": True, "risk_check": "enable"},
    ),
    "callback": (
        {"callback_url": URL, "shorten_urls": False},
        {},
        {"from_": "+15550000", "body": "Hello", "status_callback": CORRELATED, "shorten_urls": False},
    ),
    "media": (
        {},
        {"content": Content(text="Hello", data={"mediaUrl": ["https://a.example/1", "https://a.example/2"]})},
        {
            "from_": "+15550000",
            "body": "Hello",
            "media_url": ["https://a.example/1", "https://a.example/2"],
        },
    ),
    "whatsapp template": (
        {},
        {
            "channel": Channel.CHAT,
            "content": Content(data={"contentSid": TEMPLATE, "contentVariables": {"1": "Ada"}}),
        },
        {
            "to": "whatsapp:+15550100",
            "from_": "whatsapp:+15550000",
            "content_sid": TEMPLATE,
            "content_variables": '{"1":"Ada"}',
        },
    ),
}


def sdk_sends(url: str, call: dict[str, Any]) -> Any:
    client = Client(ACCOUNT, TOKEN)
    client.api.base_url = url
    sid = client.messages.create(**{"to": "+15550100", **call}).sid
    client.http_client.session.close()
    return sid


def fields(received: ReceivedRequest) -> list[tuple[str, str]]:
    return sorted(parse_qsl(received.body.decode(), keep_blank_values=True, strict_parsing=True))


@pytest.mark.parametrize("name", CASES)
async def test_our_request_equals_that_of_the_sdk(name: str) -> None:
    settings, asked, call = CASES[name]
    success = answer(201, json.dumps({"sid": SID, "status": "queued"}).encode())
    transport = CurlTransport()
    async with FaultServer(otherwise=success) as server:
        given = {"account_sid": ACCOUNT, "auth_token": TOKEN, "sender": "+15550000", **settings}
        provider = TwilioProvider(transport, base_url=server.url, now_ms=lambda: NOW_MS, **given)
        outcome = await provider.send(a_delivery(**{**DELIVERY, **asked}))
        assert (outcome.kind, outcome.provider_message_id) == (OutcomeKind.ACCEPTED, SID)
        assert await asyncio.to_thread(sdk_sends, server.url, call) == SID
        await transport.close()
    ours, theirs = server.received
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    for header in ("authorization", "content-type", "accept"):
        assert ours.headers[header] == theirs.headers[header]
    assert fields(ours) == fields(theirs)
    spec = OpenApi("twilio_messages.openapi.json")
    assert spec.check(ours.method, ours.path, ours.body, ours.headers["content-type"]) == "CreateMessage"
