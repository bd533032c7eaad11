"""Deliveries and providers for tests of Twilio and SNS."""

from __future__ import annotations

from typing import Any

from homing import Channel, Content, Delivery
from homing.core.notifications import OutcomeKind
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.providers.sns.provider import SnsProvider
from homing.providers.twilio.provider import TwilioProvider
from homing.testing import provider_suite as suite

NOW_MS = 1_705_320_000_000
"""2024-01-15T12:00:00Z, the time of the vectors."""

ACCOUNT = "AC" + "b" * 32
SERVICE = "MG" + "c" * 32
SID = "SM" + "a" * 32
TOKEN = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
ENDPOINT = "arn:aws:sns:us-east-1:123456789012:endpoint/GCM/app/5e3e9847-3183-3f18-a7e8-671c3a57d4b3"
TOPIC = "arn:aws:sns:us-east-1:123456789012:delivery-status"

KINDS = {
    "permanent": {OutcomeKind.BAD_CONTENT, OutcomeKind.BAD_RECIPIENT},
    "permanent_address": {OutcomeKind.BAD_RECIPIENT},
    "token_dead": {OutcomeKind.DEAD_ADDRESS},
    "opt_out": {OutcomeKind.OPTED_OUT},
    "transient": {OutcomeKind.TRANSIENT},
    "rate_limited": {OutcomeKind.THROTTLED},
    "config": {OutcomeKind.PROVIDER_FAULT},
    "auth_refresh": {OutcomeKind.PROVIDER_FAULT},  # after the provider itself has tried to refresh
}
"""The contracts' error classes → the allowed outcomes."""


def a_delivery(**fields: Any) -> Delivery:
    given: dict[str, Any] = {
        "channel": Channel.SMS,
        "address": "+15558675310",
        "content": Content(text="Your parcel is here"),
        "notification_id": "018d0c7e-5a00-7000-8000-000000000001",
        "attempt": 2,
        **fields,
    }
    return suite.a_delivery(**given)


def a_push(**fields: Any) -> Delivery:
    content = Content(title="T", body="B", data={"k": "v"})
    return a_delivery(**{"channel": Channel.PUSH, "address": ENDPOINT, "content": content, **fields})


class UnusedTransport:
    """A transport for tests that send nothing."""

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse | TransportFailure:
        raise AssertionError("nothing is sent here")

    async def close(self) -> None: ...


def a_twilio(transport: Any = None, **settings: Any) -> TwilioProvider:
    given: dict[str, Any] = {
        "account_sid": ACCOUNT,
        "auth_token": TOKEN,
        "sender": "+15017122661",
        "now_ms": lambda: NOW_MS,
        **settings,
    }
    return TwilioProvider(transport or UnusedTransport(), **given)


def an_sns(transport: Any = None, **settings: Any) -> SnsProvider:
    given: dict[str, Any] = {
        "region": "us-east-1",
        "access_key_id": "AKIDEXAMPLE",
        "secret_access_key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        "now_ms": lambda: NOW_MS,
        **settings,
    }
    return SnsProvider(transport or UnusedTransport(), **given)
