"""Raises alerts if the retry backlog, failure rate, age of retries or growth of dead letters is too high."""

from __future__ import annotations

from homing.core.notifications import Status
from homing.core.ports.stores import Backend
from homing.core.statistics import count_statuses
from homing.engine.settings import AlertThresholds
from homing.engine.upkeep.alerts import Alerts

_HOUR_MS = 3_600_000


class ThresholdMonitor:
    """Compares the counts of all tenants with the thresholds, and raises alerts."""

    def __init__(self, backend: Backend, alerts: Alerts, thresholds: AlertThresholds) -> None:
        self._backend = backend
        self._alerts = alerts
        self._limits = thresholds
        self._raised: set[str] = set()
        self._dead_letters: int | None = None

    async def check(self) -> None:
        """Raises an alert if a threshold is exceeded, once until the value is within the threshold again."""
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
        grown = dead - (dead if self._dead_letters is None else self._dead_letters)
        self._dead_letters = dead
        await self._raise_alert(
            "DeadLettersGrowing",
            grown > limits.dead_letters_growing,
            f"{grown} new dead letters, {dead} in total",
        )

    async def _failure_rate(self) -> tuple[float, int]:
        sums = await self._backend.roll_ups(None, since_ms=_HOUR_MS)
        failed = sum(s.failed for s in sums)
        ended = failed + sum(s.sent for s in sums)
        return (100.0 * failed / ended if ended else 0.0), ended

    async def _raise_alert(self, name: str, exceeded: bool, message: str) -> None:
        if not exceeded:
            self._raised.discard(name)
            return
        if name in self._raised:
            return
        self._alerts.add(name, message)
        self._raised.add(name)
        await self._alerts.flush()
