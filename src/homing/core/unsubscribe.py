"""One-click unsubscribe links (RFC 8058): what a link is about, sealed so that nobody can read or forge it.

The token in a link is the message of a deterministic authenticated encryption made of HMAC-SHA256 alone: the
tag is the HMAC of what is sealed, and what is sealed is mixed with a stream that HMAC makes from the tag
(synthetic IV). So the same subscription always has the same link, a mail's dedup key does not change by it,
no address can be read in anybody's log, and a token that was not made with this secret opens to nothing.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from homing.core.model import Channel
from homing.core.ports import Directory

ONE_CLICK = ("List-Unsubscribe", "One-Click")
"""The field that a mail program posts, and its value."""
LONGEST_TOKEN = 2_000

_TAG_BYTES = 16
_BLOCK_BYTES = 32
_TOKEN = re.compile(r"1[A-Za-z0-9_-]+")
_FORM = "1"
"""Of tokens; another one begins otherwise."""


class Subscription(Struct, frozen=True, array_like=True):
    """What somebody can leave with one click: a category on a channel. One of id and address is there."""

    tenant: str
    channel: Channel
    category: str
    recipient_id: str | None = None
    address: str | None = None
    """Only of a recipient without an id."""


@runtime_checkable
class Unsubscribes(Directory, Protocol):
    """A directory that takes note of it when somebody has unsubscribed."""

    async def unsubscribe(self, subscription: Subscription) -> None:
        """From now on `facts` says so. Safe to repeat: mail programs do."""


class Seal:
    """Makes and opens the tokens of links, with one secret."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= 16, "a secret that can be guessed is none"
        self._tag_key = hmac.digest(secret, b"homing unsubscribe: tag", "sha256")
        self._stream_key = hmac.digest(secret, b"homing unsubscribe: stream", "sha256")

    def token(self, subscription: Subscription) -> str:
        """What stands in the link."""
        plain = msgspec.msgpack.encode(subscription)
        tag = self._tag(plain)
        return _text(tag + self._mixed(plain, tag))

    def opened(self, token: str) -> Subscription | None:
        """What a link is about; None: it was not made here."""
        if len(token) > LONGEST_TOKEN or not _TOKEN.fullmatch(token):
            return None
        sealed = urlsafe_b64decode(token[1:] + "A" * (-len(token[1:]) % 4))[: (len(token) - 1) * 3 // 4]
        if _text(sealed) != token:  # bits that nobody looks at would make two links of one
            return None
        tag, mixed = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        plain = self._mixed(mixed, tag)
        if not hmac.compare_digest(tag, self._tag(plain)):
            return None
        return msgspec.msgpack.decode(plain, type=Subscription)

    def _tag(self, plain: bytes) -> bytes:
        return hmac.digest(self._tag_key, plain, "sha256")[:_TAG_BYTES]

    def _mixed(self, text: bytes, tag: bytes) -> bytes:
        """The same call mixes and unmixes."""
        stream = b"".join(
            hmac.digest(self._stream_key, tag + block.to_bytes(4, "big"), "sha256")
            for block in range(-(-len(text) // _BLOCK_BYTES))
        )
        mixed = int.from_bytes(text, "big") ^ int.from_bytes(stream[: len(text)], "big")
        return mixed.to_bytes(len(text), "big")


def _text(sealed: bytes) -> str:
    return _FORM + urlsafe_b64encode(sealed).decode().rstrip("=")
