"""Signatures of Standard Webhooks, checked with the contract's vectors and the official library."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.receipts import Callback
from homing.net.secrets import Secret
from homing.net.standard_webhooks import SigningKey, build_signature_header, verify_webhook

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/standard_webhooks.json").read_text())["cases"]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNS = "whsk_" + b64encode(bytes(range(32))).decode()
CHECKS = "whpk_" + b64encode(PRIVATE.public_key().public_bytes_raw()).decode()


def callback(id: str, stamp: str, entries: str, body: bytes) -> Callback:
    headers = {"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": entries}
    return Callback(url="https://x.example/", headers=headers, body=body)


def accepted(secret: str, asked: Callback, now_s: int) -> bool:
    try:
        verify_webhook([Secret(secret)], asked, now_s * 1000)
    except CallbackRefused:
        return False
    return True


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["id"])
def test_the_vectors_are_satisfied(case: dict[str, Any]) -> None:
    body = case["body"].encode()
    asked = callback(case["webhook_id"], case["webhook_timestamp"], case["webhook_signature"], body)
    assert accepted(case["secret"], asked, case["now"]) is case["valid"]
    if case["id"] == "official-sign":
        key = SigningKey(Secret(case["secret"]))
        made = build_signature_header([key], case["webhook_id"], int(case["webhook_timestamp"]), body)
        assert made == case["webhook_signature"]


@given(
    key=st.binary(min_size=24, max_size=64),
    id=st.text("abcdefghij0123456789_-", min_size=1, max_size=40),
    body=st.text().map(str.encode),
    stamp=st.integers(1, 2**33),
)
def test_the_official_library_makes_the_same_signatures(key: bytes, id: str, body: bytes, stamp: int) -> None:
    secret = f"whsec_{b64encode(key).decode()}"
    ours = build_signature_header([SigningKey(Secret(secret))], id, stamp, body)
    theirs = Webhook(secret).sign(id, datetime.fromtimestamp(stamp, UTC), body.decode())
    assert ours == theirs


@given(body=st.binary(max_size=50), flip=st.integers(0, 255))
def test_the_official_library_refuses_the_same_signatures(body: bytes, flip: int) -> None:
    now_s = int(datetime.now(UTC).timestamp())
    made = build_signature_header([SigningKey(Secret(SECRET))], "id", now_s, b"{}")
    sent = bytes([flip]) + body
    headers = {"webhook-id": "id", "webhook-timestamp": str(now_s), "webhook-signature": made}
    try:
        Webhook(SECRET).verify(sent, headers)
        theirs = True
    except (WebhookVerificationError, ValueError):  # its message must be text and JSON as well
        theirs = False
    assert accepted(SECRET, callback("id", str(now_s), made, sent), now_s) is theirs is (sent == b"{}")


def test_both_keys_sign_during_a_rotation() -> None:
    old, new = f"whsec_{b64encode(b'o' * 24).decode()}", SIGNS
    made = build_signature_header([SigningKey(Secret(old)), SigningKey(Secret(new))], "id", 100, b"body")
    assert [entry.partition(",")[0] for entry in made.split(" ")] == ["v1", "v1a"]
    asked = callback("id", "100", made, b"body")
    assert accepted(old, asked, 100)
    assert accepted(CHECKS, asked, 100)
    assert accepted(SIGNS, asked, 100)
    assert not accepted(f"whsec_{b64encode(b'x' * 24).decode()}", asked, 100)
    assert not accepted(CHECKS, callback("id", "100", made, b"other"), 100)


@pytest.mark.parametrize(
    "entries",
    ["", "v1", "v1,", "v1,%%%", "nonsense", "v1a,AAAA", ",", "v1,é", "v1 " * 50, "v1," + "A" * 9999],
)
def test_invalid_entries_are_skipped(entries: str) -> None:
    asked = callback("id", "100", entries, b"body")
    assert not accepted(SECRET, asked, 100)
    assert not accepted(CHECKS, asked, 100)
    good = build_signature_header([SigningKey(Secret(SECRET))], "id", 100, b"body")
    assert accepted(SECRET, callback("id", "100", f"{entries[:20]} {good}", b"body"), 100)


@pytest.mark.parametrize("stamp", ["", "now", "-5", "1.5", "٣", "9" * 40])
def test_an_invalid_time_is_refused(stamp: str) -> None:
    good = build_signature_header([SigningKey(Secret(SECRET))], "id", 100, b"body")
    assert not accepted(SECRET, callback("id", stamp, good, b"body"), 100)


@pytest.mark.parametrize("given", ["whsec_!!", "whxx_AAAA", "whsk_AAAA", "whpk_AAAA", "whsec_", "_AAAA"])
def test_an_invalid_secret_is_a_clear_error_without_the_secret(given: str) -> None:
    with pytest.raises(ConfigError, match=r"secret: (is|has .* which is) not") as raised:
        SigningKey(Secret(given))
    assert "AAAA" not in str(raised.value)


def test_a_long_list_of_signatures_costs_one_hmac(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    digest = SigningKey._digest

    def counted(key: SigningKey, message: bytes) -> bytes:
        computed.append(len(message))
        return digest(key, message)

    monkeypatch.setattr(SigningKey, "_digest", counted)
    secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    with pytest.raises(CallbackRefused):
        verify_webhook(
            [secret],
            callback("msg_1", "1700000000", " ".join(["v1,AAAA"] * 20), b"x" * 1_000),
            1_700_000_000_000,
        )
    assert len(computed) == 1
