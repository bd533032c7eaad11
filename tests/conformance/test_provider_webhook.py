"""The webhook provider runs the provider suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.webhook.provider import WebhookProvider
from homing.testing import fault_server
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return WebhookProvider(transport, secret=SECRET, base_url=base_url, now_ms=now_ms)


class TestWebhookProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.WEBHOOK, "https://hooks.example.org/orders?a=1"),
            success=fault_server.answer(204),
            failures={
                "gone": ExpectedOutcome(
                    act=fault_server.answer(410), kind=OutcomeKind.DEAD_ADDRESS, code="410"
                ),
                "not found": ExpectedOutcome(
                    act=fault_server.answer(404), kind=OutcomeKind.TRANSIENT, code="404"
                ),
                "too large": ExpectedOutcome(
                    act=fault_server.answer(413), kind=OutcomeKind.BAD_CONTENT, code="413"
                ),
                "broken": ExpectedOutcome(
                    act=fault_server.answer(500), kind=OutcomeKind.TRANSIENT, code="500"
                ),
                "redirect": ExpectedOutcome(
                    act=fault_server.answer(307), kind=OutcomeKind.TRANSIENT, code="307"
                ),
                "gateway": ExpectedOutcome(
                    act=fault_server.answer(502), kind=OutcomeKind.THROTTLED, code="502"
                ),
            },
            throttle=ExpectedOutcome(
                act=fault_server.throttle("7"), kind=OutcomeKind.THROTTLED, retry_after_ms=7_000
            ),
            secrets=(SECRET, SECRET.removeprefix("whsec_")),
            signature=lambda received: received.headers["webhook-signature"],
        )
