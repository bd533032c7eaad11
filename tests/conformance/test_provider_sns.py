"""The SNS provider runs the provider suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.http_messages import Transport
from homing.providers.sns.provider import SnsProvider
from homing.testing import fault_server
from homing.testing.provider_suite import ExpectedOutcome, ProviderCase, ProviderSuite, a_delivery

SECRET, SESSION = "a-key-that-nobody-knows", "a-session-that-nobody-knows"
MESSAGE_ID = "567910cd-659e-55d4-8ccb-5aaf14679dc0"
ENDPOINT = "arn:aws:sns:us-east-1:123456789012:endpoint/GCM/app/5e3e9847-3183-3f18-a7e8-671c3a57d4b3"

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return SnsProvider(
        transport,
        region="us-east-1",
        access_key_id="AKIDEXAMPLE",
        secret_access_key=SECRET,
        session_token=SESSION,
        base_url=base_url,
        now_ms=now_ms,
    )


def error(status: int, code: str, message: str = "no", **headers: str) -> fault_server.ServerAction:
    said = f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
    return fault_server.answer(
        status, said.encode(), {name.replace("_", "-"): v for name, v in headers.items()}
    )


class TestSnsProvider(ProviderSuite):
    @pytest.fixture(params=[(Channel.SMS, "+15550100"), (Channel.PUSH, ENDPOINT)])
    def case(self, request: pytest.FixtureRequest) -> ProviderCase:
        said = f"<PublishResult><MessageId>{MESSAGE_ID}</MessageId></PublishResult>"
        return ProviderCase(
            make=make,
            delivery=a_delivery(*request.param),
            success=fault_server.answer(200, f"<PublishResponse>{said}</PublishResponse>".encode()),
            message_id=MESSAGE_ID,
            failures={
                "not a number": ExpectedOutcome(
                    act=error(400, "InvalidParameter", "Invalid parameter: PhoneNumber"),
                    kind=K.BAD_RECIPIENT,
                    code="InvalidParameter.PhoneNumber",
                ),
                "disabled": ExpectedOutcome(act=error(400, "EndpointDisabled"), kind=K.DEAD_ADDRESS),
                "opted out": ExpectedOutcome(act=error(400, "OptedOut"), kind=K.OPTED_OUT),
                "refused": ExpectedOutcome(act=error(403, "AuthorizationError"), kind=K.PROVIDER_FAULT),
                "expired": ExpectedOutcome(act=error(403, "ExpiredToken"), kind=K.PROVIDER_FAULT),
                "not valid": ExpectedOutcome(act=error(400, "ParameterValueInvalid"), kind=K.BAD_CONTENT),
                "broken": ExpectedOutcome(
                    act=error(500, "InternalError"), kind=K.TRANSIENT, code="InternalError"
                ),
                "taken, but unreadable": ExpectedOutcome(
                    act=fault_server.answer(200, b"<a/>"), kind=K.AMBIGUOUS, code="unreadable"
                ),
            },
            throttle=ExpectedOutcome(
                act=error(400, "Throttling", x_amz_retry_after="1500"), kind=K.THROTTLED, retry_after_ms=1_500
            ),
            secrets=(SECRET, SESSION),
            key=lambda received: None,  # SNS supports none
            signature=lambda received: received.headers["authorization"],
        )
