"""Traces: one per notification, joined across processes by its id alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from homing import Homing, Outcome, OutcomeKind, PolicyPatch, Rule, compose
from homing.core.errors import ConfigError
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent, ReceiptResult
from homing.core.ports.providers import Delivery
from homing.core.retry.policy import Jitter
from homing.engine.system_runtime import SystemClock
from homing.settings import load_settings
from homing.telemetry.tracing import Tracing
from support.running_service import RunningService

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}


class RecordedTraces:
    """A tracer whose spans a test can read."""

    def __init__(self, share: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self._exporter), clock=SystemClock(), share=share)

    def spans(self, id: str | None = None) -> list[ReadableSpan]:
        """Returns the spans of a notification, or all."""
        found = self._exporter.get_finished_spans()
        return [one for one in found if id is None or trace_of(one) == id.replace("-", "")]

    def one(self, name: str) -> ReadableSpan:
        return next(one for one in self.spans() if one.name == name)


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


@pytest.fixture
def traced() -> Iterator[RecordedTraces]:
    made = RecordedTraces()
    yield made
    made.tracing.close()


async def twice(delivery: Delivery) -> Outcome:
    """Fails once, then succeeds."""
    if delivery.attempt == 1:
        return Outcome(OutcomeKind.TRANSIENT, error_code="503", error=f"busy with {delivery.address}")
    return Outcome(OutcomeKind.ACCEPTED, provider_message_id="m-1")


QUICK = Rule(name="quick", policy=PolicyPatch(base_ms=0, cap_ms=0, jitter=Jitter.NONE))


async def test_events_of_a_notification_in_several_processes_are_one_trace_with_its_id(
    tmp_path: Any,
) -> None:
    accepting, working = RecordedTraces(), RecordedTraces()
    store = tmp_path / "homing.db"
    async with Homing(store, observers=[accepting.tracing], providers={"mail": twice}) as homing:
        sent = await homing.send("ada@example.org", channel="email", body="hello", type="order")
    async with Homing(store, observers=[working.tracing], providers={"mail": twice}, rules=[QUICK]) as homing:
        await homing.process()
        await homing.process()
    (accept,) = accepting.spans(sent.id)
    assert accept.name == "accept"
    assert accept.kind is SpanKind.PRODUCER
    later = working.spans(sent.id)
    assert [span.name for span in later] == ["claim", "attempt", "settle"] * 2
    for span in later:
        assert span.parent is not None
        assert accept.context is not None
        assert span.parent.span_id == accept.context.span_id
    failed, taken = [span for span in later if span.name == "attempt"]
    assert (failed.status.status_code, taken.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert dict(failed.attributes or {}) == {
        "homing.notification_id": sent.id,
        "homing.lane": "standard.email",
        "homing.channel": "email",
        "homing.attempt": 1,
        "homing.provider": "mail",
        "homing.outcome": "transient",
        "homing.error_code": "503",
    }
    assert [dict(s.attributes or {})["homing.status"] for s in later if s.name == "settle"] == [
        "retrying",
        "sent",
    ]
    told = "".join(str(span.to_json()) for span in [accept, *later])
    assert "ada@" not in told  # without the @, the hexadecimal id of a span may contain it
    assert "hello" not in told


def test_a_request_continues_its_caller_s_trace_and_links_to_the_notification_s(
    serve: Callable[..., RunningService], traced: RecordedTraces
) -> None:
    service = serve(store="memory:", observers=[traced.tracing], watchers=[traced.tracing])
    id = service.call("POST", "/api/v1/notifications/send", MAIL, headers={"Traceparent": CALLER}).json[
        "notificationId"
    ]
    for _ in range(2):  # by the time of this response, the previous request has been traced
        service.call("GET", "/healthz")
    request = traced.one("send_notification")
    assert trace_of(request) == "0af7651916cd43dd8448eb211c80319c"
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST",
        "http.response.status_code": 202,
        "homing.notification_id": id,
    }
    (accept,) = traced.spans(id)
    assert [link.context.trace_id for link in accept.links] == [request.context.trace_id]
    assert trace_of(traced.one("get_health")) != trace_of(request), "the next request has one of its own"


def test_a_request_that_its_caller_does_not_sample_is_not_traced(
    serve: Callable[..., RunningService], traced: RecordedTraces
) -> None:
    service = serve(store="memory:", watchers=[traced.tracing])
    service.call("GET", "/healthz", headers={"Traceparent": CALLER[:-2] + "00"})
    service.call("GET", "/nothing", headers={"Traceparent": "nonsense"})
    service.call("GET", "/healthz", key=None)
    assert [span.name for span in traced.spans()][:1] == ["unknown address"]


def test_a_receipt_with_a_notification_id_joins_its_trace(traced: RecordedTraces) -> None:
    id = "0190d1b2-7c3e-7b6a-9c1d-2f4e6a8b0c1d"

    def receipt(event_id: str, of: str | None) -> Receipt:
        return Receipt(
            provider="mail",
            provider_message_id="m",
            event=ReceiptEvent.DELIVERED,
            event_id=event_id,
            at=1_000,
            notification_id=of,
        )

    named = [receipt("1", id), receipt("2", None), receipt("3", "x" * 36)]
    traced.tracing.receipts_applied(named, ReceiptResult(applied=("1",), orphaned=("2", "3")))
    (span,) = traced.spans()
    assert (span.name, trace_of(span)) == ("receipt", id.replace("-", ""))
    assert dict(span.attributes or {}) == {
        "homing.provider": "mail",
        "homing.event": "delivered",
        "homing.applied": True,
    }


async def test_sampling_is_decided_by_the_id_so_that_all_processes_agree(tmp_path: Any) -> None:
    accepting, working = RecordedTraces(share=0.5), RecordedTraces(share=0.5)
    store = tmp_path / "homing.db"
    async with Homing(store, observers=[accepting.tracing], providers={"mail": twice}) as homing:
        for _ in range(64):
            await homing.send("ada@example.org", channel="email", body="hello")
    async with Homing(store, observers=[working.tracing], providers={"mail": twice}) as homing:
        await homing.process(64)
    chosen = {trace_of(span) for span in accepting.spans()}
    assert 8 < len(chosen) < 56
    assert {trace_of(span) for span in working.spans()} == chosen


def test_the_settings_enable_it_and_errors_name_the_setting() -> None:
    assert compose.build_tracing(load_settings(env={})) is None
    with pytest.raises(ConfigError, match=r"tracing\.endpoint"):
        compose.build_tracing(load_settings(env={}, flags={"tracing": {"endpoint": "nowhere"}}))
    with pytest.raises(ConfigError, match=r"tracing\.share"):
        load_settings(env={}, flags={"tracing": {"share": 2.0}})
    made = compose.build_tracing(
        load_settings(env={}, flags={"tracing": {"endpoint": "http://127.0.0.1:9/v1/traces"}})
    )
    assert made is not None
    made.close()
