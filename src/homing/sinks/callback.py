"""Events to a Python function of the application."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from homing.core.model import Event
from homing.core.ports import EventCall


class CallbackSink:
    """Calls a function, plain or async, once per event. Raising means: try again later."""

    def __init__(self, call: EventCall) -> None:
        self._call = call

    async def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            answer = self._call(event)
            if inspect.isawaitable(answer):
                await answer
