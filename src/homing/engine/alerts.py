"""Alerts: things that an operator should look at, through the outbox to every sink that wants them."""

from __future__ import annotations

from typing import Any

from homing.core.events import ALERT, alert
from homing.core.ids import uuid7
from homing.core.model import Event
from homing.core.ports import Backend, Chance, Clock
from homing.engine.policies import EVERY_TENANT

_AGAIN_AFTER_MS = 5 * 60_000
_MOST = 1_000


class Alerts:
    """Collects alerts where nothing can be awaited, and writes them when the store can be asked."""

    def __init__(self, backend: Backend, clock: Clock, chance: Chance) -> None:
        self._backend = backend
        self._clock = clock
        self._chance = chance
        self._waiting: list[tuple[str, str, dict[str, Any]]] = []
        self._told_ms: dict[str, int] = {}

    def add(self, name: str, message: str, **details: Any) -> None:
        """To be told at the next `flush`."""
        if len(self._waiting) < _MOST:
            self._waiting.append((name, message, details))

    def add_once(self, key: str, name: str, message: str, **details: Any) -> None:
        """The same, but not again for the same key within five minutes."""
        mono = self._clock.monotonic_ms()
        if mono >= self._told_ms.get(key, mono):
            self._told_ms[key] = mono + _AGAIN_AFTER_MS
            self.add(name, message, **details)

    def add_provider_fault(self, provider: str) -> None:
        """The provider refuses us, by its answer to a send or by a receipt."""
        self.add_once(
            f"fault:{provider}",
            "ProviderFault",
            f"{provider} refuses us: look at its settings",
            provider=provider,
        )

    async def flush(self) -> None:
        """Writes what was collected; a store that is away keeps it here for the next time."""
        batch, self._waiting = self._waiting, []  # taken out first: two may flush at the same time
        if not batch:
            return
        try:
            await self._emit(batch)
        except BaseException:
            self._waiting = batch + self._waiting
            raise

    async def _emit(self, batch: list[tuple[str, str, dict[str, Any]]]) -> None:
        now = await self._backend.now_ms()
        await self._backend.emit(
            [
                Event(
                    id=uuid7(now, self._chance.getrandbits(74)),
                    name=ALERT,
                    tenant=EVERY_TENANT,
                    at=now,
                    payload=alert(name, message, now, **details),
                )
                for name, message, details in batch
            ]
        )
