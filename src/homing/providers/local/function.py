"""A Python function as a provider, the shortest way to add a service that Homing does not support."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from homing.core.errors import text_of
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.ports.runtime import DEFAULT_THREADS, BlockingCalls, is_async
from homing.providers.common.thread_pool import ThreadPool

SendFunction = Callable[[Delivery], "Outcome | str | Awaitable[Outcome | str | None] | None"]

_CLOSE_MS = 5_000


class FunctionProvider:
    """Calls a function. An async function runs on the event loop, a plain function in a thread.

    The function may return an `Outcome`, a provider message id, or None; the latter two mean accepted. If it
    raises, the message counts as not sent, and the failure as transient. Anything else that it returns is a
    provider fault. If a plain function returns an awaitable, that is awaited on the event loop.
    """

    def __init__(self, function: SendFunction) -> None:
        self._function: Callable[[Delivery], Any] = function
        self._is_async = is_async(function)
        """True if the function runs on the event loop."""
        self.max_in_flight = None if self._is_async else DEFAULT_THREADS
        """Default number of attempts in flight. None if the function needs no threads."""
        self._threads: BlockingCalls | None = None

    def use_threads(self, threads: BlockingCalls) -> None:
        """Sets where a plain function runs. Without this, the provider makes a thread pool of its own."""
        self._threads = threads

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            result = await self._call(delivery)
        except Exception as error:  # how the function reports a failure
            return Outcome(OutcomeKind.TRANSIENT, error_code=type(error).__name__, error=text_of(error))
        if result is None or (isinstance(result, str) and not isinstance(result, OutcomeKind)):
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=result)
        if isinstance(result, Outcome):
            return result
        return Outcome(
            OutcomeKind.PROVIDER_FAULT,
            error_code="invalid_result",
            error=f"the function returned a value of type {type(result).__name__}; it must return None or a "
            "message id (str) if the message was accepted, or else an Outcome, or raise",
        )

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        """Waits a few seconds for calls in progress. A call that hangs is left behind."""
        if self._threads is not None:
            await self._threads.close(_CLOSE_MS)

    async def _call(self, delivery: Delivery) -> Any:
        if self._is_async:
            return await self._function(delivery)
        if self._threads is None:
            self._threads = ThreadPool[Any]("homing-function", DEFAULT_THREADS)
        result = await self._threads.call(partial(self._function, delivery))
        return await result if inspect.isawaitable(result) else result
