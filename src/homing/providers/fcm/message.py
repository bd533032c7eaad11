"""Builds an FCM v1 message, `{"message": {…}}`, from a notification and the settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from homing.core.notifications import Priority
from homing.core.ports.providers import Delivery
from homing.providers.common.error_tables import build_refusal
from homing.providers.common.push_content import PushContent, collapse_id, read_push_content, remaining_ttl_s

MAX_PAYLOAD_BYTES = 4096


JsonTable = Mapping[str, Any]


_RESERVED = frozenset({"from", "message_type"})

_RESERVED_PREFIXES = ("google.", "gcm.notification.")


# The name of each priority on Android, APNs and Web Push.
_PRIORITY_NAMES = {
    Priority.CRITICAL: ("high", "10", "high"),
    Priority.HIGH: ("high", "10", "high"),
    Priority.MEDIUM: ("normal", "5", "normal"),
    Priority.LOW: ("normal", "5", "low"),
}

_WAKE_THE_APP = {"aps": {"content-available": 1}}


_encode = msgspec.json.Encoder().encode


class FcmMessageBuilder:
    """Builds messages. Parts that depend only on settings and priority are merged once, not per message."""

    def __init__(
        self,
        *,
        target: str = "token",
        image_key: str = "image",
        collapse: str = "none",
        ttl_seconds: int | None = None,
        validate_only: bool = False,
        android: JsonTable | None = None,
        apns: JsonTable | None = None,
        webpush: JsonTable | None = None,
        fcm_options: JsonTable | None = None,
    ) -> None:
        self._target = target
        self._image_key = image_key
        self._collapse = collapse
        self._ttl_s = ttl_seconds
        self._envelope = {"validate_only": True} if validate_only else {}
        self._options = {"fcm_options": dict(fcm_options)} if fcm_options else {}
        self._platforms = {
            (priority, silent): _platforms(priority, silent, android or {}, apns or {}, webpush or {})
            for priority in Priority
            for silent in (False, True)
        }

    def body(self, delivery: Delivery, now_ms: int) -> bytes:
        """Returns the request's body. Raises `Unsendable` for a message that FCM would reject."""
        content = read_push_content(delivery.content, self._image_key)
        if content.silent and not content.data:
            raise build_refusal("fcm", "empty")
        shown = _shown(content)
        message: dict[str, Any] = {self._target: delivery.address}
        if shown:
            message["notification"] = shown
        if content.data:
            content = content._replace(data=_text_data(content.data))
            message["data"] = content.data
        message.update(self._options)
        message.update(self._platforms_of(delivery, content.silent, now_ms))
        body = _encode({"message": message, **self._envelope})
        if len(body) > MAX_PAYLOAD_BYTES:
            _check_payload(shown, content.data)
        return body

    def _platforms_of(self, delivery: Delivery, silent: bool, now_ms: int) -> JsonTable:
        """Returns each platform's part, with the time to live and the collapse key of this message."""
        usual = self._platforms[delivery.priority, silent]
        ttl, collapse = remaining_ttl_s(delivery, now_ms, self._ttl_s), collapse_id(delivery, self._collapse)
        if ttl is None and collapse is None:
            return usual
        android, apns, web = (
            {**usual["android"]},
            {**usual["apns"]["headers"]},
            {**usual["webpush"]["headers"]},
        )
        if ttl is not None:
            android["ttl"] = f"{ttl}s"
            # For APNs, 0 means that it tries once and does not store the message.
            apns["apns-expiration"] = str(now_ms // 1000 + ttl) if ttl else "0"
            web["TTL"] = str(ttl)
        if collapse is not None:
            android["collapse_key"] = apns["apns-collapse-id"] = web["Topic"] = collapse
        return {
            "android": android,
            "apns": {**usual["apns"], "headers": apns},
            "webpush": {**usual["webpush"], "headers": web},
        }


def _platforms(
    priority: Priority, silent: bool, android: JsonTable, apns: JsonTable, webpush: JsonTable
) -> JsonTable:
    on_android, on_apple, on_web = _PRIORITY_NAMES[priority]
    made: dict[str, Any] = {
        "android": _merged({"priority": on_android}, android),
        "apns": _merged({"headers": {"apns-priority": on_apple}}, apns),
        "webpush": _merged({"headers": {"Urgency": on_web}}, webpush),
    }
    if silent:  # APNs accepts messages without text only at priority 5 and with this flag
        made["apns"] = _merged(made["apns"], {"headers": {"apns-priority": "5"}, "payload": _WAKE_THE_APP})
    return made


def _merged(below: JsonTable, above: JsonTable) -> dict[str, Any]:
    made = dict(below)
    for key, value in above.items():
        known = made.get(key)
        nested = isinstance(value, Mapping) and isinstance(known, Mapping)
        made[key] = _merged(known, value) if nested else value  # type: ignore[arg-type]
    return made


def _shown(content: PushContent) -> dict[str, str]:
    parts = {"title": content.title, "body": content.body, "image": content.image}
    return {} if content.silent else {name: part for name, part in parts.items() if part is not None}


def _text_data(data: JsonTable) -> dict[str, str]:
    """Returns the data with every value as text, because FCM accepts only text. Other values become JSON.

    Raises `Unsendable` if a name is reserved, because FCM would reject the whole message.
    """
    for key in data:
        if key in _RESERVED or key.startswith(_RESERVED_PREFIXES):
            field = f"content.data.{key[:50]}"
            raise build_refusal("fcm", "data", f"{field} has a name that FCM reserves; choose another one")
    return {key: one if isinstance(one, str) else _encode(one).decode() for key, one in data.items()}


def _check_payload(shown: JsonTable, data: JsonTable) -> None:
    """Raises `Unsendable` if the payload is too large. Only the parts that reach the device count."""
    size = len(_encode(shown)) + len(_encode(data))
    if size > MAX_PAYLOAD_BYTES:
        error = f"the payload has {size} bytes; FCM accepts at most {MAX_PAYLOAD_BYTES}"
        raise build_refusal("fcm", "too_large", error)
