"""The requests in progress: limits on their number, their duration and the memory of their bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from homing.api.answers import ApiError
from homing.api.routing import Route
from homing.api.service import NOBODY
from homing.core.access import Caller

_CHECK_INTERVAL_S = 0.25


class Request(Struct, eq=False):
    """A request in progress."""

    id: str
    task: asyncio.Task[None]
    headers: Mapping[str, str]
    began: float
    """Loop time at which the request started."""
    until: float
    """Loop time at which the request is aborted."""
    route: Route | None = None
    """The matching route. None before it is found."""
    caller: Caller = NOBODY
    """The authenticated caller."""
    reading: bool = True
    """True until the body is complete."""
    given_up: bool = False
    """True if the request was aborted because its time was up."""
    held_bytes: int = 0
    """Memory that is reserved for the body."""


class UnderWay:
    """All requests in progress.

    One timer checks all deadlines, because a timer per request would cost as much as a simple response.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._all: set[Request] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def held_bytes(self) -> int:
        """Memory that is reserved for all bodies."""
        return self._held_bytes

    def begin(self, request: Request) -> None:
        """Adds a request. Raises `ApiError` if there are too many."""
        if len(self._all) >= self._most:
            raise ApiError("OVERLOADED", "too many requests are in progress; try again in a second")
        self._all.add(request)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._check_deadlines)

    def end(self, request: Request) -> None:
        """Removes a request and releases its memory."""
        self._all.discard(request)
        self._held_bytes -= request.held_bytes
        request.held_bytes = 0

    def hold(self, request: Request, more_bytes: int) -> None:
        """Reserves memory for a request's body. Raises `ApiError` if all bodies together need too much."""
        if self._held_bytes + more_bytes > self._most_bytes:
            raise ApiError(
                "OVERLOADED", "too many large request bodies are in progress; try again in a second"
            )
        request.held_bytes += more_bytes
        self._held_bytes += more_bytes

    def _check_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for request in self._all:
            if request.until < now and not request.given_up:
                request.given_up = True
                request.task.cancel()
        self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check_deadlines) if self._all else None
