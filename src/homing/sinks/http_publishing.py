"""What sinks over HTTP have in common: bounded rounds, and the meaning of answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

from homing.core.errors import ConfigError, EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import Event
from homing.net.http_messages import HttpRequest, HttpResponse, Transport, TransportFailure
from homing.net.retry_after import parse_retry_after_ms

WallClock = Callable[[], int]

MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 15_000

_ROUND_MS = 17_000
"""Time for the requests of one call of `publish`. The relay aborts the call after 20 s and would then not
know what was published."""

_MAX_VAIN_REFUSALS = 8
"""Number of refused events without an accepted one after which a round ends."""

BUSY_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
"""Answers that mean that the other system takes no events now."""

_ADVICE = {
    "dns": "correct the host name in the settings of the sink",
    "connect": "start the other system, or correct its host and port",
    "timeout": "start the other system, or correct its host and port",
    "tls": "correct the host name, or set http.ca_file to the certificate of the server's authority",
    "refused_address": "use https:// and a public address, or set http.allow_http or http.allow_networks",
}
"""What an operator can do if a request got no response, by the code of `TransportFailure`."""


class Verdict(Struct, frozen=True):
    """What an answer means for the events of its request."""

    kind: Literal["taken", "refused", "unavailable"]
    """`refused` concerns the events alone. `unavailable` concerns the other system as a whole."""
    problem: str = ""
    retry_after_ms: int | None = None


TAKEN = Verdict("taken")


class Round(Struct):
    """The events of one call of `publish`, and what became of them so far."""

    until: float
    """Monotonic time in seconds at which the round must have ended."""
    published: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """Event id → problem."""
    blocked: set[str] = field(default_factory=set)
    """Notifications with a refused event. Their later events must wait."""
    unavailable: Verdict | None = None
    """Why the other system takes no more events. None if it does."""

    def goes_on(self) -> bool:
        """Returns False once no further request may start."""
        if self.unavailable is None and self.left_ms() <= 0:
            self.unavailable = Verdict("unavailable", "it is too slow for all events of one round")
        vain = not self.published and len(self.refused) >= _MAX_VAIN_REFUSALS
        return self.unavailable is None and not vain

    def left_ms(self) -> int:
        return int(1000 * (self.until - time.monotonic()))

    def is_waiting(self, event: Event) -> bool:
        """Returns True if the event must wait for an earlier one of its notification."""
        return event.notification_id is not None and event.notification_id in self.blocked

    def record(self, events: Iterable[Event], verdict: Verdict) -> None:
        """Records what the answer to the request with these events means."""
        if verdict.kind == "unavailable":
            self.unavailable = verdict
        for event in events:
            if verdict.kind == "taken":
                self.published.add(event.id)
            elif event.notification_id is not None:
                self.blocked.add(event.notification_id)
            if verdict.kind == "refused":
                self.refused[event.id] = verdict.problem

    def finish(self) -> None:
        """Raises the error that describes the round, unless all events were published."""
        if self.unavailable is not None:
            wait_ms = self.unavailable.retry_after_ms
            raise SinkUnavailable(self.unavailable.problem, published=self.published, retry_after_ms=wait_ms)
        if self.refused:
            first = next(iter(self.refused.values()))
            raise EventsRefused(first, refused=self.refused, published=self.published)


class SinkOverHttp:
    """A sink that publishes over HTTP. It owns the HTTP client that it gets."""

    def __init__(self, transport: Transport, now_ms: WallClock, timeout_ms: int) -> None:
        if not MIN_TIMEOUT_MS <= timeout_ms <= MAX_TIMEOUT_MS:
            problem = f"is {timeout_ms}; it must be between {MIN_TIMEOUT_MS} and {MAX_TIMEOUT_MS}"
            raise ConfigError("timeout_ms", problem)
        self._transport = transport
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms

    async def open(self) -> None:
        """Does nothing: connections are opened when they are needed."""

    async def close(self) -> None:
        """Closes all connections."""
        await self._transport.close()

    def start_round(self) -> Round:
        return Round(time.monotonic() + _ROUND_MS / 1000)

    async def send(self, request: HttpRequest, round_: Round) -> HttpResponse | Verdict:
        """Sends a request, and returns the response, or what the lack of one means."""
        timeout_ms = max(1, min(self._timeout_ms, round_.left_ms()))
        answer = await self._transport.send(request, timeout_ms=timeout_ms)
        if isinstance(answer, TransportFailure):
            return Verdict("unavailable", f"{answer.code}: {answer.error}")
        return answer

    def unavailable(self, answer: HttpResponse, problem: str, at_least_ms: int = 0) -> Verdict:
        """Returns the verdict that the other system takes no events, with the wait that it asks for."""
        asked_ms = parse_retry_after_ms(answer.headers.get("retry-after"), self._now_ms())
        wait_ms = max(asked_ms or 0, at_least_ms) or None
        return Verdict("unavailable", f"{answer.status}: {problem}", wait_ms)

    async def probe(self, request: HttpRequest) -> HttpResponse:
        """Sends a request for `diagnose`. Raises `SinkUnavailable` if there is no response."""
        try:
            answer = await self._transport.send(request, timeout_ms=min(self._timeout_ms, 8_000))
        finally:
            await self._transport.close()
        if isinstance(answer, TransportFailure):
            failure = SinkUnavailable(f"{answer.code}: {answer.error}")
            failure.advice = _ADVICE.get(answer.code)
            raise failure
        if answer.status >= 500 and answer.status != 501:  # a server that knows only POST answers 501
            raise SinkUnavailable(f"it answers {answer.status}")
        return answer


def group_by_notification(events: Sequence[Event]) -> deque[list[Event]]:
    """Returns the events of each notification, in order. Each alert is a group of its own."""
    groups: dict[str, list[Event]] = {}
    for event in events:
        groups.setdefault(event.notification_id or f"alert:{event.id}", []).append(event)
    return deque(groups.values())
