"""A provider's callback, as it comes in and as it was understood. Reading one is pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from homing.core.errors import CallbackRefused as CallbackRefused
from homing.core.errors import CallbackUnreadable as CallbackUnreadable
from homing.core.model import Receipt


class Callback(Struct, frozen=True, kw_only=True):
    """The raw request of a provider."""

    url: str
    """As the provider called it: public scheme, host and port, path and query untouched."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    method: str = "POST"

    def __repr__(self) -> str:
        """Its URL and headers may hold keys, its body recipients."""
        return f"Callback({self.method}, {len(self.body)} bytes)"


class Heard(Struct, frozen=True, kw_only=True):
    """What a verified callback says. Events that are no business of ours, or cannot be read, are counted."""

    receipts: tuple[Receipt, ...] = ()
    ignored: int = 0
    unreadable: int = 0
    reply: bytes = b""
    """The body to answer with: a provider's handshake may ask for one."""
    reply_type: str = "text/plain"
    reply_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers to answer with: so does the handshake of CloudEvents."""
