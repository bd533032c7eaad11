"""Two engines that share a store and a timer, and nothing else: one only sends, the other also works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from homing import Delivery, Homing, Outcome, OutcomeKind
from homing.core.ports.timers import Timer
from homing.settings import load_settings

EMAIL: dict[str, Any] = {"channel": "email", "subject": "Hi", "body": "Hello"}
_PATIENCE_S = 60


class Recorder:
    """A provider that records when each message was sent, and how often."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.calls = 0
        self.arrived = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Outcome:
        self.calls += 1
        self.sent[delivery.notification_id] = time.time()
        self.arrived.set()
        return Outcome(OutcomeKind.ACCEPTED)

    async def wait_for(self, id: str) -> float:
        async with asyncio.timeout(_PATIENCE_S):
            while id not in self.sent:
                self.arrived.clear()
                await self.arrived.wait()
        return self.sent[id]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def sender_and_worker(
    new_timer: Callable[[], Timer], sent_by: Recorder, *, poll_ms: int, store: str = "homing.db"
) -> AsyncIterator[tuple[Homing, Homing]]:
    """Opens both engines, and waits until the worker has nothing to do and listens to its timer."""
    settings = load_settings(flags={"store": store, "worker": {"poll_ms": poll_ms}})
    sender, worker = (
        Homing(
            providers={"p": sent_by}, timers={"timer": new_timer()}, worker=works, loaded_settings=settings
        )
        for works in (False, True)
    )
    async with sender, worker:
        await sent_by.wait_for((await worker.send("ada@example.org", **EMAIL)).id)
        await asyncio.sleep(0.2)
        yield sender, worker
