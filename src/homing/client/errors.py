"""Errors that a call can raise: the engine's errors, selected by the response's code, and the client's own.

HomingError
├── ServiceRefused        the service responded with an error: `status`, `code`, `field`, `notification_id`
│   ├── Unauthorized      the API key is missing or not valid
│   ├── Forbidden         the API key lacks the scope that the call needs
│   ├── RateLimited       the API key has exceeded its rate limit
│   └── ServiceBusy       the service is overloaded or took too long
└── ServiceUnreachable    no response arrived, so it is unknown whether the request took effect

A response with one of the engine's error codes raises an exception of both types. For example, `NOT_FOUND`
raises an exception that is a `NotFound` and a `ServiceRefused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from homing.core import errors
from homing.core.errors import HomingError
from homing.wire.common import ErrorBody, ErrorDetail


class ServiceRefused(HomingError):
    """The service responded with an error."""

    status: int = 0
    """HTTP status code of the response."""
    field: str
    """Part of the request that was rejected. Empty if the error is not about one part."""
    notification_id: str
    """Id of the notification, if a synchronous send failed. Otherwise empty."""
    request_id: str = ""
    """Request id under which the service logged the call."""


class Unauthorized(ServiceRefused):
    """The API key is missing or not valid."""

    code = "UNAUTHORIZED"


class Forbidden(ServiceRefused):
    """The API key lacks the scope that the call needs."""

    code = "FORBIDDEN"


class RateLimited(ServiceRefused):
    """The API key has exceeded its rate limit."""

    code = "RATE_LIMITED"


class ServiceBusy(ServiceRefused):
    """The service is overloaded or took too long."""

    code = "OVERLOADED"


class ServiceUnreachable(HomingError):
    """No response arrived, so it is unknown whether the request took effect.

    Repeating the request with the same idempotency key is safe.
    """

    code = "SERVICE_UNREACHABLE"


def _engine_errors(base: type[HomingError] = HomingError) -> Iterator[type[HomingError]]:
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from _engine_errors(kind)


_BY_CODE: dict[str, type[ServiceRefused]] = {
    **{kind.code: type(kind.__name__, (ServiceRefused, kind), {}) for kind in _engine_errors()},
    **{kind.code: kind for kind in (Unauthorized, Forbidden, RateLimited, ServiceBusy)},
    "TIMEOUT": ServiceBusy,
}
_BY_CODE["MALFORMED_REQUEST"] = _BY_CODE["INVALID_REQUEST"]


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ServiceRefused:
    """Returns the exception for a response with an error status."""
    try:
        detail = msgspec.json.decode(body, type=ErrorBody).error
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
    ):  # the response is not from Homing but from a proxy in between
        detail = ErrorDetail(code="", message=f"HTTP {status}: {body[:200].decode(errors='replace')}")
    kind = _BY_CODE.get(detail.code, ServiceRefused)
    error = kind.__new__(kind, detail.message)
    HomingError.__init__(error, detail.message)
    error.status = status
    error.code = detail.code
    error.field = detail.field or ""
    error.notification_id = detail.notification_id or ""
    error.request_id = headers.get("x-request-id", "")
    return error
