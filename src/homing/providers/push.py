"""What push providers do alike with a notification: its words, its data, how long it lives. Pure."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from homing.core.errors import ConfigError
from homing.core.model import Content
from homing.core.ports import Delivery

MAX_TTL_S = 2_419_200
"""Four weeks: what FCM and the browsers' push services keep a message at most."""

COLLAPSE_BY = ("none", "type", "notification")

_SHORT = re.compile(r"[A-Za-z0-9_-]{1,32}")


class PushContent(NamedTuple):
    """The parts of a content that a device can show or hand to its app."""

    title: str | None
    body: str | None
    image: str | None
    data: Mapping[str, Any]

    @property
    def silent(self) -> bool:
        """Nothing to show: the app alone gets it."""
        return self.title is None and self.body is None


def push_content(content: Content, image_key: str) -> PushContent:
    """The parts to push. The https URL under `image_key` of the data is the image, and no data then."""
    title, body, data = content.title or None, content.body or None, content.data or {}
    if body is not None and title is None:
        title = content.subject or None  # one content for email and push calls it the subject
    image = data.get(image_key)
    if not (isinstance(image, str) and image.startswith("https://")):
        return PushContent(title, body, None, data)
    rest = {key: value for key, value in data.items() if key != image_key}
    return PushContent(title, body, image, rest)


def ttl_s(delivery: Delivery, now_ms: int, usual_s: int | None) -> int | None:
    """Seconds that the message is worth keeping: until it expires, else as usual."""
    if delivery.expires_at is None:
        return usual_s
    return min(max(0, (delivery.expires_at - now_ms) // 1000), MAX_TTL_S)


def collapse_id(delivery: Delivery, by: str) -> str | None:
    """What an undelivered message is replaced by: at most 32 characters of base64url.

    By `notification`, only another attempt of the same one replaces it: fewer doubles after a timeout.
    """
    if by == "none":
        return None
    name = delivery.type if by == "type" else delivery.notification_id.replace("-", "")
    if _SHORT.fullmatch(name):
        return name
    return urlsafe_b64encode(sha256(name.encode()).digest())[:32].decode()


def checked_collapse(given: str) -> str:
    """The setting `collapse`."""
    if given not in COLLAPSE_BY:
        raise ConfigError("collapse", f"is {given!r}; allowed are {', '.join(COLLAPSE_BY)}")
    return given


def checked_ttl(given: object) -> int:
    """A time to live from the settings, in seconds."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_TTL_S:
        raise ConfigError("ttl_seconds", f"is {given!r}; allowed are 0 to {MAX_TTL_S}")
    return given
