"""An observer that counts, in Prometheus' terms."""

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

_TAKEN = (Status.SENT, Status.DELIVERED)
Labels = tuple[str, ...]
_Kind = TypeVar("_Kind", prometheus.Counter, prometheus.Histogram)


class Family(Generic[_Kind]):
    """One metric with its series at hand: the library's own way to find one costs more than to count."""

    def __init__(self, family: _Kind) -> None:
        self._family: _Kind = family
        self._series: dict[Labels, _Kind] = {}

    def __getitem__(self, labels: Labels) -> _Kind:
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = self._family.labels(*labels) if labels else self._family
        return found

    def add(self: Family[prometheus.Counter], counts: Mapping[Labels, int]) -> None:
        """What a batch has counted."""
        for labels, number in counts.items():
            self[labels].inc(number)


class _WithoutBirthdays(Collector):
    """The `_created` series, one more for each counter and histogram, are of no use to Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[CollectedFamily]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


class Metrics:
    """Counts what it is told of: an observer for one engine. `registry` may be a program's own.

    The counts begin with the process, as Prometheus expects. No label has more values than are known
    beforehand: `tenants` bounds theirs, and providers are those of the engine that it watches.
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
        named = queue_names or {mode: info.queue_name for mode, info in MODE_INFO.items()}
        self._queues = {mode: named.get(mode) or mode.value for mode in Mode}
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
        for queue in self._queues.values():  # a rate can only be seen to rise from a series that is there
            for family in (self._scheduled, self._exhausted):
                family[(queue,)].inc(0)
            for status in ("success", "failed"):
                self._executed[queue, status].inc(0)

    def watch(self, engine: Watched) -> None:
        """Shows this engine's gauges too, and knows its providers; before anything is counted."""
        assert self._gauges is None, "one engine each"
        self._providers = Known(engine.glance().breakers)
        self._gauges = Gauges(engine, self._providers)
        self.registry.register(self._gauges)

    async def page(self) -> bytes:
        """All of it in Prometheus' text format (`CONTENT_TYPE`). Asks the store, seldom and not for long."""
        if self._gauges is not None:
            await self._gauges.refresh()
        return prometheus.generate_latest(_WithoutBirthdays(self.registry))

    async def shown(self) -> tuple[bytes, str]:
        """The page, and its content type."""
        return await self.page(), CONTENT_TYPE

    # The observer --------------------------------------------------------------------------------

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        new: Counter[Labels] = Counter()
        known: Counter[Labels] = Counter()
        for submission, answer in zip(batch, answers, strict=True):
            tenant = self._tenants[submission.tenant]
            if answer.conflict:
                self._conflicts[(tenant,)].inc()
                continue
            for notification, id in zip(submission.notifications, answer.ids, strict=False):
                (known if id in answer.duplicates else new)[notification.lane, tenant] += 1
        self._accepted.add(new)
        self._duplicates.add(known)

    def claimed(self, batch: ClaimBatch) -> None:
        for claim in batch.claims:
            self._lateness[(claim.lane,)].observe(max(0, batch.now - claim.due_at) / 1000)

    def settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        became: Counter[Labels] = Counter()
        tried: Counter[Labels] = Counter()
        for settlement, claim in batch:
            if settlement.id in refused:
                continue
            became[claim.lane, self._tenants[claim.tenant], settlement.status.value] += 1
            attempt = settlement.attempt
            if attempt is None:
                continue
            provider, queue = self._providers[attempt.provider], self._queues[claim.mode]
            tried[claim.lane, provider, attempt.outcome.value] += 1
            if attempt.number > 1 or settlement.status not in _TAKEN:
                self._retried(settlement, attempt, queue)
            if attempt.outcome is not OutcomeKind.LOST:  # how long nobody answered says nothing about it
                self._attempt_seconds[claim.channel.value, provider].observe(attempt.latency_ms / 1000)
            if settlement.status in _TAKEN:
                took_ms = attempt.started_at + attempt.latency_ms - claim.aged_from
                self._delivery_seconds[(claim.lane,)].observe(max(0, took_ms) / 1000)
        self._settled.add(became)
        self._attempts.add(tried)
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

    # The service's requests ----------------------------------------------------------------------

    def began(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Nothing to remember: who asks says how long it took."""

    def ended(self, began: None, operation: str, method: str, status: int, took_s: float) -> None:
        """The names of operations are those of the service's own routes, so they are few."""
        name = operation or "none"
        self._requests[name, f"{status // 100}xx"].inc()
        self._request_seconds[(name,)].observe(took_s)

    # Its parts -----------------------------------------------------------------------------------

    def _retried(self, settlement: Settlement, attempt: AttemptRecord, queue: str) -> None:
        """What is counted of those that did not land at the first attempt."""
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
