"""Raises an alert for each threshold that is exceeded, such as that of the retry backlog.

What the last check has found is kept in the store, because another process may make the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from homing.core.ports.stores import Backend, Entry
from homing.core.request_decoding import to_camel_case
from homing.engine.operations.health import check_thresholds, read_figures
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.settings import AlertThresholds
from homing.engine.upkeep.alerts import ALERT_MEMORY, Alerts

_KEY = "thresholds"


class ThresholdMonitor:
    """Compares the figures of all tenants with the thresholds, and raises alerts."""

    def __init__(self, backend: Backend, alerts: Alerts, thresholds: AlertThresholds) -> None:
        self._backend = backend
        self._alerts = alerts
        self._limits = thresholds
        self._queued: set[str] = set()
        """Metrics whose alerts were queued, but could not be written. They stay queued."""

    async def check(self) -> None:
        """Raises an alert if a threshold is exceeded, once until the value is within the threshold again."""
        raised = await self._load_raised()
        checks = check_thresholds(await read_figures(self._backend, None), self._limits)
        exceeded = {check.metric: check for check in checks if check.exceeded}
        for metric, check in exceeded.items():
            if metric not in raised | self._queued:
                details = {"metric": to_camel_case(metric), "value": check.value, "limit": check.limit}
                self._alerts.add(check.name, check.message, **details)
        self._queued = set(exceeded)
        await self._alerts.flush()
        if raised != self._queued:
            await self._save_raised(exceeded)
        self._queued = set()

    async def _load_raised(self) -> set[str]:
        """Returns the metrics whose threshold was exceeded at the last check of any process."""
        entry = (await self._backend.get_many(EVERY_TENANT, ALERT_MEMORY, [_KEY])).get(_KEY)
        return set() if entry is None else set(entry.value["raised"])

    async def _save_raised(self, metrics: Iterable[str]) -> None:
        value = {"raised": sorted(metrics)}
        entry = Entry(tenant=EVERY_TENANT, kind=ALERT_MEMORY, key=_KEY, value=value, version=-1)
        await self._backend.put([entry], who="homing")
