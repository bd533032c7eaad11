"""A Python function as a provider: the shortest way to plug in what Homing does not know."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from homing.core.model import Outcome, OutcomeKind
from homing.core.ports import Delivery

SendCall = Callable[[Delivery], "Outcome | str | Awaitable[Outcome | str | None] | None"]


class FunctionProvider:
    """Calls a function, plain or async. A plain one must be quick: it runs on the event loop.

    It may return an `Outcome`, a provider message id, or nothing (accepted). An exception means that the
    message was not taken: a transient failure.
    """

    def __init__(self, call: SendCall) -> None:
        self._call = call

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            answer = self._call(delivery)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # the function's way to say no
            return Outcome(OutcomeKind.TRANSIENT, error_code=type(error).__name__, error=str(error))
        if isinstance(answer, Outcome):
            return answer
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=answer)

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""
