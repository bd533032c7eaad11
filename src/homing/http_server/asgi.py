"""What the ASGI applications on the server share: request ids, observers, and the switch between them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Protocol

from homing.core.ports.runtime import RandomSource

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application: takes scope, receive and send."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class RequestIds:
    """Chooses the id of each request: the one that the client sent, or a new one."""

    def __init__(self, random_source: RandomSource) -> None:
        self._series = f"r{random_source.getrandbits(48):012x}"
        self._numbers = count(1)

    def choose(self, given: str | None) -> str:
        """Returns the given id if it is valid, and otherwise one that is unique across processes."""
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return f"{self._series}-{next(self._numbers):x}"


class RequestObserver(Protocol):
    """Observes requests, for example for metrics. Both methods must be fast and must not raise."""

    def began(self, headers: Sequence[tuple[bytes, bytes]]) -> Any:
        """Called when a request starts, in the task that handles it. The result is passed to `ended`."""

    def ended(self, began: Any, operation: str, method: str, status: int, took_s: float) -> None:
        """Called after the response. `operation` is the OpenAPI operationId or the name of the page's
        function, or empty if no route matched.
        """


class PrefixSwitch:
    """Passes requests for pages to one application and all others to another one.

    It compares the start of the path and nothing else, so the other application pays next to nothing for it.
    """

    def __init__(self, pages: AsgiApp, others: AsgiApp, *, paths: Sequence[str], prefix: str) -> None:
        """The pages are the given paths, and all paths that start with the prefix."""
        self._pages = pages
        self._others = others
        self._paths = tuple(paths)
        self._prefix = prefix

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        path = scope.get("path", "")
        if path in self._paths or path.startswith(self._prefix):
            return self._pages(scope, receive, send)
        return self._others(scope, receive, send)
