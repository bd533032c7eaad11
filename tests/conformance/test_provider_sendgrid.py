"""The SendGrid provider runs the provider suite."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.sendgrid.provider import SendGridProvider
from homing.testing import fault_server
from homing.testing.provider_suite import NOW_MS, ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

KEY = "SG.a-key-that-nobody-knows"

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return SendGridProvider(
        transport, api_key=KEY, from_email="orders@example.com", base_url=base_url, now_ms=now_ms
    )


def error(status: int, field: str | None = None) -> fault_server.ServerAction:
    return fault_server.answer(status, json.dumps({"errors": [{"message": "no", "field": field}]}).encode())


class TestSendGridProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        reset = str(NOW_MS // 1000 + 31)  # the clock has advanced by a second when the response is read
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.EMAIL, "ada@example.org"),
            success=fault_server.answer(202, headers={"x-message-id": "14c5d75ce93.dfd.64b469"}),
            message_id="14c5d75ce93.dfd.64b469",
            failures={
                "not an address": ExpectedOutcome(
                    act=error(400, "personalizations.0.to.0.email"),
                    kind=K.BAD_RECIPIENT,
                    code="personalizations.to.email",
                ),
                "bad sender": ExpectedOutcome(
                    act=error(400, "from.email"), kind=K.PROVIDER_FAULT, code="from.email"
                ),
                "bad mail": ExpectedOutcome(act=error(400, "subject"), kind=K.BAD_CONTENT, code="subject"),
                "wrong key": ExpectedOutcome(act=error(401), kind=K.PROVIDER_FAULT, code="401"),
                "too large": ExpectedOutcome(act=error(413), kind=K.BAD_CONTENT, code="413"),
                "broken": ExpectedOutcome(act=fault_server.html_page(503), kind=K.TRANSIENT, code="503"),
                "not SendGrid": ExpectedOutcome(
                    act=fault_server.html_page(200), kind=K.AMBIGUOUS, code="200"
                ),
            },
            throttle=ExpectedOutcome(
                act=fault_server.answer(429, b"too many requests", {"x-ratelimit-reset": reset}),
                kind=K.THROTTLED,
                retry_after_ms=30_000,
            ),
            secrets=(KEY,),
            key=lambda received: None,  # SendGrid supports none
        )
