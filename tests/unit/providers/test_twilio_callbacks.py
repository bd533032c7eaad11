"""Twilio's status callbacks: only signed ones are accepted, and each event has one id."""

from __future__ import annotations

import json
from hashlib import sha256
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]
from werkzeug.datastructures import MultiDict

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.receipts import Callback, ParsedCallback, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.net.secrets import Secret
from homing.providers.common.error_tables import load_error_table
from homing.providers.twilio.callbacks import (
    TwilioCallbacks,
    compute_signature,
    is_signature_valid,
    read_callback,
)
from support.sms_deliveries import KINDS, NOW_MS, SID, TOKEN, a_twilio
from support.vector_files import vectors

SIGNATURES = vectors("twilio_signature")
ERRORS = vectors("twilio_errors")
FORM = {"content-type": "application/x-www-form-urlencoded; charset=UTF-8"}
URL = "https://notify.example.org/api/v1/webhooks/twilio/sms-status"

Pairs = list[tuple[str, str]]


def a_form(url: str, params: Pairs, **headers: str) -> Callback:
    return Callback(url=url, headers={**FORM, **headers}, body=urlencode(params).encode())


def a_status(status: str, code: str = "", *, url: str = URL, token: str = TOKEN, **more: str) -> Callback:
    fields = {"MessageSid": SID, "SmsSid": SID, "MessageStatus": status, "SmsStatus": status, **more}
    params = [*fields.items(), *([("ErrorCode", code)] if code else [])]
    return a_form(url, params, **{"x-twilio-signature": compute_signature(token, url, params)})


# Signatures ---------------------------------------------------------------------------------------------


@pytest.mark.source("002", "283-291")
@pytest.mark.parametrize("case", SIGNATURES["cases"], ids=lambda case: case["id"])
def test_every_signed_request_of_the_contract_is_judged_correctly(case: dict[str, Any]) -> None:
    if case["kind"] == "json":
        callback = Callback(
            url=case["url"], headers={"content-type": "application/json"}, body=case["raw_body"].encode()
        )
    else:
        callback = a_form(case["url"], [(name, value) for name, value in case["params"]])
    assert is_signature_valid(case["auth_token"], case["url"], callback, case["signature"]) is case["valid"]


def test_where_the_sdks_disagree_the_url_is_signed_unchanged() -> None:
    apostrophe, userinfo = SIGNATURES["sdk_disagreements"]
    params = [(name, value) for name, value in apostrophe["params"]]
    callback = a_form(apostrophe["url"], params)
    assert not is_signature_valid(
        apostrophe["auth_token"], apostrophe["url"], callback, apostrophe["signature"]
    )
    assert "strip only the port" in userinfo["note"]
    for seen, signed in (
        ("https://user:pass@host.example:1234/cb", "https://user:pass@host.example/cb"),
        ("https://[2001:db8::1]:1234/cb", "https://[2001:db8::1]/cb"),
        ("https://[2001:db8::1]/cb", "https://[2001:db8::1]:443/cb"),
    ):
        callback = a_form(seen, [("a", "b")])
        assert is_signature_valid("t", seen, callback, compute_signature("t", signed, [("a", "b")]))


