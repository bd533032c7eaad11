"""Any response or callback becomes an outcome or receipts; providers never raise."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import SupportsLookup
from homing.net.http_messages import HttpRequest, HttpResponse
from homing.net.secrets import Secret
from homing.net.standard_webhooks import SigningKey, build_signature_header
from homing.providers.common.http_provider import CheckFailed
from homing.providers.sendgrid.provider import SendGridProvider
from homing.providers.slack.provider import SlackProvider
from homing.providers.sns.callbacks import read_events
from homing.providers.twilio.callbacks import compute_signature
from support.all_providers import NOW_MS, OVER_HTTP, TOKEN, WEBHOOK_SECRET, a_delivery, a_provider

STATUSES = (0, 100, 200, 201, 202, 204, 301, 400, 401, 403, 404, 408, 409, 410, 413, 429, 500, 503, 599, 999)
NESTED = [b"[" * depth + b"]" * depth for depth in (10, 200, *range(880, 1010, 3), 20_000)]
BODIES = (
    b"",
    b"\xff\xfe\x00",
    b"<html>",
    b"null",
    b"[]",
    b'"x"',
    b"1",
    b"NaN",
    b"1e999",
    b"9" * 60_000,
    b"\x00" * 100,
    b'{"sid": 1}',
    b'{"sid": {}, "status": []}',
    b'{"sid": "' + b"x" * 60_000 + b'"}',
    b'{"sid": "\\ud800"}',
    b'{"code": [1], "message": {}}',
    b'{"code": true}',
    b'{"code": ' + b"9" * 4000 + b"}",
    b'{"code": 1e308}',
    b'{"error": []}',
    b'{"error": {"details": {"a": 1}, "status": []}}',
    b'{"error": {"code": {}, "message": []}}',
    b'{"error": {"details": [1, {"errorCode": []}, {"fieldViolations": [1, {"field": []}]}]}}',
    b'{"error": {"status": "INVALID_ARGUMENT", "details": [{"fieldViolations": {}}], "message": 5}}',
    b'{"errors": [[]]}',
    b'{"errors": [{"field": {}, "message": []}]}',
    b'{"errors": {}}',
    b'{"errors": [null]}',
    b'{"id": [], "status": []}',
    b'{"id": "../..", "status": "Failed"}',
    b'{"name": 5}',
    b'{"name": ""}',
    b'{"messages": [1, null, {"date_created": "Mon, 99 Foo"}], "next_page_uri": null}',
    b'{"messages": {"a": 1}}',
    b'{"a": 1, "a": 2, "sid": "x", "sid": null}',
    b'<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;&a;">]><x><Code>&c;</Code></x>',
    b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>',
    b"<a>" * 20_000,
    b"<a><b></a></b>",
    b'<?xml version="1.0" encoding="utf-7"?><Error><Code>x</Code></Error>',
    b"<Error><Code>&#0;</Code></Error>",
)
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {
        "retry-after": "9" * 400,
        "x-ratelimit-reset": "9" * 12,
        "x-amz-retry-after": "²",
        "x-message-id": "\x00\x01" * 300,
        "operation-location": "::::/" * 100,
        "location": "\x00",
        "x-ms-error-code": "x" * 500,
    },
    {"retry-after": "²", "x-ratelimit-reset": "٣", "operation-location": "https://[", "location": ""},
)


class FakeServer:
    """A server that gives the same answer to every request except the one for a token."""

    answer = HttpResponse(status=500, headers={})

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse:
        if "oauth2" in request.url:
            granted = b'{"access_token": "t", "expires_in": 3599}'
            return HttpResponse(status=200, headers={}, body=granted)
        return self.answer

    async def close(self) -> None: ...


@pytest.mark.parametrize("kind", OVER_HTTP)
async def test_every_response_becomes_an_outcome(kind: str) -> None:
    wire = FakeServer()
    provider, delivery = a_provider(kind, wire), a_delivery(kind)
    wrapped = (
        b'{"error": {"message": %b, "status": "INVALID_ARGUMENT"}, "sid": %b}' % (n, n) for n in NESTED
    )
    for status in STATUSES:
        for headers in HEADERS:
            for body in BODIES:
                wire.answer = HttpResponse(status=status, headers=headers, body=body)
                await asks(provider, delivery, status)
    for body in (*NESTED, *wrapped):
        for status in (200, 202, 400):
            wire.answer = HttpResponse(status=status, headers={}, body=body)
            await asks(provider, delivery, status)
    await provider.close()


async def asks(provider: Any, delivery: Any, status: int) -> None:
    outcome = await provider.send(delivery)
    assert isinstance(outcome, Outcome)
    assert outcome.kind is not OutcomeKind.ACCEPTED or 200 <= status < 300
    assert len(repr(outcome)) < 2_000, "it does not grow with what came"
    if isinstance(provider, SupportsLookup):
        await provider.look_up(delivery, None)
        await provider.look_up(delivery, "SM" + "a" * 32)


# Callbacks ----------------------------------------------------------------------------------------------

Signs = Callable[[bytes], tuple[Any, Callback]]

_KEY = ec.generate_private_key(ec.SECP256R1())
_PUBLIC_KEY = _KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
TWILIO, ACS, FCM = a_provider("twilio"), a_provider("acs"), a_provider("fcm")
SENDGRID = a_provider("sendgrid", webhook_public_key=b64encode(_PUBLIC_KEY).decode())


def by_twilio(body: bytes) -> tuple[Any, Callback]:
    url = "https://notify.example.org/twilio?delivery=x&attempt=9999999"
    form = urlencode({"MessageSid": body, "MessageStatus": "failed", "ErrorCode": body}).encode()
    text = body.decode("utf-8", "replace")
    params = [("MessageSid", text), ("MessageStatus", "failed"), ("ErrorCode", text)]
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-twilio-signature": compute_signature(TOKEN, url, params),
    }
    return TWILIO, Callback(url=url, headers=headers, body=form)


def by_sendgrid(body: bytes) -> tuple[Any, Callback]:
    stamp = str(NOW_MS // 1000)
    signed = b64encode(_KEY.sign(stamp.encode() + body, ec.ECDSA(SHA256()))).decode()
    headers = {
        "x-twilio-email-event-webhook-signature": signed,
        "x-twilio-email-event-webhook-timestamp": stamp,
    }
    return SENDGRID, Callback(url="https://h.example/", headers=headers, body=body)


def by_event_grid(body: bytes) -> tuple[Any, Callback]:
    return ACS, Callback(url="https://h.example/?key=swordfish-0007", body=body)


def by_an_app(body: bytes) -> tuple[Any, Callback]:
    stamp = NOW_MS // 1000
    signed = build_signature_header([SigningKey(Secret(WEBHOOK_SECRET))], "msg_1", stamp, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(stamp), "webhook-signature": signed}
    return FCM, Callback(url="https://h.example/", headers=headers, body=body)


SIGNED: tuple[Signs, ...] = (by_twilio, by_sendgrid, by_event_grid, by_an_app)
EVENT = {"event": "delivered", "sg_event_id": "e1", "sg_message_id": "m1.x", "timestamp": 1_705_319_999}
POSTED = (
    *BODIES,
    *NESTED,
    *(b'[{"event": "open", "x": %b, "sg_message_id": "m"}]' % nested for nested in NESTED),
    *(b'{"messageId": "m", "event": "failed", "error": %b}' % nested for nested in NESTED),
    *(b'[{"eventType": "x", "data": %b}]' % nested for nested in NESTED),
    b'[{"event": "open", "sg_message_id": "m", "timestamp": 99999999999999999999, "attempt": {}}]',
    b'[{"eventType": {}}, {"type": "Microsoft.EventGrid.SubscriptionValidationEvent", "data": []}]',
    b'{"messageId": "m", "event": "failed", "timestamp": 1e300}',
    b'{"messageId": "m", "event": "delivered", "timestamp": "9999-12-31T23:59:59Z"}',
    b"[" + b",".join([b"{}"] * 20_000) + b"]",
)

SMALL_BYTES = 64 * 1024
"""The largest callback that every provider reads."""


@pytest.mark.parametrize("signs", SIGNED, ids=lambda signs: signs.__name__)
def test_any_signed_callback_is_read_or_counted(signs: Signs) -> None:
    for body in POSTED:
        provider, callback = signs(body)
        try:
            heard = provider.handle_callback(callback, NOW_MS)
        except CallbackRefused:  # Twilio and apps send no callback of this size
            assert len(callback.body) > SMALL_BYTES
            continue
        assert isinstance(heard, ParsedCallback)
        assert all(receipt.at <= NOW_MS for receipt in heard.receipts), body[:100]


@pytest.mark.parametrize("body", POSTED, ids=range(len(POSTED)))
def test_any_sns_message_is_read_or_counted(body: bytes) -> None:
    heard = read_events(body.decode("utf-8", "replace"), NOW_MS)
    assert all(receipt.at <= NOW_MS for receipt in heard.receipts)


def test_an_event_too_deep_to_encode_again_does_not_fail_its_batch() -> None:
    for nested in NESTED:
        deep = b'{"event": "open", "sg_message_id": "m2", "x": %b}' % nested
        provider, callback = by_sendgrid(b"[%b, %b]" % (json.dumps(EVENT).encode(), deep))
        heard = provider.handle_callback(callback, NOW_MS)
        whole = heard.receipts and heard.receipts[0].event_id == "e1"
        assert whole or heard == ParsedCallback(unreadable=1), (
            "either all of it is no JSON, or one event is not"
        )


@pytest.mark.parametrize("signs", SIGNED, ids=lambda signs: signs.__name__)
@pytest.mark.parametrize("change", ["body", "url", "method", "headers", "case"])
def test_a_modified_callback_is_refused_or_has_the_same_meaning(signs: Signs, change: str) -> None:
    provider, callback = signs(json.dumps([EVENT]).encode())
    said = provider.handle_callback(callback, NOW_MS)
    changed = {
        "body": Callback(url=callback.url, headers=callback.headers, body=callback.body + b" "),
        "url": Callback(url="https://evil.example/\ud800[", headers=callback.headers, body=callback.body),
        "method": Callback(url=callback.url, headers=callback.headers, body=callback.body, method="GET"),
        "headers": Callback(url=callback.url, headers={}, body=callback.body),
        "case": Callback(
            url=callback.url,
            headers={name: value.swapcase() for name, value in callback.headers.items()},
            body=callback.body,
        ),
    }[change]
    try:
        assert provider.handle_callback(changed, NOW_MS) == said
    except CallbackRefused:
        return


@pytest.mark.parametrize("signs", [by_sendgrid, by_an_app], ids=lambda signs: signs.__name__)
@pytest.mark.parametrize("days", [-30, 30])
def test_a_callback_signed_long_ago_or_in_the_future_is_refused(signs: Signs, days: int) -> None:
    provider, callback = signs(json.dumps([EVENT]).encode())
    with pytest.raises(CallbackRefused):
        provider.handle_callback(callback, NOW_MS + days * 86_400_000)


@pytest.mark.parametrize("signs", SIGNED, ids=lambda signs: signs.__name__)
def test_a_replay_has_the_same_event_ids(signs: Signs) -> None:
    provider, callback = signs(json.dumps([EVENT]).encode())
    assert provider.handle_callback(callback, NOW_MS) == provider.handle_callback(callback, NOW_MS)


# Provider faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["twilio", "sns", "sendgrid", "acs"])
@pytest.mark.parametrize("status", [404, 405])
async def test_a_response_of_another_server_is_a_configuration_fault(kind: str, status: int) -> None:
    wire = FakeServer()
    wire.answer = HttpResponse(status=status, headers={}, body=b"<html>not here</html>")
    outcome = await a_provider(kind, wire).send(a_delivery(kind))
    assert outcome.kind is OutcomeKind.PROVIDER_FAULT
    assert "base_url" in str(outcome.error)


@pytest.mark.parametrize("kind", ["twilio", "sns", "sendgrid", "acs"])
@pytest.mark.parametrize(
    ("status", "up"), [(200, True), (429, True), (401, False), (500, False), (503, False)]
)
async def test_a_health_check_fails_if_the_credentials_are_refused(kind: str, status: int, up: bool) -> None:
    wire = FakeServer()
    wire.answer = HttpResponse(status=status, headers={}, body=b"{}")
    assert await a_provider(kind, wire).check() is up
    if not up:
        with pytest.raises(CheckFailed, match=f"^answered with status {status}: "):
            await a_provider(kind, wire).diagnose()


@pytest.mark.parametrize("up", [True, False])
async def test_a_provider_with_a_check_of_its_own_is_diagnosed_by_it(up: bool) -> None:
    class Own(SlackProvider):
        async def check(self) -> bool:
            return up

    if up:
        assert await Own(FakeServer()).diagnose() == ""
    else:
        with pytest.raises(CheckFailed, match=r"^the health check failed$"):
            await Own(FakeServer()).diagnose()


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize(("status", "answers"), [(200, True), (500, False)])
async def test_a_check_of_its_own_may_include_that_of_its_base_class(
    ready: bool, status: int, answers: bool
) -> None:
    class Own(SendGridProvider):
        async def check(self) -> bool:
            return await super().check() and ready

    wire = FakeServer()
    wire.answer = HttpResponse(status=status, headers={}, body=b"{}")
    own = Own(wire, api_key="SG.key", from_email="noreply@example.com")
    assert await own.check() is (ready and answers)
    if ready and answers:
        assert await own.diagnose() == ""
    else:
        with pytest.raises(CheckFailed, match=r"^the health check failed$"):
            await own.diagnose()


@pytest.mark.parametrize(
    ("code", "up"),
    [("InvalidClientTokenId", False), ("SignatureDoesNotMatch", False), ("AuthorizationError", True)],
)
async def test_sns_keys_that_may_only_publish_are_healthy(code: str, up: bool) -> None:
    wire = FakeServer()
    body = f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>".encode()
    wire.answer = HttpResponse(status=403, headers={}, body=body)
    assert await a_provider("sns", wire).check() is up
