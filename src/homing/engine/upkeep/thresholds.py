"""Raises an alert for each threshold that is exceeded, such as that of the retry backlog.

What the last check has found is kept in the store, because another process may make the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from homing.core.ports.stores import Backend, Entry, RegisteredSink
from homing.core.request_decoding import to_camel_case
from homing.core.statistics import ThresholdCheck
from homing.engine.operations.health import check_sinks, check_thresholds, read_figures
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.settings import AlertThresholds
from homing.engine.upkeep.alerts import ALERT_MEMORY, Alerts

log = logging.getLogger("homing.upkeep")

_FIGURES, _SINKS = "thresholds", "sink_thresholds"
"""Keys under which the store remembers the exceeded thresholds of all figures, and of the sinks."""


def _alert_key(name: str) -> str:
    return f"threshold:{name}"


class ThresholdMonitor:
    """Compares the figures of all tenants, and those of the sinks, with the thresholds, and raises alerts."""

    def __init__(self, backend: Backend, alerts: Alerts, thresholds: AlertThresholds) -> None:
        self._backend = backend
        self._alerts = alerts
        self._limits = thresholds
        self._queued: dict[str, set[str]] = {_FIGURES: set(), _SINKS: set()}
        """Thresholds whose alerts were queued, but could not be written. They stay queued."""

    async def check(self) -> None:
        """Raises an alert if a threshold is exceeded, once until the value is within the threshold again."""
        checks = check_thresholds(await read_figures(self._backend, None), self._limits)
        await self._raise(_FIGURES, {check.metric: (check, {}) for check in checks if check.exceeded})

    async def check_sinks(self, sinks: Iterable[RegisteredSink], now_ms: int) -> None:
        """Raises an alert about each sink whose backlog is too large or too old, once until it is not.

        The alert goes to all sinks that get alerts, and to the log of this process. So it is noticed even if
        no sink works.
        """
        exceeded = {
            f"{check.metric}:{sink}": (check, {"sink": sink})
            for sink, checks in check_sinks(sinks, now_ms, self._limits).items()
            for check in checks
            if check.exceeded
        }
        for check, _ in await self._raise(_SINKS, exceeded):
            log.warning("%s", check.message)

    async def _raise(
        self, key: str, exceeded: Mapping[str, tuple[ThresholdCheck, dict[str, Any]]]
    ) -> list[tuple[ThresholdCheck, dict[str, Any]]]:
        """Raises the alerts that were not raised by the last check, and returns them."""
        raised = await self._load_raised(key)
        new = {name: found for name, found in exceeded.items() if name not in raised | self._queued[key]}
        for name, (check, about) in new.items():
            details = {"metric": to_camel_case(check.metric), "value": check.value, "limit": check.limit}
            self._alerts.add_lasting(_alert_key(name), check.name, check.message, **about, **details)
        self._queued[key] = set(exceeded)
        await self._alerts.flush()
        if raised != self._queued[key]:
            await self._save_raised(key, exceeded)
        await self._alerts.close({_alert_key(name) for name in raised - set(exceeded)})
        self._queued[key] = set()
        return list(new.values())

    async def _load_raised(self, key: str) -> set[str]:
        """Returns the thresholds that were exceeded at the last check of any process."""
        entry = (await self._backend.get_many(EVERY_TENANT, ALERT_MEMORY, [key])).get(key)
        return set() if entry is None else set(entry.value["raised"])

    async def _save_raised(self, key: str, names: Iterable[str]) -> None:
        value = {"raised": sorted(names)}
        entry = Entry(tenant=EVERY_TENANT, kind=ALERT_MEMORY, key=key, value=value, version=-1)
        await self._backend.put([entry], who="homing")
