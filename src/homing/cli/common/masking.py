"""Masks addresses in output, so that they can be recognised but not used."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from homing.core.notifications import Notification, Recipient


DOTS = "•••"

_ADDRESSES = ("email", "phone", "deviceToken", "url")

_EMAIL = re.compile(r"[\w.+\-]+@[\w\-]+(?:\.[\w\-]+)+")

_PHONE = re.compile(r"\+\d[\d\s().\-]{5,18}\d")

_NUMBER = re.compile(r"\+?\d{3,15}")


def mask_address(text: str) -> str:
    """Masks one address: `p•••@example.com`, `+1•••23`, `https://example.com/•••`, `abcd•••`."""
    if "://" in text:
        parts = urlsplit(text)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{DOTS}"
    if "@" in text:
        name, _, domain = text.rpartition("@")
        return f"{name[:1]}{DOTS}@{domain}"
    if _NUMBER.fullmatch(text):
        return f"{text[:2]}{DOTS}{text[-2:]}" if len(text) > 6 else DOTS
    return f"{text[:4]}{DOTS}" if len(text) > 8 else DOTS


def mask_text(message: str | None, known: Iterable[str] = ()) -> str | None:
    """Masks addresses in a provider's error text: the `known` ones, and anything that looks like one."""
    if message is None:
        return None
    for one in known:
        if len(one) > 2:
            message = message.replace(one, mask_address(one))
    message = _EMAIL.sub(lambda found: mask_address(found[0]), message)
    return _PHONE.sub(lambda found: mask_address(re.sub(r"[^\d+]", "", found[0])), message)


class RecipientMask:
    """Formats recipients and error texts, masked unless `show` is set (`--show-recipients`)."""

    def __init__(self, *, show: bool) -> None:
        self.show = show

    def address(self, text: str) -> str:
        """Returns one address."""
        return text if self.show else mask_address(text)

    def recipient(self, notification: Notification) -> str:
        """Returns the recipient's address for the notification's channel, or the recipient's id."""
        to = notification.recipient
        by_channel = {"email": to.email, "sms": to.phone, "push": to.device_token}
        found = by_channel.get(notification.channel.value, to.url) or to.id or ""
        return found if found == to.id else self.address(found)

    def error(self, message: str | None, to: Recipient | None = None) -> str:
        """Returns an error text with addresses masked, those of `to` and any others.

        Returns an empty string for None.
        """
        if message is None or self.show:
            return message or ""
        return mask_text(message, _known(to)) or ""

    def wire(self, value: Any, to: Recipient | None = None) -> Any:
        """Returns a value as JSON data with every recipient masked, including addresses of `to` in errors."""
        import msgspec

        data = msgspec.to_builtins(value)
        return data if self.show else _masked(data, _known(to))


def _known(to: Recipient | None) -> tuple[str, ...]:
    addresses = () if to is None else (to.email, to.phone, to.device_token, to.url)
    return tuple(one for one in addresses if one)


def _masked(value: Any, known: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        to = value.get("recipient")
        if isinstance(to, dict):
            known = tuple(to[key] for key in _ADDRESSES if to.get(key))
        return {key: _member(key, item, known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(item, known) for item in value]
    return value


def _member(key: str, item: Any, known: tuple[str, ...]) -> Any:
    if key == "recipient" and isinstance(item, dict):
        return {k: mask_address(v) if k in _ADDRESSES and v else v for k, v in item.items()}
    if key in ("lastError", "error", "errorMessage", "verdict", "message") and isinstance(item, str):
        return mask_text(item, known)
    return _masked(item, known)
