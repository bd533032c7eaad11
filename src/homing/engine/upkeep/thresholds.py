"""Raises alerts if the retry backlog, failure rate, age of retries or growth of dead letters is too high.

What was found by the last check is kept in the store, because the next check may be made by another process.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.notifications import Status
from homing.core.ports.stores import Backend, Entry
from homing.core.statistics import count_statuses
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.settings import AlertThresholds
from homing.engine.upkeep.alerts import ALERT_MEMORY, Alerts

_HOUR_MS = 3_600_000

_KEY = "thresholds"


class _Memory(Struct, frozen=True, kw_only=True):
    """What the last check has found."""

    raised: frozenset[str] = frozenset()
    """Alerts that were raised and whose value is not within the threshold again."""
    dead_letters: int | None = None
    """Number of dead letters. None before the first check."""


class ThresholdMonitor:
    """Compares the counts of all tenants with the thresholds, and raises alerts."""

    def __init__(self, backend: Backend, alerts: Alerts, thresholds: AlertThresholds) -> None:
        self._backend = backend
        self._alerts = alerts
        self._limits = thresholds
        self._memory = _Memory()
        self._unconfirmed: set[str] = set()
        """Alerts that were queued, but whose write failed. They stay queued until a later write succeeds."""

    async def check(self) -> None:
        """Raises an alert if a threshold is exceeded, once until the value is within the threshold again."""
        before = self._memory = await self._load_memory()
        now = await self._backend.now_ms()
        tallies = await self._backend.tallies(None)
        limits = self._limits
        backlog = count_statuses(tallies, Status.RETRYING)
        await self._raise_alert(
            "RetryBacklog", backlog > limits.retry_backlog, f"{backlog} notifications wait for a retry"
        )
        rate, ended = await self._failure_rate()
        high = ended >= limits.failure_rate_of and rate > limits.failure_rate
        await self._raise_alert("FailureRate", high, f"{rate:.1f} % of {ended} failed in the last hour")
        oldest = await self._backend.oldest_retry_at(None)
        age_ms = 0 if oldest is None else now - int(oldest.timestamp() * 1000)
        old = age_ms > limits.oldest_retry_ms
        await self._raise_alert("OldestRetry", old, f"a retry has waited for {age_ms // _HOUR_MS} hours")
        dead = count_statuses(tallies, Status.FAILED)
        grown = dead - (dead if before.dead_letters is None else before.dead_letters)
        self._memory = replace(self._memory, dead_letters=dead)
        await self._raise_alert(
            "DeadLettersGrowing",
            grown > limits.dead_letters_growing,
            f"{grown} new dead letters, {dead} in total",
        )
        if self._memory != before:
            await self._save_memory()

    async def _failure_rate(self) -> tuple[float, int]:
        sums = await self._backend.roll_ups(None, since_ms=_HOUR_MS)
        failed = sum(s.failed for s in sums)
        ended = failed + sum(s.sent for s in sums)
        return (100.0 * failed / ended if ended else 0.0), ended

    async def _raise_alert(self, name: str, exceeded: bool, message: str) -> None:
        raised = self._memory.raised
        if exceeded == (name in raised):
            return
        if exceeded:
            if name not in self._unconfirmed:
                self._alerts.add(name, message)
            self._unconfirmed.add(name)
            await self._alerts.flush()
            self._unconfirmed.discard(name)
        self._memory = replace(self._memory, raised=raised | {name} if exceeded else raised - {name})

    async def _load_memory(self) -> _Memory:
        entry = (await self._backend.get_many(EVERY_TENANT, ALERT_MEMORY, [_KEY])).get(_KEY)
        return _Memory() if entry is None else msgspec.convert(entry.value, _Memory)

    async def _save_memory(self) -> None:
        value = msgspec.to_builtins(self._memory)
        entry = Entry(tenant=EVERY_TENANT, kind=ALERT_MEMORY, key=_KEY, value=value, version=-1)
        await self._backend.put([entry], who="homing")
