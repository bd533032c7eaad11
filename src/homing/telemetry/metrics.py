"""Prometheus metrics: an observer that counts events and requests, and gauges of the engine's state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as CollectedFamily
from prometheus_client.registry import Collector, CollectorRegistry

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Acceptance, Claim, ClaimBatch, NewNotification, Submission
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.provider_moves import (
    ProviderMove,
    move_after_attempt,
    move_after_receipt,
    move_before_attempt,
)
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.lifecycle.states import SUCCESSFUL
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason, Status
from homing.core.ports.observers import ProcessSnapshot, QueueDepths, SettledClaim, SinkBacklogs
from homing.core.routing.breaker import Phase
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.version import __version__
from homing.telemetry import metric_catalog
from homing.telemetry.metric_catalog import FirstSeenLabels, FixedLabels, Metric
from homing.telemetry.settings import MetricsSettings

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4

_DEFAULTS = MetricsSettings()


_T = TypeVar("_T")

Labels = tuple[str, ...]

_Kind = TypeVar("_Kind", prometheus.Counter, prometheus.Histogram)


class CachedFamily(Generic[_Kind]):
    """One metric with its series cached, because the library's own lookup costs more than counting."""

    def __init__(self, family: _Kind) -> None:
        self._family: _Kind = family
        self._series: dict[Labels, _Kind] = {}

    def __getitem__(self, labels: Labels) -> _Kind:
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = self._family.labels(*labels) if labels else self._family
        return found

    def add(self: CachedFamily[prometheus.Counter], counts: Mapping[Labels, int]) -> None:
        """Adds the counts of a batch."""
        for labels, number in counts.items():
            self[labels].inc(number)


