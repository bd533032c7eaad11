"""The Twilio provider runs the provider suite."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.twilio.provider import TwilioProvider
from homing.testing import fault_server
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

ACCOUNT, TOKEN = "AC" + "0" * 32, "a-token-that-nobody-knows"
SID = "SM" + "1" * 32

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return TwilioProvider(
        transport,
        account_sid=ACCOUNT,
        auth_token=TOKEN,
        sender="+15550000",
        callback_url="https://notify.example.org/twilio",
        base_url=base_url,
        now_ms=now_ms,
    )


def error(status: int, code: int) -> fault_server.ServerAction:
    return fault_server.answer(status, json.dumps({"code": code, "message": "no", "status": status}).encode())


class TestTwilioProvider(ProviderSuite):
    @pytest.fixture(params=[(Channel.SMS, "+15550100"), (Channel.CHAT, "whatsapp:+15550100")])
    def case(self, request: pytest.FixtureRequest) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(*request.param),
            success=fault_server.answer(201, json.dumps({"sid": SID, "status": "queued"}).encode()),
            message_id=SID,
            failures={
                "not a number": ExpectedOutcome(act=error(400, 21211), kind=K.DEAD_ADDRESS, code="21211"),
                "answered STOP": ExpectedOutcome(act=error(400, 21610), kind=K.OPTED_OUT, code="21610"),
                "wrong sender": ExpectedOutcome(act=error(400, 21606), kind=K.PROVIDER_FAULT, code="21606"),
                "wrong token": ExpectedOutcome(act=error(401, 20003), kind=K.PROVIDER_FAULT, code="20003"),
                "filtered": ExpectedOutcome(act=error(400, 30007), kind=K.BAD_CONTENT, code="30007"),
                "queue full": ExpectedOutcome(act=error(400, 30001), kind=K.TRANSIENT, code="30001"),
                "broken": ExpectedOutcome(act=fault_server.html_page(503), kind=K.TRANSIENT, code="503"),
                "taken, but unreadable": ExpectedOutcome(
                    act=fault_server.answer(201, b"{}"), kind=K.AMBIGUOUS, code="unreadable"
                ),
            },
            throttle=ExpectedOutcome(act=fault_server.throttle("7"), kind=K.THROTTLED, retry_after_ms=7_000),
            secrets=(TOKEN, b64encode(f"{ACCOUNT}:{TOKEN}".encode()).decode()),
            key=lambda received: None,  # Twilio supports none
        )
