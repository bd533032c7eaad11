"""Alerts for operators. They go through the outbox to every sink that subscribes to alerts."""

from __future__ import annotations

from typing import Any

from homing.core.ids import uuid7
from homing.core.lifecycle.events import ALERT, Event, alert
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend, Entry
from homing.engine.operations.policies import EVERY_TENANT

_REPEAT_AFTER_MS = 5 * 60_000

_MAX_QUEUED = 1_000

ALERT_MEMORY = "alert_memory"
"""Registry kind: what must be remembered about alerts when the process ends that raised them."""

_REPEATS = "repeats"


class Alerts:
    """Collects alerts without awaiting, and writes them to the outbox on `flush`."""

    def __init__(self, backend: Backend, clock: Clock, random_source: RandomSource) -> None:
        self._backend = backend
        self._clock = clock
        self._random_source = random_source
        self._waiting: list[tuple[str, str, dict[str, Any]]] = []
        self._next_allowed_ms: dict[str, int] = {}
        self._loaded: dict[str, int] = {}
        """The alerts that were not to be repeated when the memory was last read or written."""

    async def load_memory(self) -> None:
        """Reads which alerts other processes have raised, so that `add_once` does not repeat them."""
        entry = (await self._backend.get_many(EVERY_TENANT, ALERT_MEMORY, [_REPEATS])).get(_REPEATS)
        now, mono = self._clock.now_ms(), self._clock.monotonic_ms()
        for key, at in entry.value.items() if entry else ():
            allowed_ms = mono + min(at - now, _REPEAT_AFTER_MS)
            self._next_allowed_ms[key] = max(allowed_ms, self._next_allowed_ms.get(key, 0))
        self._loaded = self._repeats()

    async def save_memory(self) -> None:
        """Stores which alerts this process has raised, if some are new since `load_memory`."""
        found = self._repeats()
        if found != self._loaded:
            entry = Entry(tenant=EVERY_TENANT, kind=ALERT_MEMORY, key=_REPEATS, value=dict(found), version=-1)
            await self._backend.put([entry], who="homing")
            self._loaded = found

    def _repeats(self) -> dict[str, int]:
        """Returns the alerts that must not be repeated yet, each with the time from which it may be."""
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        mono = self._clock.monotonic_ms()
        return {key: at + ahead_ms for key, at in self._next_allowed_ms.items() if at > mono}

    def add(self, name: str, message: str, **details: Any) -> None:
        """Queues an alert for the next `flush`. Drops the alert if 1,000 alerts are queued."""
        if len(self._waiting) < _MAX_QUEUED:
            self._waiting.append((name, message, details))

    def add_once(self, key: str, name: str, message: str, **details: Any) -> None:
        """Queues an alert unless one with the same key was queued within the last five minutes."""
        mono = self._clock.monotonic_ms()
        if mono >= self._next_allowed_ms.get(key, mono):
            self._next_allowed_ms[key] = mono + _REPEAT_AFTER_MS
            self.add(name, message, **details)

    def add_provider_fault(self, provider: str) -> None:
        """Queues the alert that a provider rejects our requests, for example because of wrong credentials."""
        self.add_once(
            f"fault:{provider}",
            "ProviderFault",
            f"{provider} rejects our requests; check its settings",
            provider=provider,
        )

    async def flush(self) -> None:
        """Writes the queued alerts. If the write fails, raises the error and keeps the alerts queued."""
        # The queue is emptied before the write, because two tasks may flush at the same time.
        batch, self._waiting = self._waiting, []
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
                    id=uuid7(now, self._random_source.getrandbits(74)),
                    name=ALERT,
                    tenant=EVERY_TENANT,
                    at=now,
                    payload=alert(name, message, now, **details),
                )
                for name, message, details in batch
            ]
        )
