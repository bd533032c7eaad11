"""Gauges that are read at each scrape: the state of this process and the counts in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from homing.core.breaker import Phase
from homing.core.model import Status
from homing.core.observing import Depths, Glance
from homing.observing import catalogue
from homing.observing.catalogue import Metric
from homing.observing.names import Known

_REFRESH_EVERY_S = 5.0
_STORE_TIMEOUT_S = 2.0


class Watched(Protocol):
    """The part of the engine that the gauges use."""

    def glance(self) -> Glance: ...
    async def depths(self) -> Depths: ...


class Gauges(Collector):
    """A Prometheus collector for a running engine. `refresh` queries the store at most every five seconds."""

    def __init__(self, watched: Watched, providers: Known) -> None:
        self._engine = watched
        self._providers = providers
        self._depths: Depths | None = None
        self._asked_at: float | None = None
        self._refresh_lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Reads the store's counts unless they are fresh. If the store fails, `homing_store_up` becomes 0."""
        async with self._refresh_lock:
            now = asyncio.get_running_loop().time()
            if self._asked_at is not None and now - self._asked_at < _REFRESH_EVERY_S:
                return
            try:
                async with asyncio.timeout(_STORE_TIMEOUT_S):
                    self._depths = await self._engine.depths()
            except Exception:  # whatever the error is, the old counts no longer hold
                self._depths = None
            self._asked_at = now

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Returns the names only, because registering must not read any values."""
        return [_gauge(metric) for metric in catalogue.CATALOGUE if metric.kind == "gauge"]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield from self._process_gauges(self._engine.glance())
        yield from self._store_gauges(self._depths)

    def _process_gauges(self, glance: Glance) -> Iterable[GaugeMetricFamily]:
        yield _gauge(catalogue.BUILD, ((_version(),), 1))
        yield _gauge(catalogue.WORKING, ((), glance.working))
        yield _gauge(catalogue.SETTLE_BACKLOG, ((), glance.settle_backlog))
        in_flight: dict[tuple[str, ...], float] = {}
        for (lane, provider), number in glance.in_flight.items():
            labels = (lane, self._providers[provider])
            in_flight[labels] = in_flight.get(labels, 0) + number
        yield _gauge(catalogue.IN_FLIGHT, *in_flight.items())
        phases = [
            ((provider, phase.value), float(phase is now))
            for provider, now in glance.breakers.items()
            for phase in Phase
        ]
        yield _gauge(catalogue.BREAKER, *phases)

    def _store_gauges(self, depths: Depths | None) -> Iterable[GaugeMetricFamily]:
        yield _gauge(catalogue.STORE_UP, ((), depths is not None))
        if depths is None:  # no value is better than an old one
            return
        yield _gauge(catalogue.RETRY_QUEUE_DEPTH, ((), depths.statuses.get(Status.RETRYING, 0)))
        yield _gauge(catalogue.OLDEST_RETRY, ((), (depths.oldest_retry_ms or 0) / 1000))
        statuses = [((status.value,), number) for status, number in depths.statuses.items()]
        yield _gauge(catalogue.NOTIFICATIONS, *statuses)


def _gauge(metric: Metric, *values: tuple[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


@cache
def _version() -> str:
    try:
        return metadata.version("homing")
    except metadata.PackageNotFoundError:
        return "not installed"
