"""What providers say to and hear from HTTP, apart from who carries it.

`Transport` is the seam: `homing.providers.transport` implements it with libcurl. A transport never raises
for what the network does; it answers with an `Answer`, or with a `Failure` that tells whether the request
had been written, which is the difference between a transient failure and an ambiguous one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from homing.core.model import Outcome, OutcomeKind

Headers = tuple[tuple[str, str], ...]


class Request(Struct, frozen=True, gc=False):
    """One HTTP request, whole. It is made by a pure function, anew for each attempt."""

    url: str
    body: bytes = b""
    headers: Headers = ()
    method: str = "POST"
    guarded: bool = False
    """The address came from outside: only public addresses may be connected to (SSRF)."""

    def __repr__(self) -> str:
        """Headers, body and the address itself may hold credentials."""
        return f"Request({self.method}, {len(self.body)} bytes)"


class Answer(Struct, frozen=True, gc=False):
    """What came back. Untrusted: any bytes, at most 64 KiB of them."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; of a repeated header the last one."""
    body: bytes = b""
    truncated: bool = False
    """`body` is only its beginning: there was more than the cap, or the rest never came."""


class Failure(Struct, frozen=True, kw_only=True):
    """No whole answer came."""

    code: str
    """`dns`, `connect`, `tls`, `timeout`, `dropped`, `refused_address`, `bad_request` or `protocol`."""
    error: str
    written: bool
    """The request was fully written: the other side may have acted on it."""


class Transport(Protocol):
    """Carries requests: pooled connections, no redirects, bounded answers."""

    async def send(self, request: Request, *, timeout_ms: int) -> Answer | Failure:
        """`timeout_ms` is for the whole exchange. Cancelling stops it and gives its connection up."""

    async def close(self) -> None: ...


Exchange = tuple[Request, int, Any]
"""A request, the time for the whole exchange in milliseconds, and a mark to know it by."""
OnAnswers = Callable[[list[tuple[Any, Answer | Failure]]], None]
"""Told (mark, what came back) of those that ended at the same moment."""


@runtime_checkable
class CarriesMany(Protocol):
    """A transport that takes many requests at once, with nobody waiting for each."""

    def begin(self, exchanges: Sequence[Exchange], ended: OnAnswers) -> None:
        """Each ends within its time, and `ended` is told of it once, later; unless it is given up."""

    def give_up(self, marks: Collection[Any]) -> None:
        """Stops those of them that are under way, with their connections. Nothing is told of them."""


def outcome_of(failure: Failure) -> Outcome:
    """Before the request was written a failure is transient; after it, nobody knows."""
    kind = OutcomeKind.AMBIGUOUS if failure.written else OutcomeKind.TRANSIENT
    if failure.code in ("refused_address", "bad_request"):
        kind = OutcomeKind.BAD_RECIPIENT
    return Outcome(kind, error_code=failure.code, error=failure.error)
