"""One call to the service: what is asked, when it is asked again, and what its answer is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec
from msgspec import Struct

from homing.client.errors import ServiceUnreachable, refusal
from homing.client.wire import Reply
from homing.core.errors import ConfigError

_T = TypeVar("_T")

_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
_TRY_AGAIN = frozenset({429, 503})
_FIRST_WAIT_S = 0.1


class Ask(Struct, frozen=True, kw_only=True):
    """One request."""

    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    body: bytes | None
    repeatable: bool
    """Done twice, it is as if done once."""


class Retries(Struct, frozen=True, kw_only=True):
    """How often a repeatable request is tried, and how long is waited in between."""

    attempts: int = 4
    longest_wait_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError("attempts", f"is {self.attempts}; it must be at least 1")

    def wait_s(self, ask: Ask, attempt: int, ended: Reply | ServiceUnreachable, u: float) -> float | None:
        """How long to wait before the next attempt; None: this was the last.

        What the service asks for in Retry-After is the least; `u` in [0, 1) spreads callers.
        """
        if isinstance(ended, Reply) and ended.status not in _TRY_AGAIN:
            return None
        if not ask.repeatable or attempt >= self.attempts:
            return None
        wanted = ended.headers.get("retry-after", "") if isinstance(ended, Reply) else ""
        least = float(wanted) if wanted.isdecimal() else 0.0
        wait_s = least + _FIRST_WAIT_S * 2 ** (attempt - 1) * (0.5 + u)
        return wait_s if wait_s <= self.longest_wait_s else None


def ask(
    method: str,
    path: str,
    *,
    query: Struct | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    keyed: bool = False,
    content_type: str = "application/json",
) -> Ask:
    """A request. `keyed`: it has an idempotency key, in its body or a new one."""
    said = {"Accept": "application/json", **(headers or {})}
    if keyed and getattr(body, "idempotency_key", None) is None:
        said["Idempotency-Key"] = f"client-{uuid4()}"
    encoded = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    if encoded is not None:
        said["Content-Type"] = content_type
    words = _words(query) if query is not None else {}
    return Ask(
        method=method,
        target=f"{path}?{urlencode(words)}" if words else path,
        headers=said,
        body=encoded,
        repeatable=keyed or method in _REPEATABLE,
    )


def part(value: Any) -> str:
    """A path parameter: whatever is in it stays one segment."""
    return quote(str(value), safe="")


def given(headers: Mapping[str, str | None]) -> dict[str, str]:
    """Those headers that have a value."""
    return {name: value for name, value in headers.items() if value is not None}


def read(reply: Reply, kind: type[_T]) -> _T:
    """The answer, or the exception that it is."""
    if reply.status >= 400:
        raise refusal(reply.status, reply.headers, reply.body)
    if kind is bytes:  # as it is: what is not JSON
        return cast(_T, reply.body)
    if not reply.body and kind is type(None):
        return None
    return msgspec.json.decode(reply.body, type=kind)


def _words(query: Struct) -> dict[str, str]:
    """A query as it stands in the address: only what was given; lists with commas."""
    given = msgspec.to_builtins(query, builtin_types=(datetime,))
    return {name: _word(value) for name, value in given.items()}


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_word, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)
