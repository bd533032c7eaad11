"""Calls providers, and ends attempts at their deadline, whatever the provider does."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from traceback import format_tb
from typing import Protocol

from msgspec.structs import replace

from homing.core.errors import text_of
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.plain_values import is_plain
from homing.core.ports.providers import Delivery
from homing.core.ports.runtime import Clock
from homing.engine.plug_in_calls import call_within, is_cancelled
from homing.engine.provider_roster import Listed

log = logging.getLogger("homing.deliverer")


_NEVER_MS = 2**62

_SUSPENDED_MS = 1_000
"""If an attempt ends this long after its deadline, the process was suspended.

The timeout is then not counted against the provider.
"""

_ACCEPTED = OutcomeKind.ACCEPTED

TIMEOUT_CODE = "timeout"
"""Error code of an attempt that timed out."""

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


_MAX_GRACE_MS = 1_000

_GRACE_SHARE = 10


def grace_ms(provider: object, timeout_ms: int) -> int:
    """Returns how long after its timeout an attempt is aborted: a tenth of the timeout, at most a second.

    That is 0 unless the provider ends an attempt by itself at its timeout. Only such a provider can report
    whether the request was written; an attempt that the engine aborts is ambiguous. So the provider must be
    first, even on a busy machine.
    """
    if getattr(provider, "ends_in_time", False) is not True:
        return 0
    return min(_MAX_GRACE_MS, timeout_ms // _GRACE_SHARE)


def was_suspended(due_ms: int, ended_ms: int) -> bool:
    """Returns True if an attempt ended so late that the process must have been suspended at its deadline."""
    return ended_ms - due_ms > _SUSPENDED_MS


class HasDeadline(Protocol):
    """An object whose `expire` is called when its deadline has passed."""

    @property
    def due_ms(self) -> int:
        """Monotonic time of the deadline, in milliseconds."""

    def expire(self, now_ms: int) -> None:
        """Ends the work, because the deadline has passed, and removes the object from the timer.

        `now_ms` is the monotonic time.
        """


class DeadlineTimer:
    """A single timer that serves the deadlines of many attempts.

    Few attempts time out, so a timer for each attempt would be wasteful.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self.open: dict[HasDeadline, None] = {}
        """Deadlines of running attempts, in insertion order. The values are unused."""
        self._fires_ms = _NEVER_MS

    def add(self, those: Sequence[HasDeadline]) -> None:
        """Adds objects to `open`. Calls `expire` of each that is still there at its deadline."""
        self.open.update(dict.fromkeys(those))
        due_ms = min([one.due_ms for one in those])
        if due_ms < self._fires_ms:
            self._set_timer(due_ms)

    def _set_timer(self, due_ms: int) -> None:
        """Sets the timer to fire at `due_ms` instead of its previous time."""
        if self._timer is not None:
            self._timer.cancel()
        self._fires_ms = due_ms
        loop = asyncio.get_running_loop()
        wait_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
        # `call_soon` adds a loop iteration, so that responses received during a suspension come first.
        self._timer = loop.call_later(wait_s, loop.call_soon, self._expire_due)

    def _expire_due(self) -> None:
        self._timer, self._fires_ms = None, _NEVER_MS
        now_ms = self._clock.monotonic_ms()
        for deadline in [one for one in self.open if one.due_ms <= now_ms]:
            if deadline in self.open:  # another one's end may have ended this one too
                try:
                    deadline.expire(now_ms)
                except Exception:  # the others must end at their deadlines all the same
                    log.exception("an attempt could not be ended; it counts as lost when its lease expires")
        rest = [one.due_ms for one in self.open if one.due_ms > now_ms]
        if rest:
            self._set_timer(min(rest))


