"""Recipients as strangers may see them: enough to recognise, not enough to use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from homing.core.model import Notification, Recipient

DOTS = "•••"
_ADDRESSES = ("email", "phone", "deviceToken", "url")
_EMAIL = re.compile(r"[\w.+\-]+@[\w\-]+(?:\.[\w\-]+)+")
_PHONE = re.compile(r"\+\d[\d\s().\-]{5,18}\d")
_NUMBER = re.compile(r"\+?\d{3,15}")


def address(text: str) -> str:
    """`p•••@example.com`, `+1•••23`, `https://example.com/•••`, `abcd•••`."""
    if "://" in text:
        parts = urlsplit(text)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{DOTS}"
    if "@" in text:
        name, _, domain = text.rpartition("@")
        return f"{name[:1]}{DOTS}@{domain}"
    if _NUMBER.fullmatch(text):
        return f"{text[:2]}{DOTS}{text[-2:]}" if len(text) > 6 else DOTS
    return f"{text[:4]}{DOTS}" if len(text) > 8 else DOTS


def text(said: str | None, known: Iterable[str] = ()) -> str | None:
    """A provider's words without the addresses in them: those that are known, and what looks like one."""
    if said is None:
        return None
    for one in known:
        if len(one) > 2:
            said = said.replace(one, address(one))
    said = _EMAIL.sub(lambda found: address(found[0]), said)
    return _PHONE.sub(lambda found: address(re.sub(r"[^\d+]", "", found[0])), said)


class Privacy:
    """Decides once whether recipients are shown; commands ask it for every word about them."""

    def __init__(self, *, show: bool) -> None:
        self.show = show

    def recipient(self, notification: Notification) -> str:
        """Whom it goes to, on its channel."""
        to = notification.recipient
        by_channel = {"email": to.email, "sms": to.phone, "push": to.device_token}
        found = by_channel.get(notification.channel.value, to.url) or to.id or ""
        return found if self.show or found == to.id else address(found)

    def error(self, said: str | None, to: Recipient | None = None) -> str:
        """An error's text."""
        if said is None or self.show:
            return said or ""
        return text(said, _known(to)) or ""

    def wire(self, value: Any, to: Recipient | None = None) -> Any:
        """JSON data with every recipient in it masked, also where an error repeats an address of `to`."""
        return value if self.show else _masked(value, _known(to))


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
        return {k: address(v) if k in _ADDRESSES and v else v for k, v in item.items()}
    if key in ("lastError", "error", "errorMessage", "verdict", "message") and isinstance(item, str):
        return text(item, known)
    return _masked(item, known)
