"""Requests that are being answered: how many, since when, and how much of them is kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from homing.api.answers import ApiError
from homing.api.routing import Route
from homing.api.service import NOBODY
from homing.core.access import Caller

_LOOK_S = 0.25


class Request(Struct, eq=False):
    """One of them."""

    id: str
    task: asyncio.Task[None]
    headers: Mapping[str, str]
    began: float
    """By the loop's time."""
    until: float
    """When it is given up."""
    route: Route | None = None
    caller: Caller = NOBODY
    reading: bool = True
    """Its body is still to come."""
    given_up: bool = False
    held_bytes: int = 0


class UnderWay:
    """All of them. One timer looks after their deadlines: one for each costs as much as an easy answer."""

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
        """Of bodies that are kept in memory."""
        return self._held_bytes

    def begin(self, request: Request) -> None:
        """Looks after it from now on; refused where there are too many."""
        if len(self._all) >= self._most:
            raise ApiError("OVERLOADED", "too many requests are under way; come again in a second")
        self._all.add(request)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def end(self, request: Request) -> None:
        self._all.discard(request)
        self._held_bytes -= request.held_bytes
        request.held_bytes = 0

    def hold(self, request: Request, more_bytes: int) -> None:
        """Counts what the request keeps in memory; refused where all of them keep too much."""
        if self._held_bytes + more_bytes > self._most_bytes:
            raise ApiError("OVERLOADED", "too much is being read at once; come again in a second")
        request.held_bytes += more_bytes
        self._held_bytes += more_bytes

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for request in self._all:
            if request.until < now and not request.given_up:
                request.given_up = True
                request.task.cancel()
        self._timer = loop.call_later(_LOOK_S, self._look) if self._all else None