async def call_provider(listed: Listed, delivery: Delivery) -> Outcome:
    """Sends a delivery through a provider and returns the outcome.

    Whatever the provider raises becomes an outcome. A cancellation is passed on if this task was cancelled;
    otherwise it is the provider's own.
    """
    try:
        if listed.threads is not None:
            return sanitize_outcome(await listed.send(delivery))
        return sanitize_outcome(await listed.provider.send(delivery))
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return exception_outcome(listed.id, error)
    except BaseException as error:  # a provider must not raise; if it does, the message may have been sent
        return exception_outcome(listed.id, error)


async def send_with_deadline(listed: Listed, delivery: Delivery) -> Outcome:
    """Sends a delivery through a provider, outside of a worker, and returns the outcome.

    If the provider does not return within the delivery's timeout, it is left behind.
    """
    most_ms = delivery.timeout_ms + grace_ms(listed.provider, delivery.timeout_ms)
    try:
        return await call_within(lambda: call_provider(listed, delivery), most_ms)
    except TimeoutError:
        return timeout_outcome(delivery.timeout_ms)


def timeout_outcome(timeout_ms: int) -> Outcome:
    """Returns the outcome of an attempt that timed out."""
    error = f"no answer within {timeout_ms} ms"
    return Outcome(OutcomeKind.AMBIGUOUS, error_code=TIMEOUT_CODE, error=error)


def exception_outcome(provider: str, error: BaseException) -> Outcome:
    """Logs an exception that a provider raised, and returns the outcome of the attempt.

    The exception's text may name the recipient, so the text is stored but not logged.
    """
    where = "".join(format_tb(error.__traceback__))
    log.error("provider %s raised %s\n%s", provider, type(error).__name__, where)
    return Outcome(OutcomeKind.AMBIGUOUS, error_code="provider_error", error=_describe(error))


def _describe(error: BaseException) -> str | None:
    """Returns an exception as one line. A user's exception may fail to describe itself."""
    try:
        return sanitize_text(repr(error))
    except Exception:
        return type(error).__name__


def sanitize_outcome(outcome: object) -> Outcome:
    """Returns a provider's outcome with valid types and with short texts without control characters.

    Providers may be user code, so their outcomes are not trusted.
    """
    if not isinstance(outcome, Outcome):
        error = f"the provider returned {type(outcome).__name__} instead of an Outcome"
        return Outcome(OutcomeKind.AMBIGUOUS, error_code="provider_error", error=error)
    if _is_plain_accept(outcome):
        return outcome
    try:
        kind = OutcomeKind(outcome.kind)
    except ValueError:
        error = f"the provider returned the unknown outcome kind {outcome.kind!r}"
        return Outcome(OutcomeKind.AMBIGUOUS, error_code="provider_error", error=sanitize_text(error))
    wait_ms = outcome.retry_after_ms
    return replace(
        outcome,
        kind=kind,
        error=sanitize_text(outcome.error),
        error_code=sanitize_text(outcome.error_code, 100),
        provider_message_id=_sanitize_id(outcome.provider_message_id),
        retry_after_ms=wait_ms if type(wait_ms) is int and wait_ms > 0 else None,
        unlisted=outcome.unlisted is True,
        uncounted=outcome.uncounted is True,
    )


def sanitize_text(text: str | None, longest: int = 500) -> str | None:
    """Returns a provider's text as one line without control characters, cut to `longest` characters."""
    if text is None or (type(text) is str and is_plain(text) and len(text) <= longest):
        return text
    return _CONTROL_CHARACTERS.sub(" ", text_of(text)).encode("utf-8", "replace").decode()[:longest]


def _sanitize_id(id: str | None) -> str | None:
    """Returns a provider's message id. A blank one is none: two messages with it would count as the same."""
    found = sanitize_text(id, 255)
    return None if found is None or not found.strip() else found


def _is_plain_accept(outcome: Outcome) -> bool:
    """Returns True for the most common outcome: accepted, without any text to sanitize."""
    return (
        outcome.kind is _ACCEPTED
        and outcome.provider_message_id is None
        and outcome.error is None
        and outcome.error_code is None
        and outcome.retry_after_ms is None
    )