class _WithoutCreatedSeries(Collector):
    """Omits the `_created` series of counters and histograms, because Prometheus has no use for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[CollectedFamily]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


class Metrics:
    """Observes one engine and counts its events. If `registry` is omitted, a new one is used.

    All counters start at zero with the process, as Prometheus expects. Every label has a limited number of
    values: `tenants` limits the tenant label, and the provider label has the engine's providers.
    """

    def __init__(
        self,
        *,
        tenants: int = _DEFAULTS.tenants,
        queue_names: Mapping[Mode, str] | None = None,
        service: str = "",
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._providers = FixedLabels()
        self._tenants = FirstSeenLabels(tenants)
        self._service = service
        self._broker_queues = FirstSeenLabels(_MAX_BROKER_QUEUES)
        self._gauges: EngineGauges | None = None
        names = queue_names or {mode: info.queue_name for mode, info in MODE_INFO.items()}
        self._queues = {mode: names.get(mode) or mode.value for mode in Mode}
        counter, histogram = self._counter, self._histogram
        self._accepted = counter(metric_catalog.ACCEPTED)
        self._duplicates = counter(metric_catalog.DUPLICATES)
        self._conflicts = counter(metric_catalog.CONFLICTS)
        self._attempts = counter(metric_catalog.ATTEMPTS)
        self._moves = counter(metric_catalog.MOVES)
        self._settled = counter(metric_catalog.SETTLED)
        self._stale = counter(metric_catalog.STALE)
        self._scheduled = counter(metric_catalog.RETRIES_SCHEDULED)
        self._executed = counter(metric_catalog.RETRIES_EXECUTED)
        self._exhausted = counter(metric_catalog.RETRIES_EXHAUSTED)
        self._receipts = counter(metric_catalog.RECEIPTS)
        self._unreadable = counter(metric_catalog.UNREADABLE_EVENTS)
        self._breaker_changes = counter(metric_catalog.BREAKER_CHANGES)
        self._purged = counter(metric_catalog.PURGED)
        self._store_errors = counter(metric_catalog.STORE_ERRORS)
        self._attempt_seconds = histogram(metric_catalog.ATTEMPT_SECONDS)
        self._delivery_seconds = histogram(metric_catalog.DELIVERY_SECONDS)
        self._lateness = histogram(metric_catalog.LATENESS)
        self._goals = counter(metric_catalog.LATENCY_GOALS)
        self._requests = counter(metric_catalog.REQUESTS)
        self._request_seconds = histogram(metric_catalog.REQUEST_SECONDS)
        for queue in self._queues.values():  # create all series, so that rates see their first increase
            for family in (self._scheduled, self._exhausted):
                family[(queue,)].inc(0)
            for status in ("success", "failed"):
                self._executed[queue, status].inc(0)
        for mode in Mode:
            for result in ("met", "missed"):
                self._goals[mode.value, result].inc(0)

    def watch(self, engine: ReportsGauges) -> None:
        """Adds an engine's gauges and provider names. Must be called before anything is counted."""
        assert self._gauges is None, "one engine per registry"
        self._providers = FixedLabels(engine.snapshot().breakers)
        self._gauges = EngineGauges(engine, self._providers, self._service)
        self.registry.register(self._gauges)

    async def page(self) -> bytes:
        """Returns all metrics in Prometheus' text format. Queries the store at most every five seconds."""
        if self._gauges is not None:
            await self._gauges.refresh()
        return prometheus.generate_latest(_WithoutCreatedSeries(self.registry))

    async def shown(self) -> tuple[bytes, str]:
        """Returns the page and its content type."""
        return await self.page(), CONTENT_TYPE

    # Engine events -------------------------------------------------------------------------------

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        accepted: Counter[Labels] = Counter()
        duplicates: Counter[Labels] = Counter()
        for submission, answer in zip(batch, answers, strict=True):
            tenant = self._tenants[submission.tenant]
            if answer.conflict:
                self._conflicts[(tenant,)].inc()
                continue
            for notification, id in zip(submission.notifications, answer.ids, strict=False):
                duplicate = id in answer.duplicates
                (duplicates if duplicate else accepted)[notification.lane, tenant] += 1
                if notification.attempts_before and not duplicate:  # it waits for a retry from the start
                    self._scheduled[(self._queue(notification),)].inc()
        self._accepted.add(accepted)
        self._duplicates.add(duplicates)

    def claimed(self, batch: ClaimBatch) -> None:
        for claim in batch.claims:
            self._lateness[(claim.lane,)].observe(max(0, batch.now - claim.due_at) / 1000)

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        settled: Counter[Labels] = Counter()
        attempts: Counter[Labels] = Counter()
        for settlement, claim in batch:
            if settlement.id in refused:
                continue
            settled[claim.lane, self._tenants[claim.tenant], settlement.status.value] += 1
            attempt = settlement.attempt
            if attempt is None:
                self._moved(move_before_attempt(claim, settlement))
                if _is_exhausted(settlement, claim):
                    self._exhausted[(self._queue(claim),)].inc()
                continue
            provider = self._providers[attempt.provider]
            attempts[claim.lane, provider, attempt.outcome.value] += 1
            if attempt.number > 1 or settlement.status not in SUCCESSFUL:
                self._retried(settlement, attempt, claim)
                self._moved(move_after_attempt(settlement, attempt))
            if claim.moved_from:
                self._moved(move_before_attempt(claim, settlement))
            if attempt.outcome is not OutcomeKind.LOST:  # the duration of a lost attempt is not known
                self._attempt_seconds[claim.channel.value, provider].observe(attempt.latency_ms / 1000)
            if settlement.status in SUCCESSFUL:
                took_ms = attempt.started_at + attempt.latency_ms - claim.aged_from
                self._delivery_seconds[(claim.lane,)].observe(max(0, took_ms) / 1000)
                if not claim.attempts_before:  # as in the roll-ups
                    met = took_ms <= MODE_INFO[claim.mode].latency_goal_ms
                    self._goals[claim.mode.value, "met" if met else "missed"].inc()
        self._settled.add(settled)
        self._attempts.add(attempts)
        if refused:
            self._stale[()].inc(len(refused))

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        fates = {
            **dict.fromkeys(result.applied, "applied"),
            **dict.fromkeys(result.unchanged, "unchanged"),
            **dict.fromkeys(result.orphaned, "orphaned"),
        }
        self._receipts.add(
            Counter(
                (self._providers[receipt.provider], receipt.event.value, fates[receipt.event_id])
                for receipt in receipts
                if receipt.event_id in fates
            )
        )
        for failure in result.failures:
            self._moved(move_after_receipt(failure))

    def callback_unreadable(self, provider: str, events: int) -> None:
        self._unreadable[(self._providers[provider],)].inc(events)

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        self._breaker_changes[self._providers[provider], phase.value].inc()

    def purged(self, removed: Mapping[str, int]) -> None:
        for kind, number in removed.items():
            self._purged[(kind,)].inc(number)

    def store_failed(self, call: str, error: StoreError) -> None:
        self._store_errors[call, error.code].inc()

    # HTTP requests of the service ----------------------------------------------------------------

    def began(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Does nothing: the caller measures the duration."""

    def ended(self, began: None, operation: str, method: str, status: int, took_s: float) -> None:
        """Counts a request. The operations are the service's own routes, so the label has few values."""
        name = operation or "none"
        self._requests[name, f"{status // 100}xx"].inc()
        self._request_seconds[(name,)].observe(took_s)

    # Helpers -------------------------------------------------------------------------------------

    def _retried(self, settlement: Settlement, attempt: AttemptRecord, claim: Claim) -> None:
        """Counts a retry that was executed, and whether another one is scheduled or retries are exhausted.

        A task of a bridge is scheduled once, when it is taken over, however often it must be published.
        """
        queue = self._queue(claim)
        if attempt.number > 1:
            self._executed[queue, "success" if attempt.outcome is OutcomeKind.ACCEPTED else "failed"].inc()
        if settlement.status is Status.RETRYING:
            if not _is_bridge_task(claim):
                self._scheduled[(queue,)].inc()
        elif _is_exhausted(settlement, claim):
            self._exhausted[(queue,)].inc()

    def _queue(self, one: Claim | NewNotification) -> str:
        """Returns the queue label: the broker's queue of a bridge's task, otherwise that of the mode."""
        return self._broker_queues[one.address] if _is_bridge_task(one) else self._queues[one.mode]

    def _moved(self, move: ProviderMove | None) -> None:
        if move is not None:
            self._moves[
                self._providers[move.from_provider], self._providers[move.to_provider], move.cause
            ].inc()

    def _counter(self, metric: Metric) -> CachedFamily[prometheus.Counter]:
        return CachedFamily(
            prometheus.Counter(metric.name, metric.help, metric.labels, registry=self.registry)
        )

    def _histogram(self, metric: Metric) -> CachedFamily[prometheus.Histogram]:
        made = prometheus.Histogram(
            metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
        )
        return CachedFamily(made)


_MAX_BROKER_QUEUES = 100


def _is_bridge_task(one: Claim | NewNotification) -> bool:
    """Returns True for a message of a broker, which its sender had tried before Homing got it."""
    return one.channel is Channel.QUEUE and one.attempts_before > 0


def _is_exhausted(settlement: Settlement, claim: Claim) -> bool:
    """Returns True if retries are exhausted. A task of a bridge then goes to manual review, whatever the
    reason is."""
    if settlement.status is not Status.FAILED:
        return False
    return settlement.reason is Reason.RETRIES_EXHAUSTED or _is_bridge_task(claim)


_REFRESH_EVERY_S = 5.0

_STORE_TIMEOUT_S = 2.0

_MAX_SINKS = 100
"""Number of sinks with time series of their own."""


class ReportsGauges(Protocol):
    """The part of the engine that the gauges use."""

    def snapshot(self) -> ProcessSnapshot: ...
    async def queue_depths(self) -> QueueDepths: ...
    async def sink_backlogs(self) -> SinkBacklogs: ...


class EngineGauges(Collector):
    """A Prometheus collector for a running engine. `refresh` queries the store at most every five seconds."""

    def __init__(self, watched: ReportsGauges, providers: FixedLabels, service: str = "") -> None:
        self._engine = watched
        self._service = service
        self._providers = providers
        self._depths: QueueDepths | None = None
        self._backlogs: SinkBacklogs | None = None
        self._asked_at: float | None = None
        self._refresh_lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Reads the store's counts unless they are fresh. If the store fails, `homing_store_up` becomes 0."""
        async with self._refresh_lock:
            now = asyncio.get_running_loop().time()
            if self._asked_at is not None and now - self._asked_at < _REFRESH_EVERY_S:
                return
            self._depths = await _ask(self._engine.queue_depths)
            # Counting a large backlog takes longer, and must not hide the other counts.
            self._backlogs = None if self._depths is None else await _ask(self._engine.sink_backlogs)
            self._asked_at = now

    def describe(self) -> Iterable[CollectedFamily]:
        """Returns the names only, because registering must not read any values."""
        gauges = [_gauge(metric) for metric in metric_catalog.CATALOGUE if metric.kind == "gauge"]
        return [*gauges, *(_counter(metric) for metric in metric_catalog.COLLECTED)]

    def collect(self) -> Iterable[CollectedFamily]:
        snapshot = self._engine.snapshot()
        yield from self._process_gauges(snapshot)
        yield from _plug_in_families(snapshot)
        yield from self._store_gauges(self._depths)
        yield from _sink_gauges(self._backlogs)

    def _process_gauges(self, snapshot: ProcessSnapshot) -> Iterable[GaugeMetricFamily]:
        yield _gauge(metric_catalog.BUILD, ((__version__, self._service), 1))
        yield _gauge(metric_catalog.WORKING, ((), snapshot.working))
        yield _gauge(metric_catalog.SETTLE_BACKLOG, ((), snapshot.settle_backlog))
        in_flight: dict[tuple[str, ...], float] = {}
        for (lane, provider), number in snapshot.in_flight.items():
            labels = (lane, self._providers[provider])
            in_flight[labels] = in_flight.get(labels, 0) + number
        yield _gauge(metric_catalog.IN_FLIGHT, *in_flight.items())
        abandoned = [
            ((provider,), float(snapshot.abandoned.get(provider, 0))) for provider in snapshot.breakers
        ]
        yield _gauge(metric_catalog.ABANDONED_CALLS, *abandoned)
        phases = [
            ((provider, phase.value), float(phase is now))
            for provider, now in snapshot.breakers.items()
            for phase in Phase
        ]
        yield _gauge(metric_catalog.BREAKER, *phases)

    def _store_gauges(self, depths: QueueDepths | None) -> Iterable[GaugeMetricFamily]:
        yield _gauge(metric_catalog.STORE_UP, ((), depths is not None))
        if depths is None:  # no value is better than an old one
            return
        yield _gauge(metric_catalog.RETRY_QUEUE_DEPTH, ((), depths.statuses.get(Status.RETRYING, 0)))
        yield _gauge(metric_catalog.OLDEST_RETRY, ((), (depths.oldest_retry_ms or 0) / 1000))
        statuses = [((status.value,), number) for status, number in depths.statuses.items()]
        yield _gauge(metric_catalog.NOTIFICATIONS, *statuses)


def _plug_in_families(snapshot: ProcessSnapshot) -> Iterable[CollectedFamily]:
    """Yields what this process knows about its sinks, timers and bridges."""
    sinks, timers, bridges = snapshot.sinks.items(), snapshot.timers.items(), snapshot.bridges.items()
    yield _counter(metric_catalog.SINK_PUBLISHED, *(((name,), one.published) for name, one in sinks))
    yield _counter(metric_catalog.SINK_FAILURES, *(((name,), one.failures) for name, one in sinks))
    yield _gauge(metric_catalog.TIMER_CONNECTED, *(((name,), one.connected) for name, one in timers))
    yield _counter(metric_catalog.TIMER_SCHEDULED, *(((name,), one.scheduled) for name, one in timers))
    yield _counter(metric_catalog.TIMER_DISCARDED, *(((name,), one.discarded) for name, one in timers))
    yield _counter(metric_catalog.TIMER_FAILURES, *(((name,), one.failures) for name, one in timers))
    yield _gauge(metric_catalog.BRIDGE_UP, *(((name,), one.status == "ok") for name, one in bridges))
    messages = [
        ((name, result), number)
        for name, one in bridges
        for result, number in (
            ("accepted", one.accepted),
            ("duplicate", one.duplicates),
            ("rejected", one.rejected),
        )
    ]
    yield _counter(metric_catalog.BRIDGE_MESSAGES, *messages)
    yield _counter(metric_catalog.BRIDGE_FAILURES, *(((name,), one.failures) for name, one in bridges))


def _sink_gauges(backlogs: SinkBacklogs | None) -> Iterable[CollectedFamily]:
    """Yields the backlog of every registered sink, also of those that this process does not have."""
    if backlogs is None:
        return
    sinks = backlogs.sinks[:_MAX_SINKS]
    yield _gauge(metric_catalog.SINK_WAITING, *(((one.name,), one.waiting) for one in sinks))
    yield _gauge(metric_catalog.SINK_PARKED, *(((one.name,), one.parked) for one in sinks))
    lags = [
        ((one.name,), 0.0 if one.oldest_at is None else max(0, backlogs.now_ms - one.oldest_at) / 1000)
        for one in sinks
    ]
    yield _gauge(metric_catalog.SINK_LAG, *lags)


async def _ask(read: Callable[[], Awaitable[_T]]) -> _T | None:
    """Reads counts of the store. Returns None if it fails, because old counts may be wrong by now."""
    try:
        async with asyncio.timeout(_STORE_TIMEOUT_S):
            return await read()
    except Exception:
        return None


def _counter(metric: Metric, *values: tuple[tuple[str, ...], float]) -> CounterMetricFamily:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _gauge(metric: Metric, *values: tuple[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
