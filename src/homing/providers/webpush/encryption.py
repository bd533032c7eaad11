"""Web Push encryption for a browser's subscription (RFC 8291), and the sender's VAPID identity (RFC 8292)."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.net.secrets import Secret
from homing.providers.common.error_tables import build_refusal
from homing.providers.common.http_provider import Unsendable

MAX_PLAINTEXT_BYTES = 3993
"""Maximum size of a message before encryption.

Every push service accepts 4096 bytes, of which the header takes 86, the tag 16 and the delimiter one.
"""


PrivateKey = ec.EllipticCurvePrivateKey


_RECORD_SIZE = 4096

_TOKEN_LIFETIME_S = 12 * 3600

_RENEW_EARLY_MS = 3600 * 1000

_MAX_ORIGINS = 256
"""Maximum number of cached tokens. There is a limit, because origins come from browsers."""


class _SubscriptionKeys(Struct, frozen=True):
    p256dh: str
    auth: str


class _SubscriptionJson(Struct, frozen=True, rename="camel"):
    """The JSON that a browser's `PushSubscription.toJSON()` returns. Other members are ignored."""

    endpoint: str
    keys: _SubscriptionKeys
    expiration_time: float | None = None


class PushSubscription(NamedTuple):
    """A browser's endpoint, and the keys with which only that browser can decrypt a message."""

    endpoint: str
    origin: str
    path: str
    public_key: bytes
    auth_secret: bytes

    def __repr__(self) -> str:
        """Hides the path, because anyone who knows the endpoint may send to it."""
        return f"PushSubscription({self.origin})"


def read_subscription(address: str, now_ms: int) -> PushSubscription:
    """Parses the JSON that a browser provides.

    Raises `Unsendable` if it is not a valid subscription or has expired.
    """
    try:
        given = msgspec.json.decode(address, type=_SubscriptionJson)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _bad_subscription("must be the JSON of PushSubscription.toJSON()") from None
    if given.expiration_time is not None and given.expiration_time <= now_ms:
        raise build_refusal("webpush", "subscription_expired")
    origin, path = _split(given.endpoint)
    public_key, auth_secret = _decode_base64url(given.keys.p256dh), _decode_base64url(given.keys.auth)
    if len(public_key) != 65 or len(auth_secret) != 16:
        raise _bad_subscription("has keys of the wrong length; p256dh must have 65 bytes and auth 16")
    return PushSubscription(given.endpoint, origin, path, public_key, auth_secret)


def generate_private_key() -> PrivateKey:
    """Returns a new key pair, to be used for one message."""
    return ec.generate_private_key(ec.SECP256R1())


def encrypt(plaintext: bytes, to: PushSubscription, private_key: PrivateKey, salt: bytes) -> bytes:
    """Encrypts one record with aes128gcm. The key and the salt must be new for every message.

    Raises `Unsendable` if the subscription's public key is invalid.
    """
    try:
        browser = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), to.public_key)
    except ValueError:
        raise _bad_subscription("has a p256dh that is not a point on the curve P-256") from None
    sender = private_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    # RFC 8291, section 3.4: the shared secret and both public keys give the input of RFC 8188.
    shared = private_key.exchange(ec.ECDH(), browser)
    secret = _hkdf(shared, to.auth_secret, b"WebPush: info\0" + to.public_key + sender, 32)
    key = _hkdf(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _hkdf(secret, salt, b"Content-Encoding: nonce\0", 12)
    # RFC 8188, section 2: the header, then the only record. Its delimiter \2 marks it as the last one.
    header = salt + _RECORD_SIZE.to_bytes(4, "big") + bytes([len(sender)]) + sender
    return header + AESGCM(key).encrypt(nonce, plaintext + b"\2", None)


def _hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)


class VapidSigner:
    """Identifies the sender with a signed token per push service.

    A token is valid for 12 hours and reused until an hour before it expires.
    """

    def __init__(self, private_key: Secret, subject: str) -> None:
        if not subject.startswith(("mailto:", "https://")):
            raise ConfigError(
                "vapid_subject", "must be an address like mailto:ops@example.org or an https URL"
            )
        self._key = _private_key(private_key)
        self._subject = subject
        self._tokens: dict[str, tuple[str, int]] = {}
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public_key = _encode_base64url(point)
        """The public key with which browsers subscribe (`applicationServerKey`)."""

    def __repr__(self) -> str:
        return "VapidSigner(…)"

    def authorization(self, origin: str, now_ms: int) -> str:
        """Returns the Authorization header for a push service."""
        known = self._tokens.get(origin)
        if known is not None and now_ms < known[1]:
            return known[0]
        expires_s = now_ms // 1000 + _TOKEN_LIFETIME_S
        made = f"vapid t={self._token(origin, expires_s)}, k={self.public_key}"
        if len(self._tokens) >= _MAX_ORIGINS:
            self._tokens.pop(next(iter(self._tokens)))
        self._tokens[origin] = (made, expires_s * 1000 - _RENEW_EARLY_MS)
        return made

    def _token(self, audience: str, expires_s: int) -> str:
        claims = {"aud": audience, "exp": expires_s, "sub": self._subject}
        signed = f"{_HEADER}.{_encode_base64url(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode("ascii"), ec.ECDSA(SHA256())))
        # JWS requires the two numbers of the signature side by side instead of DER.
        return f"{signed}.{_encode_base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _split(endpoint: str) -> tuple[str, str]:
    """Returns the origin of an endpoint, and its path with the query.

    The endpoint comes from a browser and is untrusted. Raises `Unsendable` unless it is a plain https URL.
    """
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise _bad_subscription("has an endpoint that is not a URL") from None
    host = parts.hostname
    plain = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    if parts.scheme != "https" or not host or "@" in parts.netloc or not plain:
        raise _bad_subscription("has an endpoint that is not a plain https URL")
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
        pass  # the original error might contain the key
    message = "is not a P-256 key; use PEM, or its 32 bytes as base64url"
    raise ConfigError("vapid_private_key", message)


def _decode_base64url(text: str) -> bytes:
    try:
        return urlsafe_b64decode(_padded(text))
    except (NotBase64, ValueError):
        raise _bad_subscription("has keys that are not base64url") from None


def _padded(text: str) -> str:
    bare = text.rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def _encode_base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _bad_subscription(error: str) -> Unsendable:
    return build_refusal("webpush", "subscription", f"deviceToken {error}")


_HEADER = _encode_base64url(b'{"typ":"JWT","alg":"ES256"}')
