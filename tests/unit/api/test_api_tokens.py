"""Tokens of admins: valid ones are accepted, and no way to forge one works."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from homing.api.access.authentication import MAX_TOKEN_CHARACTERS, Issuer, TokenVerifier, read_issuers
from homing.core.access.scopes import Caller, Scope
from homing.core.errors import ConfigError
from homing.testing.manual_clock import START_MS, ManualClock

NOW = START_MS // 1000
SECRET = "correct-horse-battery-staple-0123456789"
CLAIMS: dict[str, Any] = {
    "iss": "https://id.example.org",
    "aud": "homing",
    "sub": "ada",
    "iat": NOW - 10,
    "exp": NOW + 600,
}


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_pem(key: Any) -> str:
    made = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return str(made.decode())


def private_pem(key: Any) -> str:
    made = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return str(made.decode())


def table(**fields: Any) -> dict[str, Any]:
    return {
        "issuer": "https://id.example.org",
        "audience": "homing",
        "algorithm": "HS256",
        "key": SECRET,
        "tenant": "acme",
        "scopes": ["admin"],
        **fields,
    }


def configured(*tables: dict[str, Any]) -> tuple[Issuer, ...]:
    return read_issuers(tables or (table(),), lambda field, given: given)


def tokens(*tables: dict[str, Any], clock: ManualClock | None = None) -> TokenVerifier:
    return TokenVerifier(configured(*tables), clock or ManualClock())


@cache
def rs256() -> TokenVerifier:
    return tokens(table(algorithm="RS256", key=public_pem(rsa_key())))


def signed(claims: dict[str, Any] | None = None, **header: Any) -> str:
    return jwt.encode(claims or CLAIMS, SECRET, "HS256", headers=header or None)


def raw(header: Any, claims: Any, key: bytes = SECRET.encode()) -> str:
    """Returns a token with a valid HS256 signature over any header and claims."""
    head, body = (
        _b64(one if isinstance(one, bytes) else json.dumps(one).encode()) for one in (header, claims)
    )
    made = hmac.new(key, f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{_b64(made)}"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# Accepted tokens -------------------------------------------------------------------------------------


def test_a_token_stands_for_its_subject_with_the_tenant_and_scopes_of_the_settings() -> None:
    assert tokens().caller(signed()) == Caller(
        tenant="acme", who="jwt:ada", scopes=frozenset({Scope.ADMIN}), rate_key="jwt:acme"
    )


def test_tenant_and_scopes_may_come_from_claims() -> None:
    fits = tokens(table(tenant="", tenant_claim="org", scopes=[], scope_claim="scope"))
    found = fits.caller(signed({**CLAIMS, "org": "globex", "scope": "openid read operate"}))
    assert found is not None
    assert (found.tenant, set(found.scopes)) == ("globex", {Scope.READ, Scope.OPERATE})
    listed = fits.caller(signed({**CLAIMS, "org": "globex", "scope": ["send", "profile"]}))
    assert listed is not None
    assert listed.scopes == {Scope.SEND}


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES256", "ES384", "EdDSA"])
def test_public_keys_of_every_kind_are_accepted(algorithm: str) -> None:
    key: Any = {
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }.get(algorithm, rsa_key)()
    token = jwt.encode(CLAIMS, key, algorithm, headers={"kid": "2026-01"})
    assert tokens(table(algorithm=algorithm, key=public_pem(key))).caller(token) is not None
    assert tokens().caller(token) is None


def test_there_may_be_several_issuers_and_two_keys_during_a_key_change() -> None:
    old = table(key="an-older-secret-that-has-enough-bytes-in-it")
    other = table(issuer="https://other.example", audience="other", tenant="globex")
    known = tokens(other, old, table())
    assert known.caller(signed()) is not None
    found = known.caller(signed({**CLAIMS, "iss": "https://other.example", "aud": ["x", "other"]}))
    assert found is not None
    assert found.tenant == "globex"
    assert known.caller(signed({**CLAIMS, "aud": "other"})) is None


def test_time_comes_from_the_given_clock_with_a_little_leeway() -> None:
    clock = ManualClock()
    known = tokens(clock=clock)
    token = signed()
    clock.advance(629_000)
    assert known.caller(token) is not None
    clock.advance(1_000)
    assert known.caller(token) is None
    for early in ({"iat": NOW + 700}, {"iat": NOW, "nbf": NOW + 700}):
        token = signed({**CLAIMS, "exp": NOW + 9999, **early})
        assert tokens().caller(token) is None
        assert known.caller(token) is None, "630 s later it is still 70 s too early"
        assert tokens(clock=ManualClock(START_MS + 671_000)).caller(token) is not None


# Refused tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "nOnE", "HS384", "HS512", "RS256", None, 1, []]
)
def test_the_algorithm_is_never_chosen_by_the_token(algorithm: Any) -> None:
    for signature in ("", _b64(b"x" * 32), signed().rpartition(".")[2]):
        head = _b64(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
        body = _b64(json.dumps(CLAIMS).encode())
        assert tokens().caller(f"{head}.{body}.{signature}") is None
        assert rs256().caller(f"{head}.{body}.{signature}") is None


@pytest.mark.parametrize("ending", ["", "\n", "stripped"])
def test_a_public_key_is_not_accepted_as_a_secret(ending: str) -> None:
    """The classic confusion: an HS256 token whose secret is the public RS256 key."""
    pem = public_pem(rsa_key())
    key = pem.strip() if ending == "stripped" else pem + ending
    forged = raw({"alg": "HS256", "typ": "JWT"}, CLAIMS, key.encode())
    assert rs256().caller(forged) is None
    as_rs256 = raw({"alg": "RS256", "typ": "JWT"}, CLAIMS, key.encode())
    assert rs256().caller(as_rs256) is None
    both = tokens(table(algorithm="RS256", key=pem), table(issuer="https://other.example"))
    assert both.caller(forged) is None


@pytest.mark.parametrize(
    "header",
    [
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"x5c": ["MIIB"]},
        {"jwk": {"kty": "oct", "k": _b64(SECRET.encode())}},
        {"crit": ["exp"]},
        {"b64": False},
        {"zip": "DEF"},
        {"kid": "../../../../dev/null"},
        {"kid": "x' UNION SELECT 'key"},
        {"kid": "key | id"},
        {"kid": {"a": 1}},
        {"kid": ""},
        {"kid": "k" * 500},
        {"typ": "secevent+jwt"},
        {"typ": 7},
        {"alg2": "none"},
    ],
)
def test_a_token_that_contains_its_own_key_or_rules_is_refused(header: dict[str, Any]) -> None:
    assert tokens().caller(raw({"alg": "HS256", "typ": "JWT", **header}, CLAIMS)) is None


def test_a_token_signed_by_the_key_inside_it_is_refused() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    for header in ({}, {"jwk": own}, {"jwk": own, "kid": "1"}):
        assert rs256().caller(jwt.encode(CLAIMS, key, "RS256", headers=header)) is None


@pytest.mark.parametrize("name", ["exp", "iat", "aud", "iss", "sub"])
@pytest.mark.parametrize(
    "value",
    ["missing", None, True, {}, [], "", "x" * 300, -1, 1e400, float("nan"), 10**400, ["a", 1], "a\nb"],
)
def test_a_missing_claim_or_one_of_the_wrong_type_is_refused(name: str, value: Any) -> None:
    claims = {key: one for key, one in CLAIMS.items() if key != name}
    if value != "missing":
        claims[name] = value
    if name == "iat" and value == -1:
        return  # long ago
    assert tokens().caller(raw({"alg": "HS256"}, claims)) is None


@pytest.mark.parametrize("wrong", ["homin", "homing2", "HOMING", ["other"], [["homing"]], {"homing": 1}])
def test_a_token_for_another_audience_is_refused(wrong: Any) -> None:
    assert tokens().caller(raw({"alg": "HS256"}, {**CLAIMS, "aud": wrong})) is None


@pytest.mark.parametrize(
    "wrong", ["https://id.example.org/", "http://id.example.org", ["https://id.example.org"]]
)
def test_a_token_of_another_issuer_is_refused(wrong: Any) -> None:
    assert tokens().caller(raw({"alg": "HS256"}, {**CLAIMS, "iss": wrong})) is None


@pytest.mark.parametrize("value", [None, "", "openid", [], [1], {"admin": True}, "ADMIN", "admin,read", True])
def test_a_scope_claim_without_a_known_scope_is_refused(value: Any) -> None:
    fits = tokens(table(scopes=[], scope_claim="scope"))
    assert fits.caller(raw({"alg": "HS256"}, {**CLAIMS, "scope": value})) is None
    assert fits.caller(signed()) is None


@pytest.mark.parametrize("value", [None, "", 7, ["acme"], {"name": "acme"}])
def test_a_tenant_claim_without_a_name_is_refused(value: Any) -> None:
    fits = tokens(table(tenant="", tenant_claim="org"))
    assert fits.caller(raw({"alg": "HS256"}, {**CLAIMS, "org": value})) is None
    assert fits.caller(signed()) is None


def test_a_huge_or_deep_or_broken_token_is_refused_at_once() -> None:
    known = tokens()
    assert known.caller(signed({**CLAIMS, "more": "x" * MAX_TOKEN_CHARACTERS})) is None
    assert known.caller(raw({"alg": "HS256"}, b"[" * 5000)) is None
    assert known.caller(raw(b'{"alg":' * 500, CLAIMS)) is None
    for broken in ("", ".", "..", "a.b", "a.b.c", "a.b.c.d", ".." + "=" * 100, "é.é.é", "\x00.\x00.\x00"):
        assert known.caller(broken) is None


@settings(max_examples=300)
@given(st.data())
def test_every_modified_token_is_refused(data: st.DataObject) -> None:
    token = signed()
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCXYZabcxyz0189-_.=+/ ").filter(lambda c: c != token[place]))
    changed = data.draw(
        st.sampled_from(
            [
                token[:place] + other + token[place + 1 :],
                token[:place] + token[place + 1 :],
                token[:place],
                token + other,
            ]
        )
    )
    if _bytes(changed) == _bytes(token):
        return  # the last character of base64 has unused bits
    assert tokens().caller(changed) is None


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["alg", "typ", "kid", "jku", "jwk", "x"]), st.text(max_size=8) | st.none()
    ),
    st.dictionaries(
        st.sampled_from([*CLAIMS, "nbf", "org"]),
        st.text(max_size=8) | st.integers() | st.booleans() | st.none(),
    ),
    st.binary(max_size=40),
)
def test_a_token_signed_by_another_key_is_refused(
    header: dict[str, Any], claims: dict[str, Any], key: bytes
) -> None:
    known = tokens()
    assert known.caller(raw({"alg": "HS256", **header}, {**CLAIMS, **claims}, key)) is None
    assert rs256().caller(raw({"alg": "HS256", **header}, {**CLAIMS, **claims}, key)) is None


def test_no_part_of_a_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    forged = raw({"alg": "HS256"}, {**CLAIMS, "sub": "secret-subject"}, b"wrong")
    assert tokens().caller(forged) is None
    assert tokens().caller(raw({"alg": "HS256", "jku": "secret-address"}, CLAIMS)) is None
    assert "a token was rejected" in caplog.text
    assert "secret" not in caplog.text
    assert forged not in caplog.text


def _bytes(token: str) -> list[bytes] | None:
    try:
        return [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split(".")]
    except ValueError:
        return None


# Settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"issuer": ""}, "issuer"),
        ({"audience": ""}, "audience"),
        ({"algorithm": ""}, "algorithm"),
        ({"algorithm": "none"}, "algorithm"),
        ({"algorithm": ["HS256", "RS256"]}, "algorithm"),
        ({"key": ""}, "key"),
        ({"key": "short"}, "key"),
        ({"algorithm": "HS512"}, "key"),
        ({"key": public_pem(rsa_key())}, "key"),
        ({"algorithm": "RS256"}, "key"),
        ({"algorithm": "RS256", "key": private_pem(rsa_key())}, "key"),
        ({"algorithm": "ES256", "key": public_pem(rsa_key())}, "key"),
        ({"algorithm": "RS256", "key": "-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----"}, "key"),
        ({"algorithm": "ES256", "key": public_pem(ec.generate_private_key(ec.SECP384R1()))}, "key"),
        ({"tenant": ""}, "tenant"),
        ({"tenant_claim": "org"}, "tenant"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scope_claim": "scope"}, "scopes"),
        ({"leeway_ms": 10**9}, "leeway_ms"),
        ({"key_file": "x"}, "key_file"),
    ],
)
def test_an_unsafe_setting_is_refused_by_name(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(table(), table(**wrong))
    assert refused.value.field == f"service.jwt[1].{field}"
    assert SECRET not in str(refused.value)


def test_a_small_rsa_key_is_refused() -> None:
    small = public_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024))
    with pytest.raises(ConfigError, match="2048"):
        configured(table(algorithm="RS256", key=small))


def test_the_key_is_read_from_its_configured_place_and_never_shown() -> None:
    asked: list[str] = []

    def reveal(field: str, given: str) -> str:
        asked.append(f"{field}={given}")
        return SECRET

    [one] = read_issuers([table(key="env:HOMING_JWT")], reveal)
    assert asked == ["service.jwt[0].key=env:HOMING_JWT"]
    assert one.key == SECRET
    assert SECRET not in repr(one)
