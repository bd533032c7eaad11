"""A Python function as a provider, the shortest way to add a service that Homing does not support."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery

SendFunction = Callable[[Delivery], "Outcome | str | Awaitable[Outcome | str | None] | None"]


class FunctionProvider:
    """Calls a function, plain or async. A plain function must be quick, because it runs on the event loop.

    The function may return an `Outcome`, a provider message id, or None; the latter two mean accepted. If it
    raises, the message counts as not sent, and the failure as transient.
    """

    def __init__(self, call: SendFunction) -> None:
        self._call = call

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            result = self._call(delivery)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:  # how the function reports a failure
            return Outcome(OutcomeKind.TRANSIENT, error_code=type(error).__name__, error=str(error))
        if isinstance(result, Outcome):
            return result
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=result)

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        """Does nothing: there is no connection."""
