"""Raises an alert for each threshold that is exceeded, such as that of the retry backlog."""

from __future__ import annotations

from homing.core.ports.stores import Backend
from homing.core.request_decoding import to_camel_case
from homing.engine.operations.health import check_thresholds, read_figures
from homing.engine.settings import AlertThresholds
from homing.engine.upkeep.alerts import Alerts


class ThresholdMonitor:
    """Compares the figures of all tenants with the thresholds, and raises alerts."""

    def __init__(self, backend: Backend, alerts: Alerts, thresholds: AlertThresholds) -> None:
        self._backend = backend
        self._alerts = alerts
        self._limits = thresholds
        self._raised: set[str] = set()
        """Metrics whose threshold was exceeded at the last check."""

    async def check(self) -> None:
        """Raises an alert if a threshold is exceeded, once until the value is within the threshold again."""
        checks = check_thresholds(await read_figures(self._backend, None), self._limits)
        exceeded = {check.metric: check for check in checks if check.exceeded}
        for metric, check in exceeded.items():
            if metric not in self._raised:
                details = {"metric": to_camel_case(metric), "value": check.value, "limit": check.limit}
                self._alerts.add(check.name, check.message, **details)
        self._raised = set(exceeded)
        await self._alerts.flush()
