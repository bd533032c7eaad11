"""The provider of Azure Communication Services runs the provider suite."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.acs.provider import AcsProvider
from homing.testing import fault_server
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

KEY = b64encode(b"a-key-that-nobody-knows").decode()
OPERATION = "8540c0de-899f-5cce-acb5-3ec493af3800"

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return AcsProvider(
        transport, sender_address="orders@example.com", base_url=base_url, access_key=KEY, now_ms=now_ms
    )


def error(status: int, code: str) -> fault_server.ServerAction:
    return fault_server.answer(status, json.dumps({"error": {"code": code, "message": "no"}}).encode())


class TestAcsProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.EMAIL, "ada@example.org"),
            success=fault_server.answer(202, json.dumps({"id": OPERATION, "status": "Running"}).encode()),
            message_id=OPERATION,
            failures={
                "dropped": ExpectedOutcome(
                    act=error(400, "EmailDropped"), kind=K.BAD_RECIPIENT, code="EmailDropped"
                ),
                "bad mail": ExpectedOutcome(act=error(400, "BadRequest"), kind=K.BAD_CONTENT, code="400"),
                "wrong key": ExpectedOutcome(act=error(401, "Denied"), kind=K.PROVIDER_FAULT, code="Denied"),
                "no such sender": ExpectedOutcome(
                    act=fault_server.answer(404), kind=K.PROVIDER_FAULT, code="404"
                ),
                "known already": ExpectedOutcome(act=fault_server.answer(409), kind=K.AMBIGUOUS, code="409"),
                "broken": ExpectedOutcome(act=fault_server.html_page(503), kind=K.TRANSIENT, code="503"),
            },
            throttle=ExpectedOutcome(
                act=fault_server.throttle("57"), kind=K.THROTTLED, retry_after_ms=57_000
            ),
            secrets=(KEY, "a-key-that-nobody-knows"),
            key=lambda received: received.headers.get("operation-id"),
            signature=lambda received: received.headers.get("authorization"),
        )