class Generated:
    """A request as Twilio might make it: valid, or tampered with in one of many ways."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        pick = self.rng.choice
        self.token = "".join(self.rng.choices("0123456789abcdef", k=32))
        scheme, port = pick(("https", "http")), pick(("", "", ":443", ":80", ":8080"))
        path = pick(("", "/", "/cb", "/a%20b/c", "/ol%C3%A1", "/x;y=1", "/a//b", "/p/'q'"))
        query = pick(("", "?x=1", "?delivery=018d&attempt=2", "?q=a+b%2Bc", "?k=&k=2", "?e=%E2%82%AC"))
        self.host = f"{scheme}://{pick(('notify.example.org', 'n.example.org', '127.0.0.1'))}"
        self.url = f"{self.host}{port}{path}{query}"
        self.json = self.rng.random() < 0.15
        self.body = json.dumps({"n": self.rng.random()}) if self.json else ""
        if self.json:
            self.url += ("&" if query else "?") + f"bodySHA256={sha256(self.body.encode()).hexdigest()}"
        self.params = [] if self.json else [self._pair() for _ in range(self.rng.randrange(1, 12))]
        bare, default = f"{self.host}{path}{query}", ":443" if scheme == "https" else ":80"
        if self.json:
            bare, signed = self.url, self.url
        else:
            signed = pick((self.url, bare, bare if port else f"{self.host}{default}{path}{query}"))
        params = MultiDict(self.params)
        self.signature = RequestValidator(self.token).compute_signature(signed, params)
        self._tamper(self.rng.randrange(16))

    def _pair(self) -> tuple[str, str]:
        name = self.rng.choice(("MessageSid", "To", "Body", "b", "B", "_x", "Ação", "a.b[0]", "Digits"))
        alphabet = "abc +&=%'\"<>~é€👍ß\n\t0/?#:@"
        return name, "".join(self.rng.choices(alphabet, k=self.rng.randrange(0, 12)))

    def _tamper(self, way: int) -> None:
        match way:
            case 0:
                self.params = [*self.params, ("New", "field")]
            case 1:
                self.params = self.params[1:]
            case 2:
                self.params = [(name, value.strip()) for name, value in self.params]
            case 3:
                self.token += "0"
            case 4:
                self.signature = self.signature[:-2] + ("A=" if self.signature[-2] != "A" else "B=")
            case 5:
                self.signature = self.rng.choice(("", "=", "not base64", self.signature[:-1]))
            case 6:
                self.url = self.url.replace("://", "://evil.", 1)
            case 7:
                self.body += " "
            case 8:
                self.params = [(name.swapcase(), value) for name, value in self.params]

    def sdk_says(self) -> bool:
        given: Any = self.body if self.json else MultiDict(self.params)
        return bool(RequestValidator(self.token).validate(self.url, given, self.signature))

    def callback(self) -> Callback:
        if self.json:
            return Callback(
                url=self.url, headers={"content-type": "application/json"}, body=self.body.encode()
            )
        encode = self.rng.choice((urlencode, percent_encoded, lower_case_encoded))
        return Callback(url=self.url, headers=FORM, body=encode(self.params).encode())


def percent_encoded(params: Pairs) -> str:
    return urlencode(params, quote_via=quote, safe="")


def lower_case_encoded(params: Pairs) -> str:
    """Percent-encodes every byte in lower case."""
    return "&".join("=".join(_escaped(part) for part in pair) for pair in params)


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def test_the_official_sdk_gives_the_same_verdict_on_600_generated_requests() -> None:
    verdicts = []
    for seed in range(600):
        one = Generated(seed)
        ours = is_signature_valid(one.token, one.url, one.callback(), one.signature)
        assert ours == one.sdk_says(), (seed, one.url, one.params)
        verdicts.append(ours)
    assert min(verdicts.count(True), verdicts.count(False)) > 150


def test_behind_a_proxy_the_signed_url_is_the_public_one() -> None:
    query = "?delivery=018d0c7e-5a00-7000-8000-000000000001&attempt=3"
    signed = a_status("delivered", url=URL + query)
    seen = Callback(url="http://10.0.0.7:8080/sms-status" + query, headers=signed.headers, body=signed.body)
    (receipt,) = a_twilio(callback_url=URL + "#rc=2").handle_callback(seen, NOW_MS).receipts
    assert (receipt.notification_id, receipt.attempt) == ("018d0c7e-5a00-7000-8000-000000000001", 3)
    with pytest.raises(CallbackRefused):
        a_twilio(callback_url="https://other.example.org/cb").handle_callback(seen, NOW_MS)
    with pytest.raises(CallbackRefused):
        a_twilio().handle_callback(seen, NOW_MS)


def test_a_callback_without_its_signature_is_refused() -> None:
    callback = a_status("delivered")
    for headers in (FORM, {**FORM, "x-twilio-signature": "ä"}, {**FORM, "x-twilio-signature": ""}):
        bare = Callback(url=callback.url, headers=headers, body=callback.body)
        with pytest.raises(CallbackRefused):
            a_twilio().handle_callback(bare, NOW_MS)


def test_a_body_that_is_not_covered_by_the_signature_is_refused() -> None:
    signature = compute_signature(TOKEN, URL, [])
    for kind in ("application/json", "multipart/form-data", ""):
        headers = {"content-type": kind, "x-twilio-signature": signature}
        with pytest.raises(CallbackRefused):
            a_twilio().handle_callback(Callback(url=URL, headers=headers, body=b"MessageSid=SM1"), NOW_MS)


def test_without_the_auth_token_everything_is_refused() -> None:
    with pytest.raises(CallbackRefused, match="auth_token"):
        TwilioCallbacks(()).handle_callback(a_status("delivered"), NOW_MS)
    with pytest.raises(CallbackRefused):
        TwilioCallbacks([Secret("another")]).handle_callback(a_status("delivered"), NOW_MS)


@given(st.text(), st.binary(), st.text(), st.sampled_from([FORM["content-type"], "application/json", ""]))
def test_any_request_is_read_or_refused(url: str, body: bytes, signature: str, kind: str) -> None:
    callback = Callback(url=url, headers={"content-type": kind, "x-twilio-signature": signature}, body=body)
    with pytest.raises(CallbackRefused):
        a_twilio(callback_url=URL).handle_callback(callback, NOW_MS)
    assert isinstance(read_callback(callback, NOW_MS), ParsedCallback)


def test_a_request_with_very_many_fields_is_refused() -> None:
    url = URL + "?" + "&".join(["a=b"] * 501)
    plain = Callback(url=url, headers={"content-type": "text/plain"}, body=b"x")
    with pytest.raises(CallbackRefused):
        a_twilio().handle_callback(plain, NOW_MS)
    with pytest.raises(CallbackRefused):
        a_twilio().handle_callback(a_form(URL, [("a", "b")] * 501), NOW_MS)


# Contents -----------------------------------------------------------------------------------------------


@pytest.mark.source("002", "293-298")
@pytest.mark.parametrize(
    ("status", "events"),
    [
        ("accepted", [ReceiptEvent.QUEUED]),
        ("scheduled", [ReceiptEvent.QUEUED]),
        ("queued", [ReceiptEvent.QUEUED]),
        ("sending", [ReceiptEvent.QUEUED]),
        ("sent", [ReceiptEvent.SENT]),
        ("partially_delivered", [ReceiptEvent.SENT]),
        ("delivered", [ReceiptEvent.DELIVERED]),
        ("read", [ReceiptEvent.DELIVERED, ReceiptEvent.OPEN]),
        ("undelivered", [ReceiptEvent.FAILED]),
        ("failed", [ReceiptEvent.FAILED]),
        ("canceled", [ReceiptEvent.FAILED]),
        ("receiving", []),
        ("received", []),
        ("a status of tomorrow", []),
    ],
)
def test_every_status_has_a_meaning_or_is_ignored(status: str, events: list[ReceiptEvent]) -> None:
    heard = a_twilio().handle_callback(a_status(status), NOW_MS)
    assert [receipt.event for receipt in heard.receipts] == events
    assert heard.ignored == (0 if events else 1)
    assert all(receipt.provider_message_id == SID for receipt in heard.receipts)
    assert len({receipt.event_id for receipt in heard.receipts}) == len(events)


def test_a_repeat_has_the_same_event_id_whatever_else_it_contains() -> None:
    first = a_twilio().handle_callback(a_status("sent"), NOW_MS)
    again = a_twilio().handle_callback(a_status("sent", RawDlrDoneDate="2401151200"), NOW_MS + 60_000)
    other = a_twilio().handle_callback(a_status("delivered"), NOW_MS)
    assert first.receipts[0].event_id == again.receipts[0].event_id != other.receipts[0].event_id


@pytest.mark.parametrize(
    "row", [row for row in ERRORS["codes"] if row["stage"] == "callback"], ids=lambda row: str(row["code"])
)
def test_every_callback_code_of_the_contract_has_its_class(row: dict[str, Any]) -> None:
    receipts = a_twilio().handle_callback(a_status("undelivered", str(row["code"])), NOW_MS).receipts
    failed = receipts[0]
    assert (failed.event, failed.error_code) == (ReceiptEvent.FAILED, str(row["code"]))
    assert failed.error == load_error_table("twilio").codes[str(row["code"])].means
    if row["action"].startswith("mark address invalid"):
        assert failed.address_dead
    else:
        assert failed.outcome in KINDS[row["retry_class"]]
    assert (failed.outcome is OutcomeKind.BAD_CONTENT) is (row["code"] == 30007)
    assert failed.retry_after_ms == (30 * 60_000 if row["code"] == 30450 else None)
    assert [one.event for one in receipts[1:]] == (
        [ReceiptEvent.UNSUBSCRIBE] if row["retry_class"] == "opt_out" else []
    )


def test_a_failure_without_a_known_code_may_be_tried_elsewhere() -> None:
    for code in ("", "99999", "unreadable", "🤷" * 50):
        (failed,) = a_twilio().handle_callback(a_status("failed", code), NOW_MS).receipts
        assert (failed.outcome, failed.retry_after_ms) == (None, None)
        assert failed.error_code == (code[:20] or "failed")


def test_the_real_callback_of_the_contract_is_read() -> None:
    body = ERRORS["real_callback_example"]["body"].encode()
    (failed,) = read_callback(Callback(url=URL, headers=FORM, body=body), NOW_MS).receipts
    assert (failed.error_code, failed.outcome) == ("30034", OutcomeKind.PROVIDER_FAULT)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", (None, 0)),
        ("?delivery=018d0c7e-5a00-7000-8000-000000000001", ("018d0c7e-5a00-7000-8000-000000000001", 0)),
        ("?k=1&delivery=x&attempt=2", ("x", 2)),
        ("?delivery=x&attempt=-1", ("x", 0)),
        ("?delivery=x&attempt=" + "9" * 30, ("x", 0)),
        ("?delivery=%00'&attempt=2", (None, 0)),
    ],
)
def test_our_id_is_read_back_from_the_query(query: str, found: tuple[str | None, int]) -> None:
    (receipt,) = a_twilio().handle_callback(a_status("sent", url=URL + query), NOW_MS).receipts
    assert (receipt.notification_id, receipt.attempt) == found


def test_a_signed_callback_without_a_status_is_counted() -> None:
    params = [("MessageSid", SID)]
    callback = a_form(URL, params, **{"x-twilio-signature": compute_signature(TOKEN, URL, params)})
    assert a_twilio().handle_callback(callback, NOW_MS) == ParsedCallback(unreadable=1)


# Limits -------------------------------------------------------------------------------------------------


def test_a_body_above_64_kib_is_refused_even_if_signed() -> None:
    heard = a_twilio().handle_callback(a_status("delivered", Body="x" * 60_000), NOW_MS)
    assert len(heard.receipts) == 1
    with pytest.raises(CallbackRefused, match="more than 65536 bytes"):
        a_twilio().handle_callback(a_status("delivered", Body="x" * 70_000), NOW_MS)


def test_during_a_rotation_callbacks_of_the_new_and_the_old_token_are_accepted() -> None:
    twilio = a_twilio(auth_token=["a-new-token", TOKEN], callback_url=URL)
    for token in ("a-new-token", TOKEN):
        assert twilio.handle_callback(a_status("delivered", token=token), NOW_MS).receipts
    with pytest.raises(CallbackRefused):
        twilio.handle_callback(a_status("delivered", token="another"), NOW_MS)
