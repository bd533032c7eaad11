"""The webhook provider runs the provider suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.model import Channel, OutcomeKind
from homing.core.ports import Provider
from homing.providers.http import Transport
from homing.providers.webhook import WebhookProvider
from homing.testing import faults
from homing.testing.provider_suite import ProviderCase, ProviderSuite, Told, a_delivery

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return WebhookProvider(transport, secret=SECRET, base_url=base_url, now_ms=now_ms)


class TestWebhookProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.WEBHOOK, "https://hooks.example.org/orders?a=1"),
            success=faults.answer(204),
            failures={
                "gone": Told(act=faults.answer(410), kind=OutcomeKind.DEAD_ADDRESS, code="410"),
                "not found": Told(act=faults.answer(404), kind=OutcomeKind.TRANSIENT, code="404"),
                "too large": Told(act=faults.answer(413), kind=OutcomeKind.BAD_CONTENT, code="413"),
                "broken": Told(act=faults.answer(500), kind=OutcomeKind.TRANSIENT, code="500"),
                "redirect": Told(act=faults.answer(307), kind=OutcomeKind.TRANSIENT, code="307"),
                "gateway": Told(act=faults.answer(502), kind=OutcomeKind.THROTTLED, code="502"),
            },
            throttle=Told(act=faults.throttle("7"), kind=OutcomeKind.THROTTLED, retry_after_ms=7_000),
            secrets=(SECRET, SECRET.removeprefix("whsec_")),
            signature=lambda received: received.headers["webhook-signature"],
        )
