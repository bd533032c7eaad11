"""A sink that calls a Python function of the application."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from homing.core.lifecycle.events import Event
from homing.core.ports.plug_ins import EventCallback


class CallbackSink:
    """Calls a plain or async function once per event.

    If the function raises, all events of that `publish` call are published again later.
    """

    def __init__(self, call: EventCallback) -> None:
        self._call = call

    async def open(self) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Calls the function for each event, in order."""
        for event in events:
            answer = self._call(event)
            if inspect.isawaitable(answer):
                await answer
