"""Deliveries and settings for tests of push providers, and a fake FCM server's responses."""

from __future__ import annotations

import json
from typing import Any

from homing import Channel, Content, Delivery, Priority, Recipient
from homing.net.http_messages import Transport
from homing.providers.fcm.provider import FcmProvider
from homing.testing.fault_server import ReceivedRequest, ServerAction, answer
from support.vector_files import vectors

FCM: dict[str, Any] = vectors("fcm")
WEBPUSH: dict[str, Any] = vectors("webpush")

NOW_MS = FCM["oauth"]["claims"]["iat"] * 1000

KEY_FILE = json.dumps(
    {
        "type": "service_account",
        "project_id": "demo-proj",
        "private_key_id": FCM["oauth"]["key_id"],
        "private_key": FCM["oauth"]["throwaway_test_private_key_pem"],
        "client_email": FCM["oauth"]["claims"]["iss"],
        "token_uri": "https://oauth2.googleapis.com/token",
    }
)

NAME = FCM["send"]["success"]["body"]["name"]
SENT = answer(200, json.dumps(FCM["send"]["success"]["body"]).encode())


def a_push(**fields: Any) -> Delivery:
    given: dict[str, Any] = {
        "notification_id": "018d0c7e-5a00-7000-8000-000000000001",
        "tenant": "acme",
        "channel": Channel.PUSH,
        "type": "order_confirmed",
        "priority": Priority.HIGH,
        "recipient": Recipient(device_token="tok1"),
        "address": "tok1",
        "content": Content(title="T", body="B", data={"k": "v"}),
        "idempotency_key": "018d0c7e-5a00-7000-8000-000000000001",
        "attempt": 1,
        "timeout_ms": 60_000,
        **fields,
    }
    return Delivery(**given)


def an_fcm(transport: Transport, url: str = "http://127.0.0.1:1", **settings: Any) -> FcmProvider:
    given: dict[str, Any] = {
        "service_account": KEY_FILE,
        "base_url": url,
        "token_uri": f"{url}/token",
        "now_ms": lambda: NOW_MS,
        **settings,
    }
    return FcmProvider(transport, **given)


def a_token(name: str = "ya29.test", lasts_s: object = 3599) -> ServerAction:
    """Returns a token server's successful response."""
    return answer(
        200, json.dumps({"access_token": name, "expires_in": lasts_s, "token_type": "Bearer"}).encode()
    )


def asks_for_a_token(received: ReceivedRequest) -> bool:
    return received.path == "/token"
