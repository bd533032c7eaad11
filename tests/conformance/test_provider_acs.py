"""The provider of Azure Communication Services runs the provider suite."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable

import pytest

from homing.core.model import Channel, OutcomeKind
from homing.core.ports import Provider
from homing.providers.acs import AcsProvider
from homing.providers.http import Transport
from homing.testing import faults
from homing.testing.provider_suite import ProviderCase, ProviderSuite, Told, a_delivery

KEY = b64encode(b"a-key-that-nobody-knows").decode()
OPERATION = "8540c0de-899f-5cce-acb5-3ec493af3800"

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return AcsProvider(
        transport, sender_address="orders@example.com", base_url=base_url, access_key=KEY, now_ms=now_ms
    )


def error(status: int, code: str) -> faults.Act:
    return faults.answer(status, json.dumps({"error": {"code": code, "message": "no"}}).encode())


class TestAcsProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.EMAIL, "ada@example.org"),
            success=faults.answer(202, json.dumps({"id": OPERATION, "status": "Running"}).encode()),
            message_id=OPERATION,
            failures={
                "dropped": Told(act=error(400, "EmailDropped"), kind=K.BAD_RECIPIENT, code="EmailDropped"),
                "bad mail": Told(act=error(400, "BadRequest"), kind=K.BAD_CONTENT, code="400"),
                "wrong key": Told(act=error(401, "Denied"), kind=K.PROVIDER_FAULT, code="Denied"),
                "no such sender": Told(act=faults.answer(404), kind=K.PROVIDER_FAULT, code="404"),
                "known already": Told(act=faults.answer(409), kind=K.AMBIGUOUS, code="409"),
                "broken": Told(act=faults.html(503), kind=K.TRANSIENT, code="503"),
            },
            throttle=Told(act=faults.throttle("57"), kind=K.THROTTLED, retry_after_ms=57_000),
            secrets=(KEY, "a-key-that-nobody-knows"),
            key=lambda received: received.headers.get("operation-id"),
            signature=lambda received: received.headers.get("authorization"),
        )
