"""The base class of HTTP providers, and helpers for timeouts, base URLs and forms.

A provider builds a request (pure), sends it, and classifies the response (pure).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote_plus

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery, OnOutcomes
from homing.net.http_messages import (
    BatchTransport,
    HttpRequest,
    HttpResponse,
    TimedRequest,
    Transport,
    TransportFailure,
    transport_failure_outcome,
)

WallClock = Callable[[], int]
"""A function that returns the current time in epoch milliseconds."""


def wall_clock_ms() -> int:
    """Returns the system's time in epoch milliseconds. Providers use this clock by default."""
    return time.time_ns() // 1_000_000


class Unsendable(Exception):
    """Raised if a notification cannot be sent with this provider. `outcome` is the outcome of the attempt."""

    def __init__(self, kind: OutcomeKind, error_code: str, error: str) -> None:
        super().__init__(error)
        self.outcome = Outcome(kind, error_code=error_code, error=error)


class CheckFailed(Exception):
    """Raised by `examine` and `diagnose` if the provider is not usable. The text says why."""

    @classmethod
    def of(cls, outcome: Outcome, where: str) -> CheckFailed:
        """Returns the error for an outcome, at the address or step `where`."""
        return cls(f"{where}: {outcome.error or outcome.error_code or outcome.kind.value}")


class HttpProvider(ABC):
    """Base class of HTTP providers. A subclass builds the requests and classifies the responses."""

    ends_in_time: ClassVar[bool] = True

    def __init__(self, transport: Transport, now_ms: WallClock = wall_clock_ms) -> None:
        self._transport = transport
        self._now_ms = now_ms
        self._batch_transport = transport if isinstance(transport, BatchTransport) else None

    @abstractmethod
    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        """Builds the request of this attempt, with a fresh signature.

        Raises `Unsendable` if that is impossible.
        """

    @abstractmethod
    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        """Returns the outcome of a response. Never raises, whatever the response contains."""

    def check_request(self) -> HttpRequest | None:
        """Returns a request that tests whether the provider is up, or None if only a real message could."""
        return None

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            request = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        answer = await self._transport.send(request, timeout_ms=delivery.timeout_ms)
        return self._outcome(answer, self._now_ms())

    @property
    def begins(self) -> bool:
        """True if the transport supports batches and an attempt consists of nothing but one request."""
        return self._batch_transport is not None and type(self).send is HttpProvider.send

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        """Starts many attempts: builds their requests one by one and sends them together.

        Calls `ended` with the outcomes, several at a time.
        """
        assert self._batch_transport is not None, "the transport supports batches"
        now_ms = self._now_ms()
        exchanges: list[TimedRequest] = []
        unsent: list[tuple[Any, Outcome | BaseException]] = []
        for delivery, handle in batch:
            try:
                exchanges.append((self.build(delivery, now_ms), delivery.timeout_ms, handle))
            except Unsendable as refusal:
                unsent.append((handle, refusal.outcome))
            except BaseException as error:  # concerns this attempt alone
                unsent.append((handle, error))
        if exchanges:
            self._batch_transport.begin(exchanges, partial(self._on_responses, ended))
        if unsent:
            ended(unsent)

    def give_up(self, marks: Collection[Any]) -> None:
        """Aborts the attempts with these handles that are still in flight."""
        assert self._batch_transport is not None, "the transport supports batches"
        self._batch_transport.give_up(marks)

    def _on_responses(
        self, ended: OnOutcomes, answers: list[tuple[Any, HttpResponse | TransportFailure]]
    ) -> None:
        now_ms = self._now_ms()
        outcomes: list[tuple[Any, Outcome | BaseException]] = []
        for handle, answer in answers:
            try:
                outcomes.append((handle, self._outcome(answer, now_ms)))
            except BaseException as error:  # concerns this attempt alone
                outcomes.append((handle, error))
        ended(outcomes)

    def _outcome(self, answer: HttpResponse | TransportFailure, now_ms: int) -> Outcome:
        return (
            transport_failure_outcome(answer)
            if isinstance(answer, TransportFailure)
            else self.classify(answer, now_ms)
        )

    def is_up(self, answer: HttpResponse) -> bool:
        """Returns True if this response to `check_request` shows that the provider would accept messages."""
        return answer.status < 500 and answer.status not in (401, 404)

    async def check(self) -> bool:
        """Returns True if the provider answers, accepts our credentials and reports no server error.

        Without a request for this check, returns True.
        """
        try:
            await self.examine()
        except CheckFailed:
            return False
        return True

    async def diagnose(self) -> str:
        """Returns an empty text if `check` succeeds. Otherwise raises `CheckFailed`."""
        if type(self).check is HttpProvider.check:
            await self.examine()
        elif not await self.check():  # a provider of another package has its own
            raise CheckFailed("the health check failed")
        return ""

    async def examine(self) -> None:
        """Makes the health check, and raises `CheckFailed` if the provider is not usable."""
        request = self.check_request()
        if request is None:
            return
        answer = await self._transport.send(request, timeout_ms=5_000)
        if isinstance(answer, TransportFailure):
            raise CheckFailed.of(transport_failure_outcome(answer), "no answer")
        if not self.is_up(answer):
            outcome = self.classify(answer, self._now_ms())
            raise CheckFailed.of(outcome, f"answered with status {answer.status}")

    async def close(self) -> None:  # noqa: B027
        """Does nothing: the transport is shared, and its creator closes it."""


_QUOTED = [quote_plus(bytes([byte])) for byte in range(256)]


def quote_form_value(text: str) -> str:
    return "".join([_QUOTED[byte] for byte in text.encode()])


def encode_form(fields: Iterable[tuple[str, str]]) -> str:
    """Returns the fields as a URL-encoded form. Only values are quoted, because the names are our own and
    plain.
    """
    return "&".join([f"{name}={quote_form_value(value)}" for name, value in fields])
