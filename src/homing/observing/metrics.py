"""An observer that counts engine events and HTTP requests as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics_core import Metric as CollectedFamily
from prometheus_client.registry import Collector, CollectorRegistry

from homing.core.breaker import Phase
from homing.core.errors import StoreError
from homing.core.model import (
    Acceptance,
    AttemptRecord,
    ClaimBatch,
    Mode,
    OutcomeKind,
    Reason,
    Receipt,
    ReceiptResult,
    Settlement,
    Status,
    Submission,
)
from homing.core.modes import MODE_INFO
from homing.core.observing import Settled
from homing.observing import catalogue
from homing.observing.catalogue import Metric
from homing.observing.gauges import Gauges, Watched
from homing.observing.names import Bounded, Known

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4

_ACCEPTED_STATUSES = (Status.SENT, Status.DELIVERED)
Labels = tuple[str, ...]
_Kind = TypeVar("_Kind", prometheus.Counter, prometheus.Histogram)


class Family(Generic[_Kind]):
    """One metric with its series cached, because the library's own lookup costs more than counting."""

    def __init__(self, family: _Kind) -> None:
        self._family: _Kind = family
        self._series: dict[Labels, _Kind] = {}

    def __getitem__(self, labels: Labels) -> _Kind:
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = self._family.labels(*labels) if labels else self._family
        return found

    def add(self: Family[prometheus.Counter], counts: Mapping[Labels, int]) -> None:
        """Adds the counts of a batch."""
        for labels, number in counts.items():
            self[labels].inc(number)


class _WithoutCreatedSeries(Collector):
    """Omits the `_created` series, one per counter and histogram, because Prometheus has no use for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[CollectedFamily]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


class Metrics:
    """Observes one engine and counts its events. `registry` may be the caller's own.

    All counters start at zero with the process, as Prometheus expects. Every label has a limited number of
    values: `tenants` limits the tenant label, and the provider label has the engine's providers.
    """

    def __init__(
        self,
        *,
        tenants: int = 50,
        queue_names: Mapping[Mode, str] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._providers = Known()
        self._tenants = Bounded(tenants)
        self._gauges: Gauges | None = None
        names = queue_names or {mode: info.queue_name for mode, info in MODE_INFO.items()}
        self._queues = {mode: names.get(mode) or mode.value for mode in Mode}
        counter, histogram = self._counter, self._histogram
        self._accepted = counter(catalogue.ACCEPTED)
        self._duplicates = counter(catalogue.DUPLICATES)
        self._conflicts = counter(catalogue.CONFLICTS)
        self._attempts = counter(catalogue.ATTEMPTS)
        self._settled = counter(catalogue.SETTLED)
        self._stale = counter(catalogue.STALE)
        self._scheduled = counter(catalogue.RETRIES_SCHEDULED)
        self._executed = counter(catalogue.RETRIES_EXECUTED)
        self._exhausted = counter(catalogue.RETRIES_EXHAUSTED)
        self._receipts = counter(catalogue.RECEIPTS)
        self._breaker_changes = counter(catalogue.BREAKER_CHANGES)
        self._store_errors = counter(catalogue.STORE_ERRORS)
        self._attempt_seconds = histogram(catalogue.ATTEMPT_SECONDS)
        self._delivery_seconds = histogram(catalogue.DELIVERY_SECONDS)
        self._lateness = histogram(catalogue.LATENESS)
        self._requests = counter(catalogue.REQUESTS)
        self._request_seconds = histogram(catalogue.REQUEST_SECONDS)
        for queue in self._queues.values():  # create all series, so that rates see their first increase
            for family in (self._scheduled, self._exhausted):
                family[(queue,)].inc(0)
            for status in ("success", "failed"):
                self._executed[queue, status].inc(0)

    def watch(self, engine: Watched) -> None:
        """Adds this engine's gauges and provider names. Must be called before anything is counted."""
        assert self._gauges is None, "one engine per registry"
        self._providers = Known(engine.glance().breakers)
        self._gauges = Gauges(engine, self._providers)
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
                (duplicates if id in answer.duplicates else accepted)[notification.lane, tenant] += 1
        self._accepted.add(accepted)
        self._duplicates.add(duplicates)

    def claimed(self, batch: ClaimBatch) -> None:
        for claim in batch.claims:
            self._lateness[(claim.lane,)].observe(max(0, batch.now - claim.due_at) / 1000)

    def settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        settled: Counter[Labels] = Counter()
        attempts: Counter[Labels] = Counter()
        for settlement, claim in batch:
            if settlement.id in refused:
                continue
            settled[claim.lane, self._tenants[claim.tenant], settlement.status.value] += 1
            attempt = settlement.attempt
            if attempt is None:
                continue
            provider, queue = self._providers[attempt.provider], self._queues[claim.mode]
            attempts[claim.lane, provider, attempt.outcome.value] += 1
            if attempt.number > 1 or settlement.status not in _ACCEPTED_STATUSES:
                self._retried(settlement, attempt, queue)
            if attempt.outcome is not OutcomeKind.LOST:  # the duration of a lost attempt is not known
                self._attempt_seconds[claim.channel.value, provider].observe(attempt.latency_ms / 1000)
            if settlement.status in _ACCEPTED_STATUSES:
                took_ms = attempt.started_at + attempt.latency_ms - claim.aged_from
                self._delivery_seconds[(claim.lane,)].observe(max(0, took_ms) / 1000)
        self._settled.add(settled)
        self._attempts.add(attempts)
        if refused:
            self._stale[()].inc(len(refused))

    def heard(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
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

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        self._breaker_changes[self._providers[provider], phase.value].inc()

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

    def _retried(self, settlement: Settlement, attempt: AttemptRecord, queue: str) -> None:
        """Counts retries, for notifications that were not delivered at the first attempt."""
        if attempt.number > 1:
            self._executed[queue, "success" if attempt.outcome is OutcomeKind.ACCEPTED else "failed"].inc()
        if settlement.status is Status.RETRYING:
            self._scheduled[(queue,)].inc()
        elif settlement.reason is Reason.RETRIES_EXHAUSTED:
            self._exhausted[(queue,)].inc()

    def _counter(self, metric: Metric) -> Family[prometheus.Counter]:
        return Family(prometheus.Counter(metric.name, metric.help, metric.labels, registry=self.registry))

    def _histogram(self, metric: Metric) -> Family[prometheus.Histogram]:
        made = prometheus.Histogram(
            metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
        )
        return Family(made)
