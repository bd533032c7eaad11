"""What a call can end with instead of an answer: the engine's own errors by their code, and those of the way.

HomingError
├── ServiceRefused        the service answered with an error; `status`, `code`, `field`, `notification_id`
│   ├── Unauthorized      no valid key
│   ├── Forbidden         the key may not do this
│   ├── RateLimited       the key has used up its rate
│   └── ServiceBusy       overloaded, or it took too long there
└── ServiceUnreachable    no answer came: whether it was done is not known

An answer whose code the engine knows too is both: `NotFound`, `InvalidRequest`, `CommandRefused`, … and
`ServiceRefused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from homing.core import errors
from homing.core.errors import HomingError


class ServiceRefused(HomingError):
    """The service answered with an error."""

    status: int = 0
    """Of the HTTP answer."""
    field: str
    """Which part of the request is not acceptable; empty where it is not about one."""
    notification_id: str
    """Of a synchronous send that failed; else empty."""
    request_id: str = ""
    """As the service's log has it."""


class Unauthorized(ServiceRefused):
    """No valid key."""

    code = "UNAUTHORIZED"


class Forbidden(ServiceRefused):
    """The key may not do this."""

    code = "FORBIDDEN"


class RateLimited(ServiceRefused):
    """The key has used up its rate."""

    code = "RATE_LIMITED"


class ServiceBusy(ServiceRefused):
    """Too much is under way at the service."""

    code = "OVERLOADED"


class ServiceUnreachable(HomingError):
    """No answer came. Whether it was done is not known; a repeat under the same idempotency key is safe."""

    code = "SERVICE_UNREACHABLE"


class _Detail(Struct, rename="camel"):
    code: str = ""
    message: str = ""
    field: str = ""
    notification_id: str = ""


class _Body(Struct):
    error: _Detail


def _engine_errors(kind: type[HomingError] = HomingError) -> Iterator[type[HomingError]]:
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__:
            yield one
            yield from _engine_errors(one)


_KINDS: dict[str, type[ServiceRefused]] = {
    **{kind.code: type(kind.__name__, (ServiceRefused, kind), {}) for kind in _engine_errors()},
    **{kind.code: kind for kind in (Unauthorized, Forbidden, RateLimited, ServiceBusy)},
    "TIMEOUT": ServiceBusy,
}
_KINDS["MALFORMED_REQUEST"] = _KINDS["INVALID_REQUEST"]


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> ServiceRefused:
    """The exception that an answer with an error status is."""
    try:
        said = msgspec.json.decode(body, type=_Body).error
    except (msgspec.DecodeError, UnicodeDecodeError):  # not from Homing: something stands between
        said = _Detail(code="", message=f"HTTP {status}: {body[:200].decode(errors='replace')}")
    kind = _KINDS.get(said.code, ServiceRefused)
    error = kind.__new__(kind, said.message)
    HomingError.__init__(error, said.message)
    error.status = status
    error.code = said.code
    error.field = said.field
    error.notification_id = said.notification_id
    error.request_id = headers.get("x-request-id", "")
    return error
