"""The HTTP types that providers use, independent of the client that sends the requests.

`Transport` is the interface to that client, which is implemented with libcurl. A transport never raises
because of the network. It returns either a response or a failure. The failure reports whether the request had
been written completely, which decides between a transient and an ambiguous outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind

Headers = tuple[tuple[str, str], ...]


class HttpRequest(Struct, frozen=True, gc=False):
    """One complete HTTP request. Providers build a new one for each attempt."""

    url: str
    body: bytes = b""
    headers: Headers = ()
    method: str = "POST"
    guarded: bool = False
    """True if the URL comes from outside, such as a recipient's webhook.

    In that case only public addresses are allowed, to prevent server-side request forgery (SSRF).
    """

    def __repr__(self) -> str:
        """Hides the URL, the headers and the body, because each may contain credentials."""
        return f"Request({self.method}, {len(self.body)} bytes)"


class HttpResponse(Struct, frozen=True, gc=False):
    """The response to a request. Its content is untrusted. The body can hold any bytes, at most 64 KiB."""

    status: int
    headers: Mapping[str, str]
    """Header names are in lower case. If a header is repeated, the last value wins."""
    body: bytes = b""
    truncated: bool = False
    """True if `body` is incomplete, because it exceeded the limit or the connection ended early."""


class TransportFailure(Struct, frozen=True, kw_only=True):
    """The reason why a request got no response."""

    code: str
    """Kind of failure: `dns`, `connect`, `tls`, `timeout`, `dropped`, `refused_address`, `bad_request` or
    `protocol`."""
    error: str
    written: bool
    """True if the request was written completely, so that the server may have acted on it."""


class Transport(Protocol):
    """Sends HTTP requests over pooled connections, without redirects and with bounded responses."""

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse | TransportFailure:
        """Sends one request and returns its result. `timeout_ms` covers the whole exchange.

        Cancelling the call aborts the exchange and closes its connection.
        """

    async def close(self) -> None: ...


TimedRequest = tuple[HttpRequest, int, Any]
"""A request, its timeout in milliseconds for the whole exchange, and a handle that identifies it in the
result.
"""

OnResponses = Callable[[list[tuple[Any, HttpResponse | TransportFailure]]], None]
"""Receives `(handle, result)` for the requests that ended together."""


@runtime_checkable
class BatchTransport(Protocol):
    """A transport that can start many requests with one call and reports each result through a callback."""

    def begin(self, exchanges: Sequence[TimedRequest], ended: OnResponses) -> None:
        """Starts the requests and returns without waiting.

        Later passes the result of each request to `ended`, exactly once and within the request's timeout.
        Requests that `give_up` aborts are not reported.
        """

    def give_up(self, marks: Collection[Any]) -> None:
        """Aborts the requests with these handles, unless they have ended, and closes their connections.

        The aborted requests are not reported.
        """


def transport_failure_outcome(failure: TransportFailure) -> Outcome:
    """Returns the outcome of a request that got no response.

    It is transient if the request was not written completely, and ambiguous if it was. If the request is
    malformed or its address is not allowed, the recipient is at fault.
    """
    kind = OutcomeKind.AMBIGUOUS if failure.written else OutcomeKind.TRANSIENT
    if failure.code in ("refused_address", "bad_request"):
        kind = OutcomeKind.BAD_RECIPIENT
    return Outcome(kind, error_code=failure.code, error=failure.error)
