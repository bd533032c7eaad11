"""The browser's side of Web Push: subscriptions, and the decryption of pushed messages."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64encode
from typing import Any

import http_ece  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


class Browser:
    """Makes subscriptions, and decrypts pushed messages with the library http_ece."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._auth = os.urandom(16)

    def subscription(self, **fields: Any) -> str:
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        given = {
            "endpoint": "https://push.example.net/send/abc?v=1",
            "expirationTime": None,
            "keys": {"p256dh": _base64(point), "auth": _base64(self._auth)},
            **fields,
        }
        return json.dumps(given)

    def read(self, body: bytes) -> Any:
        plaintext = http_ece.decrypt(body, private_key=self._key, auth_secret=self._auth, version="aes128gcm")
        return json.loads(plaintext)


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
