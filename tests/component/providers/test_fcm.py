"""FCM over real sockets: tokens that are fetched once and shared, and the meaning of responses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from homing import Content, Outcome, OutcomeKind
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpResponse
from homing.net.secrets import Secret
from homing.providers.common.error_tables import load_error_table
from homing.providers.fcm import answers
from homing.providers.fcm.access_tokens import ServiceAccount, build_token_request, read_token
from homing.providers.fcm.provider import FcmProvider
from homing.testing.fault_server import (
    EMPTY,
    HANG_AFTER_READING,
    RESET_AFTER_READING,
    FaultServer,
    ReceivedRequest,
    ServerAction,
    answer,
    html_page,
    throttle,
)
from support.push_deliveries import (
    FCM,
    KEY_FILE,
    NAME,
    NOW_MS,
    SENT,
    a_push,
    a_token,
    an_fcm,
    asks_for_a_token,
)

K = OutcomeKind
UNAUTHENTICATED = answer(
    401, json.dumps(next(e for e in FCM["errors"] if e["id"] == "oauth-expired")["body"]).encode()
)

CLASSES = {
    "token_dead": {K.DEAD_ADDRESS},
    "permanent": {K.BAD_CONTENT, K.BAD_RECIPIENT},
    "rate_limited": {K.THROTTLED},
    "transient": {K.TRANSIENT},
    "config": {K.PROVIDER_FAULT},
    "auth_refresh": {K.PROVIDER_FAULT},  # the response that remains if a new token is refused too
}


class FakeGoogle:
    """A token server and an FCM server on one port, with scripted responses."""

    def __init__(self) -> None:
        self.server = FaultServer(self._act)
        self.token_acts: list[ServerAction] = []
        self.send_acts: list[ServerAction] = []
        self.revoked = ""
        """A token that every send is refused with."""
        self.asked = asyncio.Event()

    def _act(self, received: ReceivedRequest) -> ServerAction:
        self.asked.set()
        if self.revoked and received.headers.get("authorization") == f"Bearer {self.revoked}":
            return UNAUTHENTICATED
        acts, usual = (self.token_acts, a_token()) if asks_for_a_token(received) else (self.send_acts, SENT)
        return acts.pop(0) if acts else usual

    @property
    def tokens_asked(self) -> list[ReceivedRequest]:
        return [one for one in self.server.received if asks_for_a_token(one)]

    @property
    def sends(self) -> list[ReceivedRequest]:
        return [one for one in self.server.received if not asks_for_a_token(one)]


@pytest.fixture
async def google() -> AsyncIterator[FakeGoogle]:
    made = FakeGoogle()
    async with made.server:
        yield made


@pytest.fixture
async def transport() -> AsyncIterator[CurlTransport]:
    made = CurlTransport()
    yield made
    await made.close()


@pytest.fixture
async def fcm(google: FakeGoogle, transport: CurlTransport) -> AsyncIterator[FcmProvider]:
    made = an_fcm(transport, google.server.url)
    yield made
    await made.close()


# Sending -----------------------------------------------------------------------------------------------


async def test_a_message_is_sent_with_the_token_of_the_assertion(
    fcm: FcmProvider, google: FakeGoogle
) -> None:
    outcome = await fcm.send(a_push())
    assert outcome == Outcome(K.ACCEPTED, provider_message_id=NAME)
    (asked,), (sent,) = google.tokens_asked, google.sends
    form = parse_qs(asked.body.decode())
    assert form == {
        "grant_type": ["urn:ietf:params:oauth:grant-type:jwt-bearer"],
        "assertion": [FCM["oauth"]["assertion"]],
    }
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert (sent.path, sent.headers["authorization"]) == (FCM["send"]["path"], FCM["send"]["authorization"])
    assert sent.headers["content-type"] == "application/json"


async def test_two_hundred_concurrent_sends_fetch_one_token(fcm: FcmProvider, google: FakeGoogle) -> None:
    outcomes = await asyncio.gather(*(fcm.send(a_push(address=f"t{n}")) for n in range(200)))
    assert {outcome.kind for outcome in outcomes} == {K.ACCEPTED}
    assert (len(google.tokens_asked), len(google.sends)) == (1, 200)


async def test_a_cancelled_send_leaves_the_token_fetch_to_the_others(
    google: FakeGoogle, transport: CurlTransport
) -> None:
    google.token_acts = [ServerAction(writes=a_token().writes, pause_ms=1)]  # long enough for a cancellation
    fcm = an_fcm(transport, google.server.url)
    first, second = asyncio.ensure_future(fcm.send(a_push())), asyncio.ensure_future(fcm.send(a_push()))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).kind is K.ACCEPTED
    assert (len(google.tokens_asked), len(google.sends)) == (1, 1)


async def test_a_token_is_renewed_before_its_expiry_while_the_old_one_is_used(
    google: FakeGoogle, transport: CurlTransport
) -> None:
    now = [NOW_MS]
    fcm = an_fcm(transport, google.server.url, now_ms=lambda: now[0])
    google.token_acts = [a_token("old"), a_token("new")]
    await fcm.send(a_push())
    now[0] += (3599 - 301) * 1000
    await fcm.send(a_push())
    assert len(google.tokens_asked) == 1
    now[0] += 2_000
    await fcm.send(a_push())  # the old one is still used
    for _ in range(500):
        await fcm.send(a_push())
        if google.sends[-1].headers["authorization"] == "Bearer new":
            break
    used = [one.headers["authorization"] for one in google.sends]
    assert (used[:3], used[-1]) == (["Bearer old"] * 3, "Bearer new")
    assert len(google.tokens_asked) == 2


async def test_a_failed_renewal_is_not_repeated_with_every_send(
    google: FakeGoogle, transport: CurlTransport
) -> None:
    now = [NOW_MS]
    fcm = an_fcm(transport, google.server.url, now_ms=lambda: now[0])
    google.token_acts = [a_token("old"), *[html_page(503)] * 9]
    await fcm.send(a_push())
    now[0] += 3_400_000
    for _ in range(20):
        assert (await fcm.send(a_push())).kind is K.ACCEPTED
    assert len(google.tokens_asked) == 2
    now[0] += 10_000
    await fcm.send(a_push())
    await fcm.close()
    assert len(google.tokens_asked) <= 3


async def test_an_expired_token_is_not_used(google: FakeGoogle, transport: CurlTransport) -> None:
    now = [NOW_MS]
    fcm = an_fcm(transport, google.server.url, now_ms=lambda: now[0])
    google.token_acts = [a_token("old"), a_token("new")]
    await fcm.send(a_push())
    now[0] += 3_599_000
    await fcm.send(a_push())
    assert [one.headers["authorization"] for one in google.sends] == ["Bearer old", "Bearer new"]


async def test_a_refused_token_is_replaced_once_and_the_message_sent_again(
    fcm: FcmProvider, google: FakeGoogle
) -> None:
    google.token_acts = [a_token("revoked"), a_token("fresh")]
    google.send_acts = [UNAUTHENTICATED]
    assert (await fcm.send(a_push())).kind is K.ACCEPTED
    assert [one.headers["authorization"] for one in google.sends] == ["Bearer revoked", "Bearer fresh"]


async def test_a_new_token_that_is_refused_too_is_a_provider_fault(
    fcm: FcmProvider, google: FakeGoogle
) -> None:
    google.send_acts = [UNAUTHENTICATED] * 9
    outcome = await fcm.send(a_push())
    assert (outcome.kind, outcome.error_code) == (K.PROVIDER_FAULT, "UNAUTHENTICATED")
    assert (len(google.tokens_asked), len(google.sends)) == (2, 2)


async def test_a_refused_token_that_cannot_be_replaced_is_not_ambiguous(
    fcm: FcmProvider, google: FakeGoogle
) -> None:
    google.token_acts = [a_token(), html_page(503)]
    google.send_acts = [UNAUTHENTICATED]
    outcome = await fcm.send(a_push())
    assert (outcome.kind, outcome.error_code) == (K.TRANSIENT, "token_unavailable")


async def test_fifty_sends_with_a_revoked_token_replace_it_once(fcm: FcmProvider, google: FakeGoogle) -> None:
    google.token_acts = [a_token("revoked"), a_token("fresh")]
    await fcm.send(a_push())
    google.revoked = "revoked"
    outcomes = await asyncio.gather(*(fcm.send(a_push()) for _ in range(50)))
    assert {outcome.kind for outcome in outcomes} == {K.ACCEPTED}
    assert len(google.tokens_asked) == 2


async def test_apple_s_refusal_of_our_credentials_does_not_cause_a_new_token(
    fcm: FcmProvider, google: FakeGoogle
) -> None:
    body = next(e for e in FCM["errors"] if e["id"] == "third-party-auth")["body"]
    google.send_acts = [answer(401, json.dumps(body).encode())]
    assert (await fcm.send(a_push())).kind is K.PROVIDER_FAULT
    assert len(google.tokens_asked) == 1


REFUSED_GRANT = answer(400, b'{"error":"invalid_grant","error_description":"Invalid JWT Signature."}')


@pytest.mark.parametrize(
    ("act", "kind", "code"),
    [
        (REFUSED_GRANT, K.PROVIDER_FAULT, "token_refused"),
        (answer(401, b"{}"), K.PROVIDER_FAULT, "token_refused"),
        (html_page(503), K.TRANSIENT, "token_unavailable"),
        (throttle("7"), K.TRANSIENT, "token_unavailable"),
        (html_page(200), K.TRANSIENT, "token_unavailable"),
        (a_token("two words"), K.TRANSIENT, "token_unavailable"),
        (RESET_AFTER_READING, K.TRANSIENT, "dropped"),
        (EMPTY, K.TRANSIENT, "dropped"),
        (HANG_AFTER_READING, K.TRANSIENT, "token_unavailable"),
    ],
)
async def test_without_a_token_nothing_is_sent_and_nothing_is_ambiguous(
    fcm: FcmProvider, google: FakeGoogle, act: ServerAction, kind: OutcomeKind, code: str
) -> None:
    google.token_acts = [act] * 9
    outcome = await fcm.send(a_push(timeout_ms=600 if act is HANG_AFTER_READING else 60_000))
    assert (outcome.kind, outcome.error_code) == (kind, code)
    assert google.sends == []


async def test_the_next_send_after_a_failed_fetch_tries_again(fcm: FcmProvider, google: FakeGoogle) -> None:
    google.token_acts = [html_page(503)]
    assert (await fcm.send(a_push())).kind is K.TRANSIENT
    assert (await fcm.send(a_push())).kind is K.ACCEPTED


async def test_without_tokens_the_health_check_fails(fcm: FcmProvider, google: FakeGoogle) -> None:
    google.token_acts = [REFUSED_GRANT]
    assert not await fcm.check()


async def test_a_retry_after_of_the_token_server_is_respected(fcm: FcmProvider, google: FakeGoogle) -> None:
    google.token_acts = [throttle("7")]
    assert (await fcm.send(a_push())).retry_after_ms == 7_000


async def test_google_s_error_about_the_key_is_reported(fcm: FcmProvider, google: FakeGoogle) -> None:
    google.token_acts = [REFUSED_GRANT]
    assert "invalid_grant: Invalid JWT Signature." in str((await fcm.send(a_push())).error)


async def test_a_dropped_response_to_a_message_is_ambiguous(fcm: FcmProvider, google: FakeGoogle) -> None:
    google.send_acts = [RESET_AFTER_READING]
    assert (await fcm.send(a_push())).kind is K.AMBIGUOUS


async def test_a_message_that_cannot_be_sent_fetches_no_token(fcm: FcmProvider, google: FakeGoogle) -> None:
    assert (await fcm.send(a_push(content=Content(data={"n": "x" * 5_000})))).kind is K.BAD_CONTENT
    assert google.server.received == []


async def test_the_health_check_succeeds_with_a_token_and_a_response(
    fcm: FcmProvider, google: FakeGoogle
) -> None:
    google.send_acts = [html_page(404), html_page(502)]
    assert await fcm.check()
    assert not await fcm.check()
    assert {one.method for one in google.sends} == {"GET"}


async def test_closing_aborts_a_hanging_token_fetch(google: FakeGoogle, transport: CurlTransport) -> None:
    google.token_acts = [HANG_AFTER_READING]
    fcm = an_fcm(transport, google.server.url)
    send = asyncio.ensure_future(fcm.send(a_push(timeout_ms=60_000)))
    await google.asked.wait()
    await fcm.close()
    assert (await send).error_code == "token_unavailable"


async def test_no_secret_is_shown(
    fcm: FcmProvider, google: FakeGoogle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    google.send_acts = [UNAUTHENTICATED] * 9
    outcome = await fcm.send(a_push())
    shown = repr(fcm) + repr(vars(fcm)) + repr(outcome) + caplog.text + repr(ServiceAccount(Secret(KEY_FILE)))
    for hidden in ("ya29.test", "PRIVATE KEY", "MIIEv", FCM["oauth"]["assertion"][-40:], "svc@demo"):
        assert hidden not in shown


# Tokens ------------------------------------------------------------------------------------------------


def test_the_assertion_equals_google_s_byte_for_byte() -> None:
    made = ServiceAccount(Secret(KEY_FILE)).assertion(NOW_MS)
    assert made == FCM["oauth"]["assertion"]
    key: Any = load_pem_private_key(FCM["oauth"]["throwaway_test_private_key_pem"].encode(), None)
    claims = jwt.decode(made, key.public_key(), ["RS256"], options={"verify_exp": False, "verify_aud": False})
    assert claims == FCM["oauth"]["claims"]
    assert jwt.get_unverified_header(made) == FCM["oauth"]["jose_header"]


def test_the_token_request_equals_google_s() -> None:
    body = build_token_request("https://oauth2.example.org", FCM["oauth"]["assertion"]).body.decode()
    assert body == FCM["oauth"]["token_request_body"].replace("<assertion>", FCM["oauth"]["assertion"])


@pytest.mark.parametrize("lasts", [None, "soon", -1, 0, 1e300, True, [1]])
def test_a_token_with_an_odd_lifetime_is_used_for_a_limited_time(lasts: object) -> None:
    body = json.dumps({"access_token": "x", "expires_in": lasts}).encode()
    held = read_token(HttpResponse(status=200, headers={}, body=body), NOW_MS)
    assert not isinstance(held, Outcome)
    assert NOW_MS < held.refresh_at <= held.useless_at <= NOW_MS + 3_600_000


# Answers -----------------------------------------------------------------------------------------------


def answer_of(vector: dict[str, Any]) -> HttpResponse:
    body = vector["raw_body"].encode() if "raw_body" in vector else json.dumps(vector["body"]).encode()
    headers = {name.lower(): value for name, value in vector.get("headers", {}).items()}
    return HttpResponse(status=vector["status"], headers=headers, body=body)


@pytest.mark.parametrize("vector", FCM["errors"], ids=lambda vector: vector["id"])
def test_an_error_has_the_class_of_the_contract(vector: dict[str, Any]) -> None:
    outcome = answers.classify(answer_of(vector), NOW_MS)
    assert outcome.kind in CLASSES[vector["expected_class"]]
    assert answers.is_token_rejected(answer_of(vector)) == (vector["expected_class"] == "auth_refresh")
    if vector.get("retry_after_seconds"):
        assert outcome.retry_after_ms == vector["retry_after_seconds"] * 1000


def outcome_of_vector(name: str) -> Outcome:
    return answers.classify(answer_of(next(e for e in FCM["errors"] if e["id"] == name)), NOW_MS)


def test_an_invalid_token_is_the_recipient_s_fault_and_an_invalid_payload_is_bad_content() -> None:
    assert outcome_of_vector("invalid-token").kind is K.BAD_RECIPIENT
    assert outcome_of_vector("invalid-payload").kind is K.BAD_CONTENT


@pytest.mark.parametrize(
    ("status", "code", "unlisted"),
    [
        (400, "INVALID_ARGUMENT", False),
        (400, "FAILED_PRECONDITION", True),
        (400, None, False),
        (413, "OUT_OF_RANGE", False),
        (403, "SOMETHING_NEW", False),
    ],
)
def test_a_refusal_missing_in_the_table_is_marked_as_unlisted(
    status: int, code: str | None, unlisted: bool
) -> None:
    body = json.dumps({"error": {"status": code, "message": "no"}}).encode()
    outcome = answers.classify(HttpResponse(status=status, headers={}, body=body), NOW_MS)
    assert outcome.unlisted is unlisted


def test_a_violation_of_the_token_field_is_the_recipient_s_fault() -> None:
    violation = {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [{"field": "message.token"}],
    }
    error = {"status": "INVALID_ARGUMENT", "message": "Invalid registration", "details": [violation]}
    answered = HttpResponse(status=400, headers={}, body=json.dumps({"error": error}).encode())
    assert answers.classify(answered, NOW_MS).kind is K.BAD_RECIPIENT


def test_a_plain_404_deactivates_no_device() -> None:
    assert outcome_of_vector("not-found-without-fcm-detail").kind is K.BAD_RECIPIENT
    assert outcome_of_vector("unregistered").kind is K.DEAD_ADDRESS


def test_a_quota_error_without_a_delay_waits_a_minute() -> None:
    assert outcome_of_vector("quota-no-header").retry_after_ms == 60_000


def test_an_unspecified_error_is_judged_by_its_status() -> None:
    detail = {
        "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError",
        "errorCode": "UNSPECIFIED_ERROR",
    }
    body = json.dumps({"error": {"details": [detail]}}).encode()
    assert answers.classify(HttpResponse(status=503, headers={}, body=body), NOW_MS).kind is K.TRANSIENT
    assert answers.classify(HttpResponse(status=403, headers={}, body=body), NOW_MS).kind is K.PROVIDER_FAULT


def test_an_unreadable_success_is_ambiguous() -> None:
    assert answers.classify(HttpResponse(status=200, headers={}, body=b"<html>"), NOW_MS).kind is K.AMBIGUOUS


KNOWN_NAMES = ("error", "details", "errorCode", "status", "message", "fieldViolations", "field", "name")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KNOWN_NAMES) | st.text(), inner),
)
BODIES = st.binary() | JSON.map(lambda value: json.dumps(value).encode())


@given(
    status=st.integers(0, 999),
    body=BODIES,
    headers=st.dictionaries(st.sampled_from(["retry-after", "location"]), st.text()),
    reader=st.sampled_from([answers.classify, read_token]),
)
def test_no_response_makes_it_raise(
    status: int, body: bytes, headers: dict[str, str], reader: Callable[[HttpResponse, int], object]
) -> None:
    answered = HttpResponse(status=status, headers=headers, body=body)
    answers.is_token_rejected(answered)
    assert reader(answered, NOW_MS) is not None


def test_a_deeply_nested_response_is_merely_unreadable() -> None:
    answered = HttpResponse(status=500, headers={}, body=b'{"error":' * 5000)
    assert answers.classify(answered, NOW_MS).kind is K.TRANSIENT


def test_every_code_of_the_contract_is_in_the_table() -> None:
    found = load_error_table("fcm").codes
    for vector in FCM["errors"]:
        for detail in vector.get("body", {}).get("error", {}).get("details", []):
            assert detail.get("errorCode", "INTERNAL") in found
