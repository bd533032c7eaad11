"""A provider's callback: the raw request, and the result of reading it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from homing.core.errors import CallbackRefused as CallbackRefused
from homing.core.errors import CallbackUnreadable as CallbackUnreadable
from homing.core.model import Receipt


class Callback(Struct, frozen=True, kw_only=True):
    """The raw HTTP request of a provider."""

    url: str
    """URL as the provider called it, with public scheme, host and port and unchanged path and query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by name in lower case."""
    body: bytes = b""
    method: str = "POST"

    def __repr__(self) -> str:
        """Omits URL, headers and body, because they may contain keys and recipients."""
        return f"Callback({self.method}, {len(self.body)} bytes)"


class Heard(Struct, frozen=True, kw_only=True):
    """Content of a verified callback. Irrelevant and unreadable events are only counted."""

    receipts: tuple[Receipt, ...] = ()
    ignored: int = 0
    """Number of events that Homing does not use."""
    unreadable: int = 0
    """Number of events that could not be read."""
    reply: bytes = b""
    """Body of the HTTP response. Set if a provider's handshake requires one, otherwise empty."""
    reply_type: str = "text/plain"
    """Content type of `reply`."""
    reply_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the HTTP response. Set if a handshake requires them, as that of CloudEvents does."""
