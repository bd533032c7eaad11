"""What a provider makes of one attempt: within its time, and as an outcome, whatever it does."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from traceback import format_tb
from types import TracebackType
from typing import Any, Protocol

from msgspec.structs import replace

from homing.core.model import Outcome, OutcomeKind
from homing.core.ports import Clock, Delivery
from homing.core.text import is_plain
from homing.engine.roster import Listed

log = logging.getLogger("homing.deliverer")

_NEVER_MS = 2**62
_STOOD_STILL_MS = 1_000
"""A process whose timers go off this late was suspended: its timeouts say nothing about the provider."""
_ACCEPTED = OutcomeKind.ACCEPTED
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class Deadline:
    """The time of one attempt. Around a block, it ends that with `TimeoutError`, like `asyncio.timeout`."""

    __slots__ = ("_all", "_cancelling", "_rang_ms", "_task", "due_ms")

    def __init__(self, all_: Deadlines, due_ms: int) -> None:
        self._all = all_
        self._rang_ms: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self.due_ms = due_ms

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None, "an attempt is made by a task"
        self._cancelling = task.cancelling()
        self._all.add((self,))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._all.open[self]
        task, self._task = self._task, None
        if self._rang_ms is None or task is None:
            return
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def ring(self, now_ms: int) -> None:
        """The time is up, whatever the provider does then."""
        if self._task is not None:
            self._rang_ms = now_ms
            self._task.cancel()

    def stood_still(self, now_ms: int) -> bool:
        """Whether this process was not there when the time was up."""
        return stood_still(self.due_ms, now_ms if self._rang_ms is None else self._rang_ms)


def stood_still(due_ms: int, ended_ms: int) -> bool:
    """Whether an attempt ended so long after its time that this process was not there when it was up."""
    return ended_ms - due_ms > _STOOD_STILL_MS


class Rings(Protocol):
    """What has its time."""

    @property
    def due_ms(self) -> int: ...

    def ring(self, now_ms: int) -> None: ...


class Deadlines:
    """One timer for all attempts of a process: hardly any of them runs out of its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self.open: dict[Rings, None] = {}
        self._wakes_ms = _NEVER_MS

    def at(self, due_ms: int) -> Deadline:
        """Then, by the monotonic clock."""
        return Deadline(self, due_ms)

    def add(self, those: Sequence[Rings]) -> None:
        """They ring when their time is up, unless they are taken out of `open` before."""
        self.open.update(dict.fromkeys(those))
        due_ms = min([one.due_ms for one in those])
        if due_ms < self._wakes_ms:
            self._sleep_until(due_ms)

    def _sleep_until(self, due_ms: int) -> None:
        """There is nothing to do before."""
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_ms = due_ms
        loop = asyncio.get_running_loop()
        wait_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
        # In the next turn: what came in while the process stood still is heard first.
        self._timer = loop.call_later(wait_s, loop.call_soon, self._ring)

    def _ring(self) -> None:
        self._timer, self._wakes_ms = None, _NEVER_MS
        now_ms = self._clock.monotonic_ms()
        for deadline in [one for one in self.open if one.due_ms <= now_ms]:
            deadline.ring(now_ms)
        rest = [one.due_ms for one in self.open if one.due_ms > now_ms]
        if rest:
            self._sleep_until(min(rest))


async def answer(listed: Listed, delivery: Delivery, deadline: Deadline) -> Outcome:
    """What a provider makes of one attempt. Whatever it does, it ends in time and as an outcome."""
    try:
        with deadline:
            return clean(await listed.provider.send(delivery))
    except TimeoutError:
        return unanswered(delivery.timeout_ms)
    except Exception as error:  # a provider must not raise; if it does, it may have sent
        return broken_off(listed.id, error)


def unanswered(timeout_ms: int) -> Outcome:
    """The time of an attempt was up."""
    error = f"no answer within {timeout_ms} ms"
    return Outcome(OutcomeKind.AMBIGUOUS, error_code="timeout", error=error)


def broken_off(provider: str, error: Exception) -> Outcome:
    """A provider raised. The error's own text may name the recipient: it is stored, but not logged."""
    where = "".join(format_tb(error.__traceback__))
    log.error("provider %s raised %s\n%s", provider, type(error).__name__, where)
    return Outcome(OutcomeKind.AMBIGUOUS, error_code="provider_error", error=plain(repr(error)))


def clean(outcome: object) -> Outcome:
    """A provider's answer is untrusted input: bounded, printable, and of the right kind."""
    if not isinstance(outcome, Outcome):
        error = f"the provider answered with {type(outcome).__name__}"
        return Outcome(OutcomeKind.AMBIGUOUS, error_code="provider_error", error=error)
    if _is_bare(outcome):
        return outcome
    try:
        kind = OutcomeKind(outcome.kind)
    except ValueError:
        error = f"the provider answered with the outcome {outcome.kind!r}"
        return Outcome(OutcomeKind.AMBIGUOUS, error_code="provider_error", error=plain(error))
    wait_ms = outcome.retry_after_ms
    return replace(
        outcome,
        kind=kind,
        error=plain(outcome.error),
        error_code=plain(outcome.error_code, 100),
        provider_message_id=plain(outcome.provider_message_id, 255),
        retry_after_ms=wait_ms if isinstance(wait_ms, int) and wait_ms > 0 else None,
        unlisted=outcome.unlisted is True,
    )


def plain(text: str | None, longest: int = 500) -> str | None:
    """Text of a provider as it may be stored: one line, no control characters, bounded."""
    if text is None or (type(text) is str and is_plain(text) and len(text) <= longest):
        return text
    return _CONTROL.sub(" ", str(text)).encode("utf-8", "replace").decode()[:longest]


def _is_bare(outcome: Outcome) -> bool:
    """What most say: taken, and nothing in it to be cleaned."""
    return (
        outcome.kind is _ACCEPTED
        and outcome.provider_message_id is None
        and outcome.error is None
        and outcome.error_code is None
        and outcome.retry_after_ms is None
    )
