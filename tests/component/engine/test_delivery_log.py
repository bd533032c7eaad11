"""A failed attempt, a failover and a failure receipt each leave one log line without recipients, and are
counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from homing import Outcome
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Status
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import ScriptedProvider
from homing.telemetry.metrics import Metrics
from support.callback_provider import CallbackProvider, event_about, signed_callback
from support.engine_harness import ADA, EngineHarness, FailingProvider, K, mail, seconds, status, steady

LOGGER = "homing.deliveries"
THROTTLED = Outcome(K.TRANSIENT, error_code="30001", error="the queue is full")


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, LOGGER):
        yield


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("id", "provider", "outcome", "code", "ms", "next")
    return [
        {name: getattr(record, name) for name in names} for record in caplog.records if record.name == LOGGER
    ]


async def count_moves(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    """Returns the failovers so far by provider, next provider and cause."""
    families = text_string_to_metric_families((await metrics.page()).decode())
    return {
        (sample.labels["provider"], sample.labels["to"], sample.labels["cause"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "homing_moves_total"
    }


@pytest.mark.source("001", "536")
@pytest.mark.source("002", "186")
async def test_a_failed_attempt_leaves_one_line_with_what_follows(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    provider = ScriptedProvider("mail", [THROTTLED, K.ACCEPTED], latency_ms=250)
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(30)
    assert lines(caplog) == [
        f"attempt 1 of {id} failed at mail: transient (30001) after 250ms; next: mail in 10s"
    ]
    assert fields(caplog) == [
        {
            "id": id,
            "provider": "mail",
            "outcome": "transient",
            "code": "30001",
            "ms": 250,
            "next": "mail in 10s",
        }
    ]


@pytest.mark.source("002", "254")
async def test_a_failover_leaves_one_line_and_is_counted(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    providers = {"first": FailingProvider("first"), "second": ScriptedProvider("second")}
    metrics = Metrics()
    engine = await harness.open(providers, rules=steady(), observers=[metrics])
    metrics.watch(engine)
    id = await mail(engine)
    await seconds(1)
    attempt, failover = lines(caplog)
    assert attempt.startswith(f"attempt 1 of {id} failed at first: transient")
    assert attempt.endswith("; next: second at once")
    assert failover == f"failover of {id}: first → second (transient)"
    assert fields(caplog)[1]["next"] == "second at once"
    assert await count_moves(metrics) == {("first", "second", "transient"): 1}


async def test_the_return_to_the_first_provider_in_the_next_round_is_no_failover(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    providers = {"first": FailingProvider("first"), "second": FailingProvider("second")}
    metrics = Metrics()
    engine = await harness.open(providers, rules=steady(max_attempts=2), observers=[metrics])
    metrics.watch(engine)
    await mail(engine)
    await seconds(30)
    assert [one["next"] for one in fields(caplog) if one["outcome"] == "transient"] == [
        *("second at once", "second at once", "first in 10s"),
        *("second at once", "second at once", "failed (RETRIES_EXHAUSTED)"),
    ]
    assert await count_moves(metrics) == {("first", "second", "transient"): 2}


async def test_a_failover_because_of_an_open_breaker_is_logged_and_counted(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    providers = {"first": ScriptedProvider("first"), "second": ScriptedProvider("second")}
    metrics = Metrics()
    engine = await harness.open(providers, working=False, observers=[metrics])
    metrics.watch(engine)
    id = await mail(engine)  # it waits for the first provider, whose breaker opens then
    await engine.force_breaker("first", Phase.OPEN, who="ann", why="maintenance")
    engine.start_worker()
    await seconds(1)
    assert lines(caplog) == [f"failover of {id}: first → second (unavailable)"]
    assert await count_moves(metrics) == {("first", "second", "unavailable"): 1}


@pytest.mark.parametrize("obstacle", ["the store is away", "another breaker opens"])
async def test_a_failover_whose_attempt_was_then_postponed_is_logged_and_counted_once(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    providers = {"first": ScriptedProvider("first"), "second": ScriptedProvider("second")}
    metrics = Metrics()
    engine = await harness.open(providers, working=False, observers=[metrics])
    metrics.watch(engine)
    id = await mail(engine)  # it waits for the first provider, whose breaker opens then
    await engine.force_breaker("first", Phase.OPEN, who="ann", why="maintenance")

    async def obstruct(operation: str) -> None:
        if operation == "extend":
            harness.store.on_call = None
            if obstacle == "the store is away":
                raise StoreUnavailable
            await engine.force_breaker("second", Phase.OPEN, who="ann")

    harness.store.on_call = obstruct
    engine.start_worker()
    await seconds(0.5)
    assert await status(engine, id) is Status.PENDING
    await engine.force_breaker("second", None, who="ann")
    await seconds(60)
    assert await status(engine, id) is Status.SENT
    assert lines(caplog) == [f"failover of {id}: first → second (unavailable)"]
    assert await count_moves(metrics) == {("first", "second", "unavailable"): 1}


@pytest.mark.source("002", "316")
async def test_a_failure_receipt_leaves_one_line_and_its_failover_another(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = CallbackProvider("first"), CallbackProvider("second")
    metrics = Metrics()
    engine = await harness.open({"first": first, "second": second}, observers=[metrics])
    metrics.watch(engine)
    id = await mail(engine)
    await seconds(5)
    failed = event_about(first.sent[0], ReceiptEvent.FAILED, outcome="transient", error_code="30005")
    await engine.handle_callback("first", signed_callback([failed]))
    await engine.handle_callback("first", signed_callback([failed]))  # a repetition is not logged again
    await seconds(1)
    receipt, failover = lines(caplog)
    assert receipt.startswith(f"first reported that its message of {id} failed: transient (30005), 5s")
    assert receipt.endswith(" after its attempt; next: second at once")
    assert failover == f"failover of {id}: first → second (receipt)"
    assert fields(caplog)[0]["provider"] == "first"
    assert await count_moves(metrics) == {("first", "second", "receipt"): 1}


async def test_a_failure_that_was_reported_before_the_settlement_is_logged_with_it(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class Hasty(CallbackProvider):
        """Reports a failure before it has answered the send."""

        async def send(self, delivery: Delivery) -> Outcome:
            failed = event_about(delivery, ReceiptEvent.FAILED, outcome="transient", error_code="30005")
            result = await engine.handle_callback("first", signed_callback([failed]))
            assert result.orphaned == 1
            return await super().send(delivery)

    metrics = Metrics()
    engine = await harness.open(
        {"first": Hasty("first"), "second": CallbackProvider("second")}, observers=[metrics]
    )
    metrics.watch(engine)
    id = await mail(engine)
    await seconds(1)
    receipt, failover = lines(caplog)
    assert receipt.startswith(f"first reported that its message of {id} failed: transient (30005), ")
    assert receipt.endswith("; next: second at once")
    assert failover == f"failover of {id}: first → second (receipt)"
    assert await count_moves(metrics) == {("first", "second", "receipt"): 1}


@pytest.mark.parametrize(
    ("outcome", "rule", "next"),
    [
        (K.BAD_RECIPIENT, {}, "failed (BAD_RECIPIENT)"),
        (K.AMBIGUOUS, {"on_timeout": "hold"}, "in_doubt (UNCONFIRMED)"),
        (K.TRANSIENT, {"max_attempts": 1}, "failed (RETRIES_EXHAUSTED)"),
    ],
)
async def test_the_line_of_a_last_attempt_has_the_status_and_the_reason(
    harness: EngineHarness,
    caplog: pytest.LogCaptureFixture,
    outcome: Any,
    rule: dict[str, Any],
    next: str,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider("mail", [outcome])}, rules=steady(**rule))
    await mail(engine)
    await seconds(1)
    assert [one["next"] for one in fields(caplog)] == [next]


async def test_a_spam_report_leaves_a_line(harness: EngineHarness, caplog: pytest.LogCaptureFixture) -> None:
    provider = CallbackProvider("mail")
    engine = await harness.open({"mail": provider})
    await mail(engine)
    await seconds(1)
    reported = event_about(provider.sent[0], ReceiptEvent.SPAM_REPORT)
    await engine.handle_callback("mail", signed_callback([reported]))
    [one] = fields(caplog)
    assert (one["outcome"], one["next"]) == ("spam_report", "failed")


async def test_a_failed_synchronous_send_leaves_a_line(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.open({"mail": FailingProvider("mail")})
    with pytest.raises(Exception, match="Synchronous delivery failed"):
        await engine.send(ADA, channel="email", body="Hello", synchronous=True)
    assert [one["next"] for one in fields(caplog)] == ["failed (DELIVERY_FAILED)"]


async def test_successes_leave_no_line_and_lines_contain_no_recipient(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    told = Outcome(K.TRANSIENT, error_code=f"550 {ADA}", error=f"no mailbox for {ADA}")
    engine = await harness.open({"mail": ScriptedProvider("mail", [K.ACCEPTED, told])}, rules=steady())
    await mail(engine)
    await mail(engine)
    await seconds(30)
    [line] = lines(caplog)
    assert "(550 •••@example.org)" in line
    assert ADA not in str([record.__dict__ for record in caplog.records])


async def test_below_level_info_nothing_is_formatted(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    provider = CallbackProvider("mail", [THROTTLED])
    engine = await harness.open({"mail": provider}, rules=steady())
    await mail(engine)
    await seconds(30)
    failed = event_about(provider.sent[-1], ReceiptEvent.FAILED, outcome="transient")
    await engine.handle_callback("mail", signed_callback([failed]))
    assert lines(caplog) == []
