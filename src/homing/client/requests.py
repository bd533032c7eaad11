"""Requests to the service: encoding a request, deciding on a retry, and decoding the response."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar, cast
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec
from msgspec import Struct

from homing.client.errors import ServiceUnreachable, error_from_response
from homing.client.transport import Response
from homing.core.errors import ConfigError

_T = TypeVar("_T")

_IDEMPOTENT_METHODS = frozenset({"GET", "PUT", "DELETE"})
_RETRY_STATUSES = frozenset({429, 503})
_FIRST_WAIT_S = 0.1


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """One encoded request, ready to be sent any number of times."""

    method: str
    target: str
    """Path and query string."""
    headers: Mapping[str, str]
    body: bytes | None
    repeatable: bool
    """True if sending the request twice has the same effect as sending it once."""


class Retries(Struct, frozen=True, kw_only=True):
    """Limits on the retries of a repeatable request."""

    attempts: int = 4
    """Total number of tries, including the first."""
    longest_wait_s: float = 30.0
    """Maximum wait before a retry, in seconds. If a longer wait is needed, the request fails."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError("attempts", f"is {self.attempts}; it must be at least 1")

    def wait_s(
        self, request: PreparedRequest, attempt: int, result: Response | ServiceUnreachable, u: float
    ) -> float | None:
        """Returns the seconds to wait before the next attempt, or None if the request is not retried.

        The wait is at least the response's Retry-After. `u` is a random number in [0, 1)
        that spreads the retries of many clients.
        """
        if isinstance(result, Response) and result.status not in _RETRY_STATUSES:
            return None
        if not request.repeatable or attempt >= self.attempts:
            return None
        retry_after = result.headers.get("retry-after", "") if isinstance(result, Response) else ""
        least_s = float(retry_after) if retry_after.isdecimal() else 0.0
        wait_s = least_s + _FIRST_WAIT_S * 2 ** (attempt - 1) * (0.5 + u)
        return wait_s if wait_s <= self.longest_wait_s else None


class RequestOptions(TypedDict, total=False):
    """The optional arguments of `prepare_request`."""

    query: Struct | None
    body: Any
    headers: Mapping[str, str] | None
    keyed: bool
    content_type: str


def prepare_request(
    method: str,
    path: str,
    *,
    query: Struct | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    keyed: bool = False,
    content_type: str = "application/json",
) -> PreparedRequest:
    """Encodes a request. If `keyed` is True, it gets an idempotency key unless its body has one."""
    all_headers = {"Accept": "application/json", **(headers or {})}
    if keyed and getattr(body, "idempotency_key", None) is None:
        all_headers["Idempotency-Key"] = f"client-{uuid4()}"
    encoded = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    if encoded is not None:
        all_headers["Content-Type"] = content_type
    parameters = _query_parameters(query) if query is not None else {}
    return PreparedRequest(
        method=method,
        target=f"{path}?{urlencode(parameters)}" if parameters else path,
        headers=all_headers,
        body=encoded,
        repeatable=keyed or method in _IDEMPOTENT_METHODS,
    )


def path_segment(value: Any) -> str:
    """Returns a path parameter, escaped so that it stays one segment of the path."""
    return quote(str(value), safe="")


def without_none(headers: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the headers that have a value."""
    return {name: value for name, value in headers.items() if value is not None}


def decode_response(response: Response, kind: type[_T]) -> _T:
    """Returns the response body as `kind`, or raises the error that the response describes."""
    if response.status >= 400:
        raise error_from_response(response.status, response.headers, response.body)
    if kind is bytes:  # not JSON, for example metrics
        return cast(_T, response.body)
    if not response.body and kind is type(None):
        return None
    return msgspec.json.decode(response.body, type=kind)


def _query_parameters(query: Struct) -> dict[str, str]:
    """Returns the query's fields that differ from their defaults. Lists are joined with commas."""
    fields = msgspec.to_builtins(query, builtin_types=(datetime,))
    return {name: _parameter(value) for name, value in fields.items()}


def _parameter(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_parameter, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)
