"""Keys of Web Push: a browser's subscription, encryption to it (RFC 8291) and who we are (RFC 8292)."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from typing import NamedTuple
from urllib.parse import urlsplit

import http_ece  # type: ignore[import-untyped]
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.providers.refusals import refusal
from homing.providers.secret import Secret
from homing.providers.wire import Unsendable

MAX_PLAINTEXT_BYTES = 3993
"""With 86 bytes of header, 16 of tag and one delimiter: the 4096 that every push service takes."""

PrivateKey = ec.EllipticCurvePrivateKey

_RECORD_SIZE = 4096
_TOKEN_LASTS_S = 12 * 3600
_RENEW_EARLY_MS = 3600 * 1000
_MOST_ORIGINS = 256
"""Origins come from browsers: what is remembered of them is bounded."""


class _Keys(Struct, frozen=True):
    p256dh: str
    auth: str


class _Given(Struct, frozen=True, rename="camel"):
    """`PushSubscription.toJSON()`; members that it may have besides do not matter."""

    endpoint: str
    keys: _Keys
    expiration_time: float | None = None


class Subscription(NamedTuple):
    """Where a browser wants to be told, and how to write so that only it can read."""

    endpoint: str
    origin: str
    path: str
    public_key: bytes
    auth_secret: bytes

    def __repr__(self) -> str:
        """Who knows the endpoint may write to it."""
        return f"Subscription({self.origin})"


def read_subscription(address: str, now_ms: int) -> Subscription:
    """A subscription from the JSON that a browser gives. Raises `Unsendable` for what is none."""
    try:
        given = msgspec.json.decode(address, type=_Given)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _no_subscription("is not a subscription: give the JSON of PushSubscription.toJSON()") from None
    if given.expiration_time is not None and given.expiration_time <= now_ms:
        raise refusal("webpush", "subscription_expired")
    origin, path = _split(given.endpoint)
    public_key, auth_secret = _bytes(given.keys.p256dh), _bytes(given.keys.auth)
    if len(public_key) != 65 or len(auth_secret) != 16:
        raise _no_subscription("has keys of the wrong length: p256dh has 65 bytes, auth has 16")
    return Subscription(given.endpoint, origin, path, public_key, auth_secret)


def new_private_key() -> PrivateKey:
    """For one message."""
    return ec.generate_private_key(ec.SECP256R1())


def encrypt(plaintext: bytes, to: Subscription, private_key: PrivateKey, salt: bytes) -> bytes:
    """One record of aes128gcm. The key and the salt must be new for every message."""
    try:
        sealed: bytes = http_ece.encrypt(
            plaintext,
            salt=salt,
            private_key=private_key,
            dh=to.public_key,
            auth_secret=to.auth_secret,
            rs=_RECORD_SIZE,
            version="aes128gcm",
        )
    except ValueError:
        raise _no_subscription("has a p256dh that is no point of the curve") from None
    return sealed


class Vapid:
    """Says who sends: a signed token per push service, made once and used until shortly before its end."""

    def __init__(self, private_key: Secret, subject: str) -> None:
        if not subject.startswith(("mailto:", "https://")):
            raise ConfigError("vapid_subject", "must be mailto:somebody@example.org or an https URL")
        self._key = _private_key(private_key)
        self._subject = subject
        self._tokens: dict[str, tuple[str, int]] = {}
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public_key = _text(point)
        """What browsers subscribe with (`applicationServerKey`)."""

    def __repr__(self) -> str:
        return "Vapid(…)"

    def authorization(self, origin: str, now_ms: int) -> str:
        """The header's value for a push service."""
        known = self._tokens.get(origin)
        if known is not None and now_ms < known[1]:
            return known[0]
        expires_s = now_ms // 1000 + _TOKEN_LASTS_S
        made = f"vapid t={self._token(origin, expires_s)}, k={self.public_key}"
        if len(self._tokens) >= _MOST_ORIGINS:
            self._tokens.pop(next(iter(self._tokens)))
        self._tokens[origin] = (made, expires_s * 1000 - _RENEW_EARLY_MS)
        return made

    def _token(self, audience: str, expires_s: int) -> str:
        claims = {"aud": audience, "exp": expires_s, "sub": self._subject}
        signed = f"{_HEADER}.{_text(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode("ascii"), ec.ECDSA(SHA256())))
        # JWS wants the two numbers side by side, not in DER.
        return f"{signed}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _split(endpoint: str) -> tuple[str, str]:
    """The origin and the rest of an endpoint, which comes from a browser and may be anything."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise _no_subscription("has an endpoint that is no URL") from None
    host = parts.hostname
    plain = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    if parts.scheme != "https" or not host or "@" in parts.netloc or not plain:
        raise _no_subscription("has an endpoint that is not a plain https URL")
    named = f"[{host}]" if ":" in host else host
    origin = f"https://{named}" if port in (None, 443) else f"https://{named}:{port}"
    path = parts.path or "/"
    return origin, f"{path}?{parts.query}" if parts.query else path


def _private_key(key: Secret) -> PrivateKey:
    text = key.reveal().strip()
    try:
        if text.startswith("-----BEGIN"):
            found = load_pem_private_key(text.encode(), password=None)
            if isinstance(found, ec.EllipticCurvePrivateKey) and isinstance(found.curve, ec.SECP256R1):
                return found
        else:
            raw = urlsafe_b64decode(_padded(text))
            if len(raw) == 32:
                return ec.derive_private_key(int.from_bytes(raw, "big"), ec.SECP256R1())
    except (ValueError, TypeError):
        pass  # whatever it is, its text does not belong into an error
    raise ConfigError("vapid_private_key", "is not a P-256 key; give it as PEM, or its 32 bytes as base64url")


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(_padded(text))
    except (NotBase64, ValueError):
        raise _no_subscription("has keys that are not base64url") from None


def _padded(text: str) -> str:
    bare = text.rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _no_subscription(error: str) -> Unsendable:
    return refusal("webpush", "subscription", f"deviceToken {error}")


_HEADER = _text(b'{"typ":"JWT","alg":"ES256"}')
