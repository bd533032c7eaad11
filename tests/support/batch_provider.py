"""A scripted provider that starts many attempts with one call, for tests of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from homing.core.ports.providers import Delivery, OnOutcomes
from support.engine_harness import TimedProvider


class BatchProvider(TimedProvider):
    """Starts attempts with one call, and reports each outcome when it is known."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches: list[int] = []
        self.given_up: list[Any] = []
        self.in_flight: dict[Any, OnOutcomes] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def begins(self) -> bool:
        return True

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        self.batches.append(len(batch))
        for delivery, mark in batch:
            self.in_flight[mark] = ended
            task = asyncio.create_task(self._send_and_tell(delivery, mark, ended))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def give_up(self, marks: Collection[Any]) -> None:
        """Records the handles. It may still report their outcomes, which the engine must ignore."""
        self.given_up += marks

    async def _send_and_tell(self, delivery: Delivery, mark: Any, ended: OnOutcomes) -> None:
        said: Any
        try:
            said = await self.send(delivery)
        except Exception as error:
            said = error
        del self.in_flight[mark]
        ended([(mark, said)])
