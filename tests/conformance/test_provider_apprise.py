"""The Apprise provider runs the parts of the provider suite that apply to a success-or-failure result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.apprise.provider import AppriseProvider
from homing.testing import fault_server
from homing.testing.provider_suite import (
    ExpectedOutcome,
    ProviderCase,
    RepeatedSendTests,
    ResponseTests,
    a_delivery,
)

# Apprise loads all its plugins, and some of them load old libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return AppriseProvider(urls=f"json://user:s3cret-pass@{base_url.removeprefix('http://')}/t0ken-path")


class TestAppriseProvider(ResponseTests, RepeatedSendTests):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.CHAT, "https://chat.example.org"),
            success=fault_server.answer(200),
            failures={
                "refused": ExpectedOutcome(act=fault_server.answer(401), kind=K.PROVIDER_FAULT, code="401"),
                "not found": ExpectedOutcome(act=fault_server.answer(404), kind=K.PROVIDER_FAULT, code="404"),
                "broken": ExpectedOutcome(act=fault_server.answer(500), kind=K.AMBIGUOUS, code="500"),
                "dropped": ExpectedOutcome(act=fault_server.RESET_AFTER_READING, kind=K.AMBIGUOUS, code="no"),
            },
            throttle=ExpectedOutcome(act=fault_server.throttle("7"), kind=K.THROTTLED, retry_after_ms=None),
            secrets=("s3cret-pass", "t0ken-path"),
        )
