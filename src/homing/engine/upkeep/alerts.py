"""Alerts for operators. They go through the outbox to every sink that subscribes to alerts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from homing.core.ids import uuid7
from homing.core.lifecycle.events import ALERT, Event, alert
from homing.core.overview import OpenAlert
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend, Entry
from homing.core.times import moment
from homing.engine.operations.policies import EVERY_TENANT

_REPEAT_AFTER_MS = 5 * 60_000

_MAX_QUEUED = 1_000

ALERT_MEMORY = "alert_memory"
"""Registry kind: what must be remembered about alerts when the process ends that raised them."""

_REPEATS = "repeats"

OPEN_ALERT = "open_alert"
"""Registry kind: the alerts that were raised lately, or whose threshold is still exceeded."""

_OPEN_FOR_MS = 12 * 60_000
"""Time for which an alert is open that no process closes. If its cause lasts, it is raised again by then."""

_RECOVERED = {"BreakerChanged": "closed", "BreakerForced": "auto"}
"""Name of an alert about a breaker → the phase with which it tells that its cause has ended."""

_MAX_OPEN = 500

_MAX_KEY = 200


async def list_open_alerts(backend: Backend) -> tuple[OpenAlert, ...]:
    """Returns the open alerts of all processes, the newest first. They are about all tenants."""
    now = await backend.now_ms()
    found = await backend.list_entries(EVERY_TENANT, OPEN_ALERT, limit=_MAX_OPEN)
    alerts = [
        OpenAlert(
            name=entry.value["name"],
            message=entry.value["message"],
            since=moment(entry.value["since"]),
            last_at=moment(entry.value["lastAt"]),
            details=entry.value["details"],
        )
        for entry in found
        if _is_open(entry, now)
    ]
    return tuple(sorted(alerts, key=lambda one: one.since, reverse=True))


def _is_open(entry: Entry, now: int) -> bool:
    alert = entry.value
    if _RECOVERED.get(alert["name"]) == alert["details"].get("phase", ""):
        return False
    return bool(alert["lasting"] or now - alert["lastAt"] <= _OPEN_FOR_MS)


class _Queued(Struct, frozen=True):
    """An alert that is not written yet."""

    key: str
    """Identifies alerts with the same cause."""
    name: str
    message: str
    details: dict[str, Any]
    lasting: bool = False


class Alerts:
    """Collects alerts without awaiting, and writes them to the outbox on `flush`."""

    def __init__(self, backend: Backend, clock: Clock, random_source: RandomSource) -> None:
        self._backend = backend
        self._clock = clock
        self._random_source = random_source
        self._waiting: list[_Queued] = []
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
        about = details.get("provider") or details.get("channel", "")
        self._queue(_Queued(f"{name}:{about}"[:_MAX_KEY], name, message, details))

    def add_lasting(self, key: str, name: str, message: str, **details: Any) -> None:
        """Queues an alert that is open until `close` is called with its key."""
        self._queue(_Queued(key, name, message, details, lasting=True))

    async def close(self, keys: Collection[str]) -> None:
        """Marks lasting alerts as no longer open, and forgets those that are not open any more."""
        found = await self._backend.list_entries(EVERY_TENANT, OPEN_ALERT, limit=_MAX_OPEN)
        now = await self._backend.now_ms()
        ended = [entry.key for entry in found if entry.key in keys or not _is_open(entry, now)]
        if ended:
            await self._backend.delete(EVERY_TENANT, OPEN_ALERT, ended)

    def add_once(self, key: str, name: str, message: str, **details: Any) -> None:
        """Queues an alert unless one with the same key was queued within the last five minutes."""
        mono = self._clock.monotonic_ms()
        if mono >= self._next_allowed_ms.get(key, mono):
            self._next_allowed_ms[key] = mono + _REPEAT_AFTER_MS
            self._queue(_Queued(key[:_MAX_KEY], name, message, details))

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

    def _queue(self, alert: _Queued) -> None:
        if len(self._waiting) < _MAX_QUEUED:
            self._waiting.append(alert)

    async def _remember(self, batch: list[_Queued], now: int) -> None:
        """Stores the alerts as open ones. One that is open already keeps the time since when it is."""
        newest = {alert.key: alert for alert in batch[-_MAX_OPEN:]}
        stored = await self._backend.get_many(EVERY_TENANT, OPEN_ALERT, list(newest))
        since = {key: entry.value["since"] for key, entry in stored.items() if _is_open(entry, now)}
        entries = [
            Entry(
                tenant=EVERY_TENANT,
                kind=OPEN_ALERT,
                key=key,
                value={
                    "name": alert.name,
                    "message": alert.message,
                    "since": since.get(key, now),
                    "lastAt": now,
                    "lasting": alert.lasting,
                    "details": alert.details,
                },
                version=-1,
            )
            for key, alert in newest.items()
        ]
        await self._backend.put(entries, who="homing")

    async def _emit(self, batch: list[_Queued]) -> None:
        now = await self._backend.now_ms()
        # First, because it can be repeated. If it failed after the events were written, they would be
        # written again.
        await self._remember(batch, now)
        await self._backend.emit(
            [
                Event(
                    id=uuid7(now, self._random_source.getrandbits(74)),
                    name=ALERT,
                    tenant=EVERY_TENANT,
                    at=now,
                    payload=alert(one.name, one.message, now, **one.details),
                )
                for one in batch
            ]
        )
