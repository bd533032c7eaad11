"""The Web Push provider runs the provider suite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.webpush.provider import WebPushProvider
from homing.testing import fault_server
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors/webpush.json").read_text())[
    "rfc8291"
]
PRIVATE_KEY = VECTOR["as_private"]
SUBSCRIPTION = json.dumps(
    {
        "endpoint": "https://push.example.net/send/abc",
        "keys": {"p256dh": VECTOR["ua_public"], "auth": VECTOR["auth_secret"]},
    }
)

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return WebPushProvider(
        transport,
        vapid_private_key=PRIVATE_KEY,
        vapid_subject="mailto:push@example.com",
        base_url=base_url,
        now_ms=now_ms,
    )


class TestWebPushProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.PUSH, SUBSCRIPTION),
            success=fault_server.answer(201, headers={"location": "https://push.example.net/m/1"}),
            message_id="https://push.example.net/m/1",
            failures={
                "not understood": ExpectedOutcome(
                    act=fault_server.answer(400), kind=K.BAD_CONTENT, code="400"
                ),
                "another key": ExpectedOutcome(
                    act=fault_server.answer(403), kind=K.BAD_RECIPIENT, code="403"
                ),
                "unknown": ExpectedOutcome(act=fault_server.answer(404), kind=K.DEAD_ADDRESS, code="404"),
                "gone": ExpectedOutcome(act=fault_server.answer(410), kind=K.DEAD_ADDRESS, code="410"),
                "too large": ExpectedOutcome(act=fault_server.answer(413), kind=K.BAD_CONTENT, code="413"),
                "broken": ExpectedOutcome(act=fault_server.answer(500), kind=K.TRANSIENT, code="500"),
            },
            throttle=ExpectedOutcome(act=fault_server.throttle("7"), kind=K.THROTTLED, retry_after_ms=7_000),
            secrets=(PRIVATE_KEY, "send/abc", VECTOR["auth_secret"]),
            key=lambda received: received.headers["topic"],
            signature=lambda received: received.body[:16].hex(),
        )
