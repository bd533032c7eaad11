"""The Slack provider runs the provider suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.slack.provider import SlackProvider
from homing.testing import fault_server
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

HOOK = "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return SlackProvider(transport, webhook_url=HOOK, base_url=base_url, now_ms=now_ms)


def refused(status: int, code: bytes, kind: OutcomeKind) -> ExpectedOutcome:
    return ExpectedOutcome(act=fault_server.answer(status, code), kind=kind, code=code.decode())


class TestSlackProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.CHAT, "#alerts"),
            success=fault_server.answer(200, b"ok"),
            failures={
                "unreadable": refused(400, b"invalid_payload", OutcomeKind.BAD_CONTENT),
                "no such user": refused(400, b"user_not_found", OutcomeKind.BAD_RECIPIENT),
                "our webhook was removed": refused(404, b"no_service", OutcomeKind.PROVIDER_FAULT),
                "our channel is archived": refused(410, b"channel_is_archived", OutcomeKind.PROVIDER_FAULT),
                "forbidden": ExpectedOutcome(
                    act=fault_server.answer(403, b"?"), kind=OutcomeKind.PROVIDER_FAULT, code="403"
                ),
                "broken": refused(500, b"rollup_error", OutcomeKind.TRANSIENT),
            },
            throttle=ExpectedOutcome(
                act=fault_server.throttle("3"), kind=OutcomeKind.THROTTLED, retry_after_ms=3_000
            ),
            secrets=("T00000000", "XXXXXXXXXXXXXXXXXXXXXXXX"),
        )
