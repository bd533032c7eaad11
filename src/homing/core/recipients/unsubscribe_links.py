"""One-click unsubscribe links (RFC 8058), encrypted so that they can be neither read nor forged.

The token in a link is encrypted deterministically, with a synthetic IV and HMAC-SHA256 only. The tag is the
HMAC of the plaintext, and the plaintext is combined with a key stream that HMAC generates from the tag. So
the same subscription always has the same link, the dedup key of an email does not change, no log shows an
address, and a token made without this secret is rejected.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from homing.core.notifications import Channel
from homing.core.ports.plug_ins import Directory

ONE_CLICK = ("List-Unsubscribe", "One-Click")
"""Name and value of the form field that a mail program posts to the link."""

LONGEST_TOKEN = 2_000


_TAG_BYTES = 16

_BLOCK_BYTES = 32

_TOKEN = re.compile(r"1[A-Za-z0-9_-]+")

_FORMAT_VERSION = "1"
"""First character of a token. A later format would start with another character."""


class Subscription(Struct, frozen=True, array_like=True):
    """What one click unsubscribes from: a category on a channel, for a recipient with an id or an address."""

    tenant: str
    channel: Channel
    category: str
    recipient_id: str | None = None
    """Recipient's id. None if the recipient has none."""
    address: str | None = None
    """Recipient's address. Set only for a recipient without an id."""


@runtime_checkable
class SupportsUnsubscribe(Directory, Protocol):
    """A directory that can record that a recipient has unsubscribed."""

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Records the unsubscription, which `facts` then reports. Must accept repeated calls."""


class LinkSealer:
    """Encrypts subscriptions into link tokens and decrypts them, with one secret."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= 16, "the secret must have at least 16 bytes"
        self._tag_key = hmac.digest(secret, b"homing unsubscribe: tag", "sha256")
        self._stream_key = hmac.digest(secret, b"homing unsubscribe: stream", "sha256")

    def token(self, subscription: Subscription) -> str:
        """Returns the token of the link for a subscription."""
        plain = msgspec.msgpack.encode(subscription)
        tag = self._tag(plain)
        return _text(tag + self._apply_stream(plain, tag))

    def opened(self, token: str) -> Subscription | None:
        """Returns the subscription of a token, or None if the token was not made with this secret."""
        if len(token) > LONGEST_TOKEN or not _TOKEN.fullmatch(token):
            return None
        sealed = urlsafe_b64decode(token[1:] + "A" * (-len(token[1:]) % 4))[: (len(token) - 1) * 3 // 4]
        if _text(sealed) != token:  # unused bits must be 0, so that a subscription has only one link
            return None
        tag, mixed = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        plain = self._apply_stream(mixed, tag)
        if not hmac.compare_digest(tag, self._tag(plain)):
            return None
        return msgspec.msgpack.decode(plain, type=Subscription)

    def _tag(self, plain: bytes) -> bytes:
        return hmac.digest(self._tag_key, plain, "sha256")[:_TAG_BYTES]

    def _apply_stream(self, text: bytes, tag: bytes) -> bytes:
        """Encrypts or decrypts; both are the same operation."""
        stream = b"".join(
            hmac.digest(self._stream_key, tag + block.to_bytes(4, "big"), "sha256")
            for block in range(-(-len(text) // _BLOCK_BYTES))
        )
        mixed = int.from_bytes(text, "big") ^ int.from_bytes(stream[: len(text)], "big")
        return mixed.to_bytes(len(text), "big")


def _text(sealed: bytes) -> str:
    return _FORMAT_VERSION + urlsafe_b64encode(sealed).decode().rstrip("=")
