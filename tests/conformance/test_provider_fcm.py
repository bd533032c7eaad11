"""The FCM provider runs the provider suite, with the responses of the vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.fcm.provider import FcmProvider
from homing.testing import fault_server
from homing.testing.fault_server import ReceivedRequest, ServerAction
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors/fcm.json").read_text())
PEM = VECTORS["oauth"]["throwaway_test_private_key_pem"]
TOKEN = json.dumps(VECTORS["oauth"]["token_response"]).encode()
SUCCESS = VECTORS["send"]["success"]

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    key = {"client_email": "svc@demo-proj.example", "private_key": PEM, "project_id": "demo-proj"}
    return FcmProvider(
        transport,
        service_account=json.dumps(key),
        base_url=base_url,
        token_uri=f"{base_url}/token",
        now_ms=now_ms,
    )


def told(name: str, kind: OutcomeKind, code: str) -> ExpectedOutcome:
    """Returns an error of the vectors."""
    found = next(error for error in VECTORS["errors"] if error["id"] == name)
    body = found.get("raw_body", "") or json.dumps(found["body"])
    return ExpectedOutcome(
        act=fault_server.answer(found["status"], body.encode(), found.get("headers")), kind=kind, code=code
    )


def token_server(received: ReceivedRequest) -> ServerAction | None:
    return fault_server.answer(200, TOKEN) if received.path == "/token" else None


class TestFcmProvider(ProviderSuite):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.PUSH, "token-1"),
            success=fault_server.answer(SUCCESS["status"], json.dumps(SUCCESS["body"]).encode()),
            message_id=SUCCESS["body"]["name"],
            failures={
                "unregistered": told("unregistered", K.DEAD_ADDRESS, "UNREGISTERED"),
                "no token": told("invalid-token", K.BAD_RECIPIENT, "INVALID_ARGUMENT.token"),
                "bad payload": told("invalid-payload", K.BAD_CONTENT, "INVALID_ARGUMENT"),
                "wrong sender": told("sender-mismatch", K.BAD_RECIPIENT, "SENDER_ID_MISMATCH"),
                "wrong project": told("not-found-without-fcm-detail", K.BAD_RECIPIENT, "NOT_FOUND"),
                "Apple's refusal": told("third-party-auth", K.PROVIDER_FAULT, "THIRD_PARTY_AUTH_ERROR"),
                "overloaded": told("unavailable", K.TRANSIENT, "UNAVAILABLE"),
                "broken": told("internal", K.TRANSIENT, "INTERNAL"),
                "a proxy's page": told("html-502", K.TRANSIENT, "502"),
                "no message id": ExpectedOutcome(
                    act=fault_server.answer(200, b"{}"), kind=K.AMBIGUOUS, code="unreadable"
                ),
            },
            throttle=ExpectedOutcome(
                act=told("quota", K.THROTTLED, "QUOTA_EXCEEDED").act, kind=K.THROTTLED, retry_after_ms=30_000
            ),
            secrets=(PEM.splitlines()[1], VECTORS["oauth"]["token_response"]["access_token"]),
            aside=token_server,
        )
