"""Notifications with attempts made elsewhere: backoff and maximum continue from there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from homing import IdempotencyConflict, InvalidRequest, Recipient, Status
from homing.core.notifications import Content
from homing.core.send_request import SendRequest
from homing.core.times import moment
from homing.engine.intake.requests import PriorAttempts
from homing.rehearsal.virtual_time import START_MS
from support.engine_harness import ADA, EngineHarness, K, TimedProvider, seconds, status, steady

NOW = moment(START_MS)


def asked(**fields: Any) -> SendRequest:
    return SendRequest(
        recipient=Recipient(email=ADA), channel="email", content=Content(subject="Hi", body="…"), **fields
    )


async def test_after_a_failure_elsewhere_it_is_due_after_the_policy_s_first_delay(
    harness: EngineHarness,
) -> None:
    mail = TimedProvider("mail")
    engine = await harness.open({"mail": mail}, rules=steady(factor=2.0))
    sent = await engine.submit(asked(), earlier=PriorAttempts(attempts=1))
    found = await engine.get(sent.id)
    assert (found.status, found.attempt_count) == (Status.RETRYING, 1)
    assert found.next_retry_at == NOW + timedelta(seconds=10)
    await seconds(30)
    assert mail.times == [10.0]
    assert [delivery.attempt for delivery in mail.sent] == [2]
    assert await status(engine, sent.id) is Status.SENT


async def test_its_backoff_continues_with_its_attempts(harness: EngineHarness) -> None:
    mail = TimedProvider("mail", [K.TRANSIENT])
    engine = await harness.open({"mail": mail}, rules=steady(factor=2.0))
    await engine.submit(asked(), earlier=PriorAttempts(attempts=2))
    await seconds(120)
    assert mail.times == [20.0, 60.0]


async def test_its_own_maximum_overrides_the_policy_s(harness: EngineHarness) -> None:
    mail = TimedProvider("mail", usual=K.TRANSIENT)
    engine = await harness.open({"mail": mail}, rules=steady(max_attempts=9))
    fewer = await engine.submit(asked(), earlier=PriorAttempts(attempts=1, max_attempts=3))
    await seconds(200)
    found = await engine.get(fewer.id)
    assert (found.status, found.attempt_count, found.max_attempts) == (Status.FAILED, 3, 3)
    assert found.provider_names == ("", "mail", "mail")
    info = await engine.retry_info(fewer.id)
    assert (info.current_attempts, info.max_attempts, info.retries_remaining) == (3, 3, 0)


async def test_its_own_maximum_may_exceed_the_policy_s(harness: EngineHarness) -> None:
    mail = TimedProvider("mail", usual=K.TRANSIENT)
    engine = await harness.open({"mail": mail}, rules=steady(max_attempts=1))
    more = await engine.submit(asked(), earlier=PriorAttempts(max_attempts=4))
    await seconds(200)
    assert (await engine.get(more.id)).attempt_count == 4


async def test_a_notification_without_attempts_left_is_a_dead_letter_at_once(harness: EngineHarness) -> None:
    mail = TimedProvider("mail")
    engine = await harness.open({"mail": mail}, rules=steady(max_attempts=3))
    spent = await engine.submit(asked(), earlier=PriorAttempts(attempts=3))
    await seconds(60)
    found = await engine.get(spent.id)
    assert (found.status, found.reason, found.attempt_count) == (Status.FAILED, "RETRIES_EXHAUSTED", 3)
    assert mail.times == []


async def test_a_send_time_replaces_the_backoff(harness: EngineHarness) -> None:
    mail = TimedProvider("mail")
    engine = await harness.open({"mail": mail}, rules=steady())
    await engine.submit(asked(send_at=NOW + timedelta(seconds=3)), earlier=PriorAttempts(attempts=1))
    await seconds(30)
    assert mail.times == [3.0]


async def test_explain_shows_the_attempts_made_elsewhere(harness: EngineHarness) -> None:
    engine = await harness.open(working=False, rules=steady(max_attempts=9))
    sent = await engine.submit(asked(), earlier=PriorAttempts(attempts=2, max_attempts=5))
    explained = await engine.explain(sent.id)
    assert explained.history.notification.attempts_before == 2
    assert explained.next_step.startswith("attempt 3 of 5 at ")


async def test_the_same_request_with_other_earlier_attempts_is_another_request(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(working=False)
    first = await engine.submit(asked(idempotency_key="k"), earlier=PriorAttempts(attempts=1))
    again = await engine.submit(asked(idempotency_key="k"), earlier=PriorAttempts(attempts=1))
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(IdempotencyConflict):
        await engine.submit(asked(idempotency_key="k"), earlier=PriorAttempts(attempts=2))


@pytest.mark.parametrize(
    ("earlier", "field"),
    [
        (PriorAttempts(attempts=-1), "attempts"),
        (PriorAttempts(attempts=1001), "attempts"),
        (PriorAttempts(max_attempts=0), "maxAttempts"),
        (PriorAttempts(max_attempts=1001), "maxAttempts"),
    ],
)
async def test_impossible_numbers_are_refused(
    harness: EngineHarness, earlier: PriorAttempts, field: str
) -> None:
    engine = await harness.open(working=False)
    with pytest.raises(InvalidRequest) as refused:
        await engine.submit(asked(), earlier=earlier)
    assert refused.value.field == field


async def test_a_synchronous_send_cannot_have_earlier_attempts(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    with pytest.raises(InvalidRequest) as refused:
        await engine.submit(asked(synchronous=True), earlier=PriorAttempts(attempts=1))
    assert refused.value.field == "synchronous"
