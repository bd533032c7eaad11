"""Measures the Python time of each HTTP provider per notification: building requests, reading responses.

    python bench/provider_cost.py

Signing and encryption are measured separately; for the main figure they are replaced by a recorded result.
The target for the main figure is 100 µs. The best of several rounds counts, so other load matters little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from msgspec import Struct

from homing.core.notifications import Channel, Content
from homing.core.ports.providers import Delivery
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpResponse
from homing.providers.common.http_provider import HttpProvider
from homing.testing.provider_suite import NOW_MS, a_delivery

BAR_US = 100.0
MAIL = Content(
    subject="Your order",
    text="Your order is on its way.\n" * 10,
    html="<p>Your order is on its way.</p>" * 10,
)
TEXT = Content(
    title="Your order", body="Your order is on its way. " * 4, data={"order": "4711", "step": "sent"}
)


class Contestant(Struct, frozen=True, kw_only=True):
    """One provider with a typical message and a typical response."""

    kind: str
    settings: dict[str, Any]
    delivery: Delivery
    answer: HttpResponse
    signing: tuple[str, ...] = ()
    """Functions that sign or encrypt, as `module:name`."""


def b64url(raw: bytes) -> str:
    return b64encode(raw, b"-_").rstrip(b"=").decode()


def subscription() -> str:
    point = ec.generate_private_key(ec.SECP256R1()).public_key()
    raw = point.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    keys = {"p256dh": b64url(raw), "auth": b64url(b"a" * 16)}
    return json.dumps({"endpoint": "https://push.example.net/send/abc", "keys": keys})


def service_account() -> str:
    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps({"client_email": "a@b.example", "private_key": pem.decode(), "project_id": "demo"})


def contestants() -> list[Contestant]:
    vapid = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value.to_bytes(32, "big")
    sns = b"<PublishResponse><PublishResult><MessageId>m-1</MessageId></PublishResult></PublishResponse>"
    return [
        Contestant(
            kind="twilio:TwilioProvider",
            settings={"account_sid": "AC" + "0" * 32, "auth_token": "t" * 32, "sender": "+15550100"},
            delivery=a_delivery(Channel.SMS, "+15550111", TEXT),
            answer=_json(201, {"sid": "SM" + "0" * 32, "status": "queued"}),
        ),
        Contestant(
            kind="sns:SnsProvider",
            settings={"region": "eu-west-1", "access_key_id": "AKIA", "secret_access_key": "s" * 40},
            delivery=a_delivery(Channel.SMS, "+15550111", TEXT),
            answer=HttpResponse(status=200, headers={"content-type": "text/xml"}, body=sns),
            signing=("homing.providers.sns.signature:SigV4Signer.sign",),
        ),
        Contestant(
            kind="sendgrid:SendGridProvider",
            settings={"api_key": "SG.x", "from_email": "shop@example.org"},
            delivery=a_delivery(Channel.EMAIL, "ada@example.org", MAIL),
            answer=HttpResponse(status=202, headers={"x-message-id": "m-1"}),
        ),
        Contestant(
            kind="acs:AcsProvider",
            settings={
                "base_url": "https://x.communication.azure.com",
                "access_key": b64encode(b"k" * 64).decode(),
                "sender_address": "shop@example.org",
            },
            delivery=a_delivery(Channel.EMAIL, "ada@example.org", MAIL),
            answer=_json(202, {"id": "o-1", "status": "Running"}),
            signing=("homing.providers.acs.provider:AcsSigner.headers",),
        ),
        Contestant(
            kind="fcm:FcmProvider",
            settings={"service_account": service_account()},
            delivery=a_delivery(Channel.PUSH, "t" * 160, TEXT),
            answer=_json(200, {"name": "projects/demo/messages/1"}),
        ),
        Contestant(
            kind="webhook:WebhookProvider",
            settings={"secret": "whsec_" + b64encode(b"s" * 32).decode()},
            delivery=a_delivery(Channel.WEBHOOK, "https://hooks.example.org/in", TEXT),
            answer=HttpResponse(status=204, headers={}),
            signing=("homing.providers.webhook.provider:build_signature_header",),
        ),
        Contestant(
            kind="slack:SlackProvider",
            settings={"webhook_url": "https://hooks.slack.com/services/T/B/x"},
            delivery=a_delivery(Channel.CHAT, "#alerts", TEXT),
            answer=HttpResponse(status=200, headers={}, body=b"ok"),
        ),
        Contestant(
            kind="webpush:WebPushProvider",
            settings={"vapid_private_key": b64url(vapid), "vapid_subject": "mailto:ops@example.org"},
            delivery=a_delivery(Channel.PUSH, subscription(), TEXT),
            answer=HttpResponse(status=201, headers={"location": "https://push.example.net/m/1"}),
            signing=(
                "homing.providers.webpush.provider:encrypt",
                "homing.providers.webpush.provider:generate_private_key",
                "homing.providers.webpush.encryption:VapidSigner.authorization",
            ),
        ),
    ]


def _json(status: int, body: Any) -> HttpResponse:
    headers = {"content-type": "application/json"}
    return HttpResponse(status=status, headers=headers, body=json.dumps(body).encode())


def best_us(call: Callable[[], object], rounds: int, calls: int) -> float:
    """Returns the time per call of the fastest round, in µs."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - began) / calls / 1000)
    return best


def measured(one: Contestant, rounds: int, calls: int) -> tuple[float, float, float]:
    """Returns the µs for building a request without signing, for reading a response, and for signing."""
    module, _, name = one.kind.partition(":")
    provider: HttpProvider = getattr(import_module(f"homing.providers.{module}.provider"), name)(
        CurlTransport(), **one.settings
    )

    def build() -> object:
        return provider.build(one.delivery, NOW_MS)

    whole = best_us(build, rounds, calls)
    with ExitStack() as stack:
        for address in one.signing:
            stack.enter_context(_recorded(address, build))
        bare = best_us(build, rounds, calls)
    return bare, best_us(lambda: provider.classify(one.answer, NOW_MS), rounds, calls), max(0.0, whole - bare)


def _recorded(address: str, build: Callable[[], object]) -> Any:
    """Builds a request to record the result of the function at this address.

    Returns a patch that replaces the function by the recorded result.
    """
    place, _, path = address.partition(":")
    given: list[Any] = []
    owner: Any = import_module(place)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    real = getattr(owner, name)

    def record(*args: Any, **named: Any) -> Any:
        given.append(real(*args, **named))
        return given[-1]

    with patch.object(owner, name, record):
        build()
    return patch.object(owner, name, lambda *args, **named: given[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    given = parser.parse_args()
    print(f"{'provider':10} {'build':>8} {'classify':>9} {'sum':>8} {'signing':>9}   (µs)")
    slow = []
    for one in contestants():
        build, classify, signing = measured(one, given.rounds, given.calls)
        name = one.kind.partition(":")[0]
        print(f"{name:10} {build:8.1f} {classify:9.1f} {build + classify:8.1f} {signing:9.1f}")
        if build + classify > BAR_US:
            slow.append(name)
    print(f"target: {BAR_US:.0f} µs; {'missed by ' + ', '.join(slow) if slow else 'met by all'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
