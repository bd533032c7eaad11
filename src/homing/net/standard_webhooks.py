"""Creates and verifies the signatures of Standard Webhooks 1.0.0. Pure.

A secret is `whsec_` + base64 (HMAC-SHA256, `v1`), `whsk_` + base64 (a private ed25519 key, which signs,
`v1a`) or `whpk_` + base64 (the public ed25519 key, which only verifies).
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.receipts import Callback
from homing.net.secrets import Secret, read_secret

TIMESTAMP_TOLERANCE_S = 300
"""How far a callback's timestamp may be from the current time, in seconds."""


class SigningKey:
    """One secret, ready to sign or verify with. Its text stays hidden."""

    __slots__ = ("_keyed", "_private", "_public")

    def __init__(self, given: Secret, field: str = "secret") -> None:
        kind, mark, encoded = given.reveal().rpartition("_")
        try:
            raw = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(field, "is not valid base64 after its prefix") from None
        self._keyed = self._private = self._public = None
        if kind in ("whsk", "whpk"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

            if len(raw) not in ((32, 64) if kind == "whsk" else (32,)):
                raise ConfigError(field, f"has {len(raw)} bytes, which is not the length of an ed25519 key")
            if kind == "whsk":
                self._private = Ed25519PrivateKey.from_private_bytes(raw[:32])
                self._public = self._private.public_key()
            else:
                self._public = Ed25519PublicKey.from_public_bytes(raw)
        elif kind in ("whsec", "") and (kind or not mark) and raw:
            self._keyed = hmac.new(raw, digestmod=sha256)
        else:
            raise ConfigError(field, "is not a webhook secret; it must start with whsec_ or whsk_")

    @property
    def signs(self) -> bool:
        return self._keyed is not None or self._private is not None

    def sign(self, message: bytes) -> str:
        """Returns one entry of the header `webhook-signature`."""
        if self._keyed is not None:
            return "v1," + binascii.b2a_base64(self._digest(message), newline=False).decode()
        assert self._private is not None, "a public key cannot sign"
        return f"v1a,{b64encode(self._private.sign(message)).decode()}"

    def verifies(self, entries: Sequence[str], message: bytes) -> bool:
        """Returns True if one of the entries of `webhook-signature` is this key's signature of the message.

        Skips malformed entries and those of other versions. The HMAC is computed once for all entries,
        because anyone can send a long list of them.
        """
        digest = self._digest(message) if self._keyed is not None else b""
        return any(self._matches(entry, message, digest) for entry in entries)

    def _matches(self, entry: str, message: bytes, digest: bytes) -> bool:
        version, _, encoded = entry.partition(",")
        try:
            given = b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return False
        if self._keyed is not None:
            return version == "v1" and hmac.compare_digest(given, digest)
        if version != "v1a" or self._public is None:
            return False
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(given, message)
        except InvalidSignature:
            return False
        return True

    def _digest(self, message: bytes) -> bytes:
        assert self._keyed is not None
        keyed = self._keyed.copy()  # takes less time than to hash the key for each message
        keyed.update(message)
        return keyed.digest()


def read_signing_keys(first: str | Secret, more: Sequence[str | Secret]) -> list[SigningKey]:
    """Reads the secrets that sign each request. Raises `ConfigError` if one is missing or cannot sign."""
    given = [("secret", first)] if first else []
    given += [(f"secrets[{number}]", one) for number, one in enumerate(more)]
    if not given:
        raise ConfigError("secret", "is missing; set it to whsec_…, env:NAME or file:PATH, or set secrets")
    return [_signing_key(field, one) for field, one in given]


def _signing_key(field: str, given: str | Secret) -> SigningKey:
    key = SigningKey(read_secret(field, given), field)
    if not key.signs:
        raise ConfigError(field, "is a public key (whpk_); use the private key (whsk_), which can sign")
    return key


def build_signature_header(keys: Sequence[SigningKey], id: str, timestamp_s: int, body: bytes) -> str:
    """Returns the header `webhook-signature`, with one entry per key.

    While a secret is being changed, receivers may still use the old one.
    """
    message = b"%s.%d.%s" % (id.encode(), timestamp_s, body)
    if len(keys) == 1:
        return keys[0].sign(message)
    return " ".join([key.sign(message) for key in keys])


def verify_webhook(secrets: Sequence[Secret], callback: Callback, now_ms: int) -> None:
    """Raises `CallbackRefused` unless one of the secrets signed this request within 5 minutes of now."""
    id_, given, stamp = (
        callback.headers.get(f"webhook-{name}", "") for name in ("id", "signature", "timestamp")
    )
    if not id_ or not given:
        raise CallbackRefused("webhook-id or webhook-signature is missing")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
        raise CallbackRefused("webhook-timestamp is missing or not a number of seconds")
    if abs(now_ms // 1000 - int(stamp)) > TIMESTAMP_TOLERANCE_S:
        raise CallbackRefused(
            f"webhook-timestamp differs from the current time by more than {TIMESTAMP_TOLERANCE_S} s"
        )
    message = b"%s.%s.%s" % (id_.encode("utf-8", "replace"), stamp.encode(), callback.body)
    keys = [SigningKey(one) for one in secrets]
    entries = given.split(" ")[:20]
    if not any(key.verifies(entries, message) for key in keys):
        raise CallbackRefused("no entry of webhook-signature was made with one of our secrets")
