"""OpenTelemetry traces: an observer that creates spans for each notification, from acceptance to receipt.

A notification's id determines its trace (`homing.core.lifecycle.trace_ids`). Every process that accepts,
claims or settles the notification, or gets a receipt for it, adds to the same trace. The trace of the
caller's request is linked to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextvars import Token
from typing import Any

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Acceptance, Claim, ClaimBatch, NewNotification, Submission
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.lifecycle.trace_ids import first_span_id, is_traced, trace_id
from homing.core.notifications import OutcomeKind
from homing.core.ports.observers import SettledClaim
from homing.core.ports.runtime import Clock
from homing.core.routing.breaker import Phase
from homing.telemetry.settings import TracingSettings

_DEFAULTS = TracingSettings()

_NS = 1_000_000

_TRACE_HEADERS = (b"traceparent", b"tracestate")


SpanAttributes = Mapping[str, str | int | bool]


def create_otlp_processor(endpoint: str) -> SpanProcessor:
    """Returns a processor that sends spans to a collector, in batches, from its own thread."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))


class Tracing:
    """Observes an engine and the service's HTTP requests. `close` sends the remaining spans.

    `share` is the fraction of notifications that are traced. Their ids decide which ones, so that all
    processes agree. Requests whose callers do not decide about tracing are sampled with the same fraction.
    """

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        clock: Clock,
        service_name: str = _DEFAULTS.service_name,
        share: float = _DEFAULTS.share,
    ) -> None:
        self._clock = clock
        self._share = share
        self._ids = _IdGenerator()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}),
            sampler=_Sampler(self._ids, share),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("homing")
        self._propagator = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Sends the remaining spans and blocks until that is done."""
        self._provider.shutdown()

    # The service's requests ----------------------------------------------------------------------

    def began(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[Span, Token[context.Context]]:
        """Starts a span for a request, within the caller's trace if there is one."""
        trace_headers = {
            name.decode("ascii"): value.decode("latin-1") for name, value in headers if name in _TRACE_HEADERS
        }
        parent = self._propagator.extract(trace_headers) if trace_headers else context.Context()
        span = self._tracer.start_span("request", parent, SpanKind.SERVER)
        return span, context.attach(trace.set_span_in_context(span))

    def ended(
        self,
        began: tuple[Span, Token[context.Context]],
        operation: str,
        method: str,
        status: int,
        took_s: float,
    ) -> None:
        span, token = began
        context.detach(token)
        span.update_name(operation or "unknown address")
        span.set_attributes({"http.request.method": method, "http.response.status_code": status})
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()

    # Engine events -------------------------------------------------------------------------------

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        for submission, answer in zip(batch, answers, strict=True):
            for notification, id in zip(submission.notifications, answer.ids, strict=False):
                if id not in answer.duplicates and self._is_traced(id):
                    self._accept(submission.tenant, notification, id)

    def claimed(self, batch: ClaimBatch) -> None:
        for claim in batch.claims:
            if self._is_traced(claim.id):
                attributes = {**_common_attributes(claim), "homing.attempt": claim.attempt}
                self._span("claim", claim.id, min(claim.due_at, batch.now), batch.now, attributes)

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        now = self._clock.now_ms()
        for settlement, claim in batch:
            if self._is_traced(settlement.id):
                self._settle(settlement, claim, now, stale=settlement.id in refused)

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        applied, now = set(result.applied), self._clock.now_ms()
        for receipt in receipts:
            id = receipt.notification_id
            if id is not None and self._is_traced(id):
                attributes: dict[str, str | int | bool] = {
                    "homing.provider": receipt.provider,
                    "homing.event": receipt.event.value,
                    "homing.applied": receipt.event_id in applied,
                }
                self._span("receipt", id, min(receipt.at, now), now, attributes, SpanKind.CONSUMER)

    def callback_unreadable(self, provider: str, events: int) -> None:
        """Does nothing, because no single notification is concerned. The metrics count these events."""

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        """Does nothing, because no single notification is concerned. The metrics count these events."""

    def purged(self, removed: Mapping[str, int]) -> None:
        """Does nothing, because no single notification is concerned. The metrics count these events."""

    def store_failed(self, call: str, error: StoreError) -> None:
        """Does nothing, because no single notification is concerned. The metrics count these events."""

    # Spans ---------------------------------------------------------------------------------------

    def _accept(self, tenant: str, notification: NewNotification, id: str) -> None:
        request = trace.get_current_span()
        links = [Link(request.get_span_context())] if request.get_span_context().is_valid else []
        if links:
            request.set_attribute("homing.notification_id", id)
        now = self._clock.now_ms() * _NS
        attributes = {
            **_common_attributes(notification),
            "homing.tenant": tenant,
            "homing.type": notification.type,
        }
        with self._ids.given(id):
            span = self._tracer.start_span(
                "accept", context.Context(), SpanKind.PRODUCER, attributes, links, start_time=now
            )
        span.end(now)

    def _settle(self, settlement: Settlement, claim: Claim, now: int, *, stale: bool) -> None:
        attributes = _common_attributes(claim)
        attempt = settlement.attempt
        began = now
        if attempt is not None:
            began = attempt.started_at + attempt.latency_ms
            failed = attempt.outcome is not OutcomeKind.ACCEPTED
            attempt_attributes: dict[str, str | int | bool] = {
                **attributes,
                "homing.attempt": attempt.number,
                "homing.provider": attempt.provider,
                "homing.outcome": attempt.outcome.value,
                **({"homing.error_code": attempt.error_code} if attempt.error_code else {}),
            }
            self._span(
                "attempt",
                claim.id,
                attempt.started_at,
                began,
                attempt_attributes,
                SpanKind.CLIENT,
                failed=failed,
            )
        settle_attributes: dict[str, str | int | bool] = {
            **attributes,
            "homing.status": settlement.status.value,
            "homing.stale": stale,
            **({"homing.reason": settlement.reason.value} if settlement.reason else {}),
        }
        self._span("settle", claim.id, min(began, now), now, settle_attributes)

    def _span(
        self,
        name: str,
        id: str,
        from_ms: int,
        until_ms: int,
        attributes: SpanAttributes,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        failed: bool = False,
    ) -> None:
        """Creates a span below the notification's first span, which another process may have created."""
        first = SpanContext(
            trace_id(id), first_span_id(id), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        parent = trace.set_span_in_context(NonRecordingSpan(first), context.Context())
        span = self._tracer.start_span(name, parent, kind, attributes, start_time=from_ms * _NS)
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(max(from_ms, until_ms) * _NS)

    def _is_traced(self, id: str) -> bool:
        return is_traced(id, self._share)


class _IdGenerator(RandomIdGenerator):
    """Generates random ids for spans and traces, except for the first span of a notification."""

    _id: str | None = None

    @property
    def is_given(self) -> bool:
        return self._id is not None

    def given(self, id: str) -> _IdGenerator:
        """Returns a context manager in which a new span gets the ids of the notification's first span."""
        self._id = id
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._id = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self._id is None else trace_id(self._id)

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self._id is None else first_span_id(self._id)


class _Sampler(ParentBased):
    """Samples requests as their callers decide, or else at random.

    A notification's first span is always sampled, because its id has already decided that it is traced.
    """

    def __init__(self, ids: _IdGenerator, share: float) -> None:
        super().__init__(TraceIdRatioBased(share))
        self._ids = ids

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        if self._ids.is_given:
            return ALWAYS_ON.should_sample(*args, **kwargs)
        return super().should_sample(*args, **kwargs)


def _common_attributes(of: Any) -> dict[str, str | int | bool]:
    """Returns the attributes that notifications and claims share. Excludes address and content."""
    return {"homing.notification_id": of.id, "homing.lane": of.lane, "homing.channel": of.channel.value}
