"""The shape of a provider that speaks HTTP: build the request (pure), send, classify the answer (pure)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from homing.core.model import Outcome, OutcomeKind
from homing.core.ports import Delivery, OnOutcomes
from homing.providers.http import Answer, CarriesMany, Exchange, Failure, Request, Transport, outcome_of

NowMs = Callable[[], int]


def wall_clock_ms() -> int:
    """Epoch milliseconds: what signatures are dated with where no clock is handed in."""
    return time.time_ns() // 1_000_000


def inside(timeout_ms: int) -> int:
    """Less than an attempt has: the transport must end before the engine does, on a busy machine too.

    Only the transport knows whether the request was written; broken off from outside, an attempt is in doubt.
    """
    return timeout_ms - min(1_000, timeout_ms // 10)


class Unsendable(Exception):
    """The notification cannot be put into this provider's request; says what it is instead of sent."""

    def __init__(self, kind: OutcomeKind, error_code: str, error: str) -> None:
        super().__init__(error)
        self.outcome = Outcome(kind, error_code=error_code, error=error)


class HttpProvider(ABC):
    """Subclasses say what to send and what an answer means; the rest is the same for all of them."""

    def __init__(self, transport: Transport, now_ms: NowMs = wall_clock_ms) -> None:
        self._transport = transport
        self._now_ms = now_ms
        self._many = transport if isinstance(transport, CarriesMany) else None

    @abstractmethod
    def build(self, delivery: Delivery, now_ms: int) -> Request:
        """The request of this attempt, signed afresh. Raises `Unsendable`."""

    @abstractmethod
    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        """What an answer means. Any bytes at all: never raises."""

    def check_request(self) -> Request | None:
        """What to ask to learn whether the provider is up; None: nothing can be asked without sending."""
        return None

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            request = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        answer = await self._transport.send(request, timeout_ms=inside(delivery.timeout_ms))
        return self._outcome(answer, self._now_ms())

    @property
    def begins(self) -> bool:
        """Where there is nothing else to wait for in an attempt than its one answer."""
        return self._many is not None and type(self).send is HttpProvider.send

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        """`send` for many: their requests are made one after the other and go out together."""
        assert self._many is not None, "only who says so can begin"
        now_ms = self._now_ms()
        exchanges: list[Exchange] = []
        unsent: list[tuple[Any, Outcome | Exception]] = []
        for delivery, mark in batch:
            try:
                exchanges.append((self.build(delivery, now_ms), inside(delivery.timeout_ms), mark))
            except Unsendable as refusal:
                unsent.append((mark, refusal.outcome))
            except Exception as error:
                unsent.append((mark, error))
        if exchanges:
            self._many.begin(exchanges, partial(self._answered, ended))
        if unsent:
            ended(unsent)

    def give_up(self, marks: Collection[Any]) -> None:
        """Breaks them off."""
        assert self._many is not None, "only who says so can begin"
        self._many.give_up(marks)

    def _answered(self, ended: OnOutcomes, answers: list[tuple[Any, Answer | Failure]]) -> None:
        now_ms = self._now_ms()
        outcomes: list[tuple[Any, Outcome | Exception]] = []
        for mark, answer in answers:
            try:
                outcomes.append((mark, self._outcome(answer, now_ms)))
            except Exception as error:
                outcomes.append((mark, error))
        ended(outcomes)

    def _outcome(self, answer: Answer | Failure, now_ms: int) -> Outcome:
        return outcome_of(answer) if isinstance(answer, Failure) else self.classify(answer, now_ms)

    def is_up(self, answer: Answer) -> bool:
        """Whether that answer to `check_request` is one of a provider that would take a message."""
        return answer.status < 500 and answer.status not in (401, 404)

    async def check(self) -> bool:
        """Up: it answers, knows us, and has no error of its own."""
        request = self.check_request()
        if request is None:
            return True
        answer = await self._transport.send(request, timeout_ms=5_000)
        return isinstance(answer, Answer) and self.is_up(answer)

    async def close(self) -> None:  # noqa: B027
        """The transport is shared and closed by who made it."""
