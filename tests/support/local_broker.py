"""A message broker within the test, with acknowledgements and redelivery, and a bridge that reads from it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from homing import InvalidRequest
from homing.core.ports.bridges import BridgeMessage, HandledMessage


class LocalBroker:
    """One queue. A message stays until it is acknowledged, and is delivered again if its consumer goes."""

    def __init__(self) -> None:
        self.ready: deque[tuple[str, Any]] = deque()
        self.unacknowledged: dict[str, Any] = {}
        self.acknowledged: list[str] = []
        self.quarantined: dict[str, str] = {}
        self.deliveries = 0
        self._arrived = asyncio.Event()

    def publish(self, key: str, body: Any) -> None:
        self.ready.append((key, body))
        self._arrived.set()

    async def take(self, limit: int) -> list[tuple[str, Any]]:
        while not self.ready:
            self._arrived.clear()
            await self._arrived.wait()
        taken = [self.ready.popleft() for _ in range(min(limit, len(self.ready)))]
        self.unacknowledged.update(taken)
        self.deliveries += len(taken)
        return taken

    def acknowledge(self, key: str) -> None:
        del self.unacknowledged[key]
        self.acknowledged.append(key)

    def give_back(self) -> None:
        """Makes all unacknowledged messages ready again, as when a consumer disconnects."""
        self.ready.extendleft(reversed(self.unacknowledged.items()))
        self.unacknowledged.clear()
        if self.ready:
            self._arrived.set()


class LocalBridge:
    """Reads from a `LocalBroker`, and can fail and hang."""

    def __init__(self, broker: LocalBroker | None = None) -> None:
        self.broker = broker or LocalBroker()
        self.calls: list[str] = []
        self.fails: dict[str, BaseException] = {}
        """Call → exception that it raises."""
        self.hangs: set[str] = set()
        self.before_acknowledge: Callable[[Sequence[HandledMessage]], Awaitable[None]] | None = None

    async def open(self) -> None:
        await self._meet("open")

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        await self._meet("receive")
        return [_message(key, body) for key, body in await self.broker.take(limit)]

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None:
        if self.before_acknowledge is not None:
            await self.before_acknowledge(handled)
        await self._meet("acknowledge")
        for one in handled:
            if one.rejection is not None:
                self.broker.quarantined[one.message.key] = one.rejection
            self.broker.acknowledge(one.message.reference)

    async def check(self) -> None:
        await self._meet("check")

    async def close(self) -> None:
        await self._meet("close")
        self.broker.give_back()

    async def _meet(self, call: str) -> None:
        self.calls.append(call)
        if call in self.hangs:
            await asyncio.Event().wait()
        if call in self.fails:
            raise self.fails[call]


def _message(key: str, body: Any) -> BridgeMessage:
    if not isinstance(body, dict):
        return BridgeMessage(key=key, request=InvalidRequest("message", "is not an object"), reference=key)
    own = {name: body[name] for name in ("tenant", "attempts", "max_attempts", "last_error") if name in body}
    request = {name: value for name, value in body.items() if name not in own}
    return BridgeMessage(key=key, request=request, reference=key, **own)
