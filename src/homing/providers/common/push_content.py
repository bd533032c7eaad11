"""Reads what push providers need: the text, data, time to live and collapse key of a notification. Pure."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from homing.core.errors import ConfigError
from homing.core.notifications import Content
from homing.core.ports.providers import Delivery

MAX_TTL_S = 2_419_200
"""Four weeks: the longest time for which FCM and the browsers' push services keep a message."""


COLLAPSE_MODES = ("none", "type", "notification")


_VALID_COLLAPSE_KEY = re.compile(r"[A-Za-z0-9_-]{1,32}")


class PushContent(NamedTuple):
    """The parts of a notification's content that a device shows or passes to its app."""

    title: str | None
    body: str | None
    image: str | None
    data: Mapping[str, Any]

    @property
    def silent(self) -> bool:
        """True if there is nothing to show, so that only the app gets the message."""
        return self.title is None and self.body is None


def read_push_content(content: Content, image_key: str) -> PushContent:
    """Returns the parts to push. If `image_key` in the data has an https URL, it becomes the image."""
    title, body, data = content.title or None, content.body or None, content.data or {}
    if body is not None and title is None:
        title = content.subject or None  # content written for both email and push has a subject
    image = data.get(image_key)
    if not (isinstance(image, str) and image.startswith("https://")):
        return PushContent(title, body, None, data)
    rest = {key: value for key, value in data.items() if key != image_key}
    return PushContent(title, body, image, rest)


def remaining_ttl_s(delivery: Delivery, now_ms: int, usual_s: int | None) -> int | None:
    """Returns for how many seconds the message should be kept.

    That is until it expires, but at most four weeks, or `usual_s` if it never expires.
    """
    if delivery.expires_at is None:
        return usual_s
    return min(max(0, (delivery.expires_at - now_ms) // 1000), MAX_TTL_S)


def collapse_id(delivery: Delivery, by: str) -> str | None:
    """Returns the collapse key, at most 32 characters of base64url, or None if messages are not collapsed.

    A newer message replaces an undelivered one with the same key. With `notification`, only another attempt
    of the same notification does, which avoids duplicates after a timeout.
    """
    if by == "none":
        return None
    name = delivery.type if by == "type" else delivery.notification_id.replace("-", "")
    if _VALID_COLLAPSE_KEY.fullmatch(name):
        return name
    return urlsafe_b64encode(sha256(name.encode()).digest())[:32].decode()


def check_collapse(given: str) -> str:
    """Returns the setting `collapse`. Raises `ConfigError` unless it is one of the known modes."""
    if given not in COLLAPSE_MODES:
        raise ConfigError("collapse", f"is {given!r}; use one of {', '.join(COLLAPSE_MODES)}")
    return given


def check_ttl_seconds(given: object) -> int:
    """Returns the setting `ttl_seconds`. Raises `ConfigError` unless it is an integer in range."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_TTL_S:
        raise ConfigError("ttl_seconds", f"is {given!r}; use a whole number from 0 to {MAX_TTL_S}")
    return given
