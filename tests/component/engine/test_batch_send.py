"""Providers that start many attempts with one call: each attempt still ends in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from homing import Outcome, Status
from homing.core.ports.providers import Delivery, OnOutcomes
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import HANG
from homing.rehearsal.virtual_time import TASK_GROUP, VirtualLoop
from support.batch_provider import BatchProvider
from support.engine_harness import ADA, EngineHarness, K, mail, phase, seconds, serving, status, steady


class ImmediateBatchProvider(BatchProvider):
    """Reports the outcome before `begin` returns."""

    def begin(self, batch: Sequence[tuple[Delivery, Any]], ended: OnOutcomes) -> None:
        self.batches.append(len(batch))
        self.sent += [delivery for delivery, _ in batch]
        ended([(mark, Outcome(K.ACCEPTED)) for _, mark in batch])


async def test_a_claimed_batch_is_started_with_one_call(harness: EngineHarness) -> None:
    provider = BatchProvider(latency_ms=100)
    engine = await harness.open({"mail": provider}, working=False)
    ids = [await mail(engine) for _ in range(20)]
    engine.start_worker()
    await seconds(1)
    assert provider.batches == [20]
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert {a.latency_ms for id in ids for a in (await engine.history(id)).attempts} == {100}


async def test_outcomes_reported_at_once_are_counted(harness: EngineHarness) -> None:
    provider = ImmediateBatchProvider()
    engine = await harness.open({"mail": provider})
    ids = [await mail(engine) for _ in range(5)]
    await seconds(1)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert len(provider.sent) == 5
    await engine.stop_worker()
    assert engine.worker.in_flight == 0


async def test_a_failure_is_retried_and_opens_the_breaker(harness: EngineHarness) -> None:
    provider = BatchProvider(script=[K.TRANSIENT] * 5)
    engine = await harness.open({"mail": provider}, rules=steady())
    ids = [await mail(engine) for _ in range(5)]
    await seconds(5)
    assert await phase(harness) is Phase.OPEN
    await seconds(600)
    for id in ids:
        history = await engine.history(id)
        assert history.notification.status is Status.SENT
        assert [a.outcome for a in history.attempts] == [K.TRANSIENT, K.ACCEPTED]


async def test_an_error_is_ambiguous_and_the_log_does_not_name_the_recipient(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(delivery: Delivery) -> Outcome:
        raise ConnectionError(f"no mailbox {delivery.address}")

    engine = await harness.open({"mail": BatchProvider(script=[breaks])}, rules=steady())
    with caplog.at_level(logging.DEBUG):
        id = await mail(engine)
        await seconds(30)
    first, second = (await engine.history(id)).attempts
    assert (first.outcome, first.error_code, second.outcome) == (K.AMBIGUOUS, "provider_error", K.ACCEPTED)
    assert "raised ConnectionError" in caplog.text
    assert ADA not in caplog.text


@pytest.mark.parametrize("answer", [None, "sent", {"kind": "accepted"}])
async def test_an_invalid_outcome_is_ambiguous(harness: EngineHarness, answer: Any) -> None:
    provider = BatchProvider()
    real = provider.send

    async def send(delivery: Delivery) -> Any:
        outcome = await real(delivery)
        return answer if len(provider.sent) == 1 else outcome

    provider.send = send  # type: ignore[method-assign]
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(30)
    assert [a.outcome for a in (await engine.history(id)).attempts] == [K.AMBIGUOUS, K.ACCEPTED]


async def test_an_attempt_without_an_answer_is_aborted_and_its_late_outcome_ignored(
    harness: EngineHarness,
) -> None:
    provider = BatchProvider(script=[HANG])
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="5s"))
    id = await mail(engine)
    await seconds(4)
    assert await status(engine, id) is Status.SENDING
    ((mark, ended),) = provider.in_flight.items()
    await seconds(2)
    assert provider.given_up == [mark]
    ended([(mark, Outcome(K.ACCEPTED))])
    await seconds(20)
    attempts = (await engine.history(id)).attempts
    assert [(a.outcome, a.error_code) for a in attempts] == [(K.AMBIGUOUS, "timeout"), (K.ACCEPTED, None)]
    assert attempts[0].latency_ms == 5_000
    assert engine.worker.in_flight == 0


async def test_a_late_outcome_is_not_counted_a_second_time(harness: EngineHarness) -> None:
    provider = BatchProvider(script=[HANG] * 3)
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="5s"))
    for _ in range(3):
        await mail(engine)
    await seconds(4)
    in_flight = dict(provider.in_flight)
    await seconds(2)
    assert sorted(provider.given_up, key=id) == sorted(in_flight, key=id)
    for mark, ended in in_flight.items():
        ended([(mark, Outcome(K.TRANSIENT))])
    await seconds(1)
    assert await phase(harness) is Phase.CLOSED, "three failures, not six"
    assert engine.worker.stale == 0, "nothing was settled twice"


async def test_no_more_attempts_are_started_than_the_provider_allows(harness: EngineHarness) -> None:
    provider = BatchProvider(latency_ms=1_000)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=5)}, working=False)
    ids = [await mail(engine) for _ in range(10)]
    engine.start_worker()
    await seconds(30)
    assert provider.busiest == 3, "one slot is reserved for priority, one stays free for another tenant"
    assert {await status(engine, id) for id in ids} == {Status.SENT}


async def test_draining_waits_for_started_attempts(harness: EngineHarness) -> None:
    provider = BatchProvider(latency_ms=5_000)
    engine = await harness.open({"mail": provider})
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker()
    assert await status(engine, id) is Status.SENT


async def test_a_hard_stop_abandons_started_attempts_and_another_worker_takes_over(
    harness: EngineHarness,
) -> None:
    provider = BatchProvider(script=[HANG, HANG])
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=4)}, rules=steady())
    ids = [await mail(engine) for _ in range(2)]
    await seconds(1)
    begun = set(provider.in_flight)
    await engine.stop_worker(hard=True)
    assert set(provider.given_up) == begun
    assert len(begun) == 2
    for mark, ended in provider.in_flight.items():
        ended([(mark, Outcome(K.ACCEPTED))])
    assert [await status(engine, id) for id in ids] == [Status.SENDING] * 2
    engine.start_worker()  # the same engine: the provider's slots are free again
    await seconds(120)
    histories = [await engine.history(id) for id in ids]
    assert [h.notification.status for h in histories] == [Status.SENT] * 2
    assert [[a.outcome for a in h.attempts] for h in histories] == [[K.LOST, K.ACCEPTED]] * 2


async def test_a_suspended_worker_blames_no_provider(harness: EngineHarness) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    provider = BatchProvider(latency_ms=5_000)
    joined = TASK_GROUP.set("suspended")
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="10s"))
    TASK_GROUP.reset(joined)
    for _ in range(10):
        await mail(engine)
    await seconds(1)
    loop.freeze("suspended")
    await seconds(60)
    assert len(provider.sent) == 10
    loop.thaw("suspended")
    await seconds(1)
    assert await phase(harness) is Phase.CLOSED
