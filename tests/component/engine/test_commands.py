"""Operators' commands on existing notifications, one at a time and in bulk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from homing import Channel, CommandName, CommandRefused, Filter, Homing, InvalidRequest, Status
from homing.api.operations.admin import attempt_after_retry
from homing.core.routing.breaker import Phase
from homing.engine.operations import commands
from homing.engine.operations.commands import BulkProgress
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    EngineHarness,
    K,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
    text,
)

FAILED = Filter(statuses=(Status.FAILED,))


async def dead(
    harness: EngineHarness, number: int = 1, **settings: Any
) -> tuple[Homing, TimedProvider, list[str]]:
    """Opens an engine with dead letters, and a provider that works again."""
    provider = TimedProvider("mail", usual=K.BAD_CONTENT)
    engine = await harness.open({"mail": serving("mail", provider)}, **settings)
    ids = [await mail(engine, to=f"p{n}@example.org") for n in range(number)]
    await seconds(3)
    provider.usual = K.ACCEPTED
    provider.times.clear()
    return engine, provider, ids


async def every(steps: AsyncIterator[BulkProgress]) -> list[BulkProgress]:
    return [step async for step in steps]


# Single notifications ----------------------------------------------------------------------------------


async def test_a_retry_gives_one_more_attempt_now(harness: EngineHarness) -> None:
    engine, _, (id,) = await dead(harness)
    again = await engine.retry(id, who="ada", why="their mailbox is fine now")
    assert again.status in (Status.RETRYING, Status.SENDING)  # it is due now, so a worker may have claimed it
    assert (again.failed_at, again.reason) == (None, None)
    await seconds(1)
    history = await engine.history(id)
    assert history.notification.status is Status.SENT
    assert [a.outcome for a in history.attempts] == [K.BAD_CONTENT, K.ACCEPTED]
    (cause,) = history.causes
    assert (cause.name, cause.who, cause.why) == ("retry", "ada", "their mailbox is fine now")
    assert (cause.status_before, cause.status_after) == (Status.FAILED, Status.RETRYING)


async def test_a_granted_attempt_that_fails_is_a_dead_letter_again(harness: EngineHarness) -> None:
    engine, provider, (id,) = await dead(harness, rules=steady(max_attempts=1))
    provider.usual = K.TRANSIENT
    await engine.retry(id)
    await seconds(60)
    found = await engine.get(id)
    assert (found.status, found.attempt_count) == (Status.FAILED, 2)


async def test_a_retry_can_force_the_provider(harness: EngineHarness) -> None:
    first, second = ScriptedProvider("first", usual=K.BAD_CONTENT), ScriptedProvider("second")
    engine = await harness.open({"twilio": first, "sns": second})
    id = await text(engine)
    await seconds(1)
    await engine.retry(id, provider="AWS_SNS")
    await seconds(1)
    found = await engine.get(id)
    assert (found.status, found.provider_names, found.pinned) == (Status.SENT, ("twilio", "sns"), True)
    with pytest.raises(InvalidRequest, match="'fax' does not serve sms; providers that do: twilio, sns"):
        await engine.retry(id, provider="fax")


@pytest.mark.source("003", "213-218")
async def test_a_retry_makes_a_waiting_notification_due_now(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[K.TRANSIENT])
    engine = await harness.open({"mail": provider}, rules=steady(base_ms="1h"))
    id = await mail(engine)
    later = await mail(engine, send_at=timedelta(hours=2))
    await seconds(5)
    await engine.retry(id)
    await engine.retry(later)
    await seconds(1)
    assert [await status(engine, i) for i in (id, later)] == [Status.SENT, Status.SENT]
    assert provider.times == [0.0, 5.0, 5.0]


@pytest.mark.source("003", "238-256")
async def test_a_resend_is_a_new_notification_linked_to_its_original(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[K.BAD_CONTENT])})
    sent = await engine.send(
        "a@example.org", channel="email", subject="S", body="B", type="t", metadata={"entry_id": 7}
    )
    await seconds(1)
    new = await engine.resend(sent.id, who="ada", why="fixed the template")
    await seconds(1)
    original, copy = await engine.get(sent.id), await engine.get(new)
    assert (original.status, original.resent_as) == (Status.FAILED, new)
    assert (original.acknowledged_by, original.acknowledged_why) == ("ada", "fixed the template")
    assert original.acknowledged_at is not None
    assert (copy.status, copy.resend_of, copy.attempt_count) == (Status.SENT, sent.id, 1)
    assert copy.batch_id != original.batch_id
    for name in ("recipient", "content", "metadata", "type", "category", "channel", "priority", "tenant"):
        assert getattr(copy, name) == getattr(original, name)


async def test_a_resend_can_force_the_provider(harness: EngineHarness) -> None:
    engine = await harness.open({"one": ScriptedProvider(usual=K.BAD_CONTENT), "two": ScriptedProvider()})
    id = await mail(engine)
    await seconds(1)
    new = await engine.resend(id, provider="two")
    await seconds(1)
    assert (await engine.get(new)).provider_names == ("two",)


async def test_a_resent_notification_is_continued_only_by_its_successor(harness: EngineHarness) -> None:
    engine, _, (id,) = await dead(harness)
    await engine.resend(id)
    for again in (engine.resend, engine.retry):
        with pytest.raises(CommandRefused, match="continues as its copy"):
            await again(id)
    await seconds(2)
    assert (await engine.queue_counts())["sent"] == 1


@pytest.mark.source("003", "226-233")
async def test_an_acknowledged_dead_letter_records_by_whom(harness: EngineHarness) -> None:
    engine, _, (id,) = await dead(harness)
    await engine.acknowledge(id, who="ada", why="customer left")
    found = await engine.get(id)
    assert (found.acknowledged_by, found.acknowledged_why) == ("ada", "customer left")
    assert (await engine.list(Filter(acknowledged=False))).items == ()
    (group,) = await engine.error_groups()
    assert (group.count, group.unacknowledged) == (1, 0)


async def test_a_waiting_notification_can_be_rescheduled(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    id = await mail(engine)
    await engine.reschedule(id, timedelta(minutes=2), who="ada", why="after the launch")
    engine.start_worker()
    await seconds(130)
    assert provider.times == [120.0]
    assert (await engine.history(id)).causes[0].why == "after the launch"
    with pytest.raises(InvalidRequest, match="negative"):
        await engine.reschedule(id, timedelta(seconds=-1))


async def test_a_resolution_is_sent_or_failed(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    id = await mail(engine)
    with pytest.raises(InvalidRequest, match="resolved only as sent or failed"):
        await engine.resolve(id, Status.CANCELLED, who="ada")
    with pytest.raises(CommandRefused, match="resolve is not possible"):
        await engine.resolve(id, Status.SENT, who="ada")


REFUSED = [
    ("retry", K.ACCEPTED, "sent"),
    ("resend", K.ACCEPTED, "sent"),
    ("cancel", K.ACCEPTED, "sent"),
    ("acknowledge", K.ACCEPTED, "sent"),
    ("cancel", K.BAD_CONTENT, "failed"),
    ("reschedule", K.BAD_CONTENT, "failed"),
    ("acknowledge", K.TRANSIENT, "retrying"),
    ("resend", K.TRANSIENT, "retrying"),
    ("retry", HANG, "sending"),
    ("resend", HANG, "sending"),
    ("acknowledge", HANG, "sending"),
    ("reschedule", HANG, "sending"),
]


@pytest.mark.parametrize(("command", "outcome", "state"), REFUSED)
async def test_an_impossible_command_is_refused_with_the_status(
    harness: EngineHarness, command: str, outcome: Any, state: str
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=outcome)})
    id = await mail(engine)
    await seconds(1)
    calls: dict[str, Any] = {
        "retry": lambda: engine.retry(id),
        "resend": lambda: engine.resend(id),
        "cancel": lambda: engine.cancel(id),
        "acknowledge": lambda: engine.acknowledge(id, who="ada"),
        "reschedule": lambda: engine.reschedule(id, timedelta(minutes=1)),
    }
    before = await engine.history(id)
    with pytest.raises(CommandRefused, match=f"{command} is not possible: {id} is {state}") as caught:
        await calls[command]()
    assert await engine.history(id) == before
    if state in ("sent", "sending"):
        assert "synchronous" not in caught.value.message


async def test_a_refused_command_says_what_to_do_instead(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    id = await mail(engine)
    await seconds(1)
    with pytest.raises(CommandRefused, match="create a new notification to send it again"):
        await engine.retry(id)
    with pytest.raises(CommandRefused, match=r"`homing explain .*` shows what happened to it"):
        await engine.cancel(id, who="ada")


# Bulk commands -----------------------------------------------------------------------------------------


async def test_a_dry_run_counts_and_changes_nothing(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, provider, _ = await dead(harness, 250)
    before = await harness.store.tallies(None)
    monkeypatch.setattr(commands, "_DRY_RUN_STEP_SIZE", 100)
    steps = await every(engine.bulk(CommandName.RESEND, FAILED, who="ada", dry_run=True))
    assert [(s.matched, s.done) for s in steps] == [(100, 100), (200, 200), (250, 250)]
    await seconds(5)
    assert await harness.store.tallies(None) == before
    assert provider.times == []


async def test_a_bulk_resend_sends_each_once_however_often_it_runs(harness: EngineHarness) -> None:
    engine, provider, ids = await dead(harness, 250)
    last = (await every(engine.bulk(CommandName.RESEND, FAILED, who="ada", why="fixed")))[-1]
    assert (last.matched, last.done, last.refused, last.stopped) == (250, 250, 0, None)
    assert await every(engine.bulk(CommandName.RESEND, FAILED, who="ada")) == []
    await seconds(5)
    assert len(provider.times) == 250
    original = await engine.get(ids[0])
    assert original.resent_as is not None
    assert original.acknowledged_by == "ada"


async def test_a_bulk_command_applies_only_to_what_its_filter_matches(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.BAD_CONTENT)
    engine = await harness.open({"any": provider})
    letters, texts = [await mail(engine) for _ in range(3)], [await text(engine) for _ in range(2)]
    await seconds(2)
    only = Filter(statuses=(Status.FAILED,), channel=Channel.SMS)
    (step,) = await every(engine.bulk(CommandName.ACKNOWLEDGE, only, who="ada", why="known outage"))
    assert (step.matched, step.done) == (2, 2)
    assert [(await engine.get(id)).acknowledged_by for id in letters + texts] == [None] * 3 + ["ada"] * 2


async def test_a_bulk_command_counts_what_ended_just_before_it_as_refused(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    first, _ = [await mail(engine) for _ in range(2)]

    async def end_first(operation: str) -> None:
        if operation == "amend":
            harness.store.on_call = None
            await engine.cancel(first, who="grace")

    harness.store.on_call = end_first
    (step,) = await every(engine.bulk(CommandName.CANCEL, Filter(), who="ada"))
    assert (step.matched, step.done, step.refused) == (2, 1, 1)


async def test_a_bulk_retry_respects_its_rate(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 20)
    await every(engine.bulk(CommandName.RETRY, FAILED, who="ada", rate_per_second=2))
    await seconds(2)
    assert len(provider.times) == 20
    assert 8 <= provider.times[-1] - provider.times[0] <= 10


async def test_a_bulk_retry_reaches_what_changes_while_it_runs(harness: EngineHarness) -> None:
    engine, _, ids = await dead(harness, 3)
    steps = engine.bulk(CommandName.RETRY, FAILED, who="ada", rate_per_second=1)
    await anext(steps)
    await engine.acknowledge(max(ids), who="bob", why="known")
    assert (await every(steps))[-1].done == 3


async def test_a_rate_below_one_per_second_is_respected_too(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 3)
    await every(engine.bulk(CommandName.RETRY, FAILED, who="ada", rate_per_second=0.5))
    assert provider.gaps == [2.0, 2.0]


async def test_a_bulk_resend_stops_when_the_breaker_opens(harness: EngineHarness) -> None:
    engine, provider, _ = await dead(harness, 50)
    done: list[BulkProgress] = []
    async for step in engine.bulk(CommandName.RESEND, FAILED, who="ada", rate_per_second=10):
        done.append(step)
        if len(done) == 2:
            provider.usual = K.TRANSIENT
    assert done[-1].stopped == "the breaker of mail is open"
    assert done[-1].done < 50


async def test_an_idle_breaker_that_waits_for_its_trial_stops_no_bulk_resend(harness: EngineHarness) -> None:
    providers = {"first": ScriptedProvider(script=[K.BAD_CONTENT] * 3), "second": ScriptedProvider()}
    engine = await harness.open(providers, routes={"email": ["first", "second"]})
    for _ in range(3):
        await mail(engine)
    await seconds(1)
    await engine.force_breaker("second", Phase.OPEN, who="ada")
    (refused,) = await every(engine.bulk(CommandName.RESEND, FAILED, who="ada"))
    assert refused.stopped == "the breaker of second is open"
    await engine.force_breaker("second", None, who="ada")
    providers["first"].usual = providers["second"].usual = K.TRANSIENT
    for _ in range(40):
        await mail(engine)
    await seconds(3)
    (refused,) = await every(engine.bulk(CommandName.RESEND, FAILED, who="ada"))
    assert refused.stopped == "the breakers of first and second are not closed"
    providers["first"].usual = K.ACCEPTED
    await seconds(120)
    phases = {one.id: one.breaker.phase for one in await engine.providers()}
    assert (phases["first"], phases["second"]) == (Phase.CLOSED, Phase.HALF_OPEN)
    done = await every(engine.bulk(CommandName.RESEND, FAILED, who="ada"))
    assert (done[-1].stopped, done[-1].done) == (None, 3)


async def test_a_breaker_of_another_channel_stops_nothing(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.BAD_CONTENT])
    engine = await harness.open(
        {"mail": serving("mail", provider), "sms": serving("sms", ScriptedProvider(), "sms")}
    )
    await mail(engine)
    await seconds(1)
    await engine.force_breaker("sms", Phase.OPEN, who="ada")
    (step,) = await every(engine.bulk(CommandName.RESEND, FAILED, who="ada"))
    assert (step.done, step.stopped) == (1, None)


async def test_a_bulk_cancel_ignores_an_open_breaker(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    for _ in range(3):
        await mail(engine)
    (step,) = await every(engine.bulk(CommandName.CANCEL, Filter(), who="ada"))
    assert step.done == 3
    assert (await engine.queue_counts())["cancelled"] == 3


async def test_a_bulk_cancel_of_an_attempt_in_flight_counts_as_done(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=HANG)}, rules=steady(timeout_ms="5s"))
    id = await mail(engine)
    await seconds(1)
    (step,) = await every(engine.bulk(CommandName.CANCEL, Filter(), who="ada"))
    assert step.done == 1
    await seconds(10)
    assert await status(engine, id) is Status.CANCELLED


@pytest.mark.parametrize(
    ("name", "rate", "field"),
    [
        (CommandName.RESOLVE, None, "command"),
        (CommandName.RETRY, 0, "rate_per_second"),
        (CommandName.RETRY, -1, "rate_per_second"),
        (CommandName.RETRY, float("nan"), "rate_per_second"),
    ],
)
async def test_a_contradictory_bulk_command_is_refused(
    harness: EngineHarness, name: CommandName, rate: float | None, field: str
) -> None:
    engine, _, _ = await dead(harness)
    with pytest.raises(InvalidRequest) as caught:
        await every(engine.bulk(name, FAILED, who="ada", rate_per_second=rate))
    assert caught.value.field == field


async def test_a_notification_that_the_store_refuses_to_change_harms_no_other_of_a_bulk_command(
    harness: EngineHarness,
) -> None:
    engine, _, ids = await dead(harness, 50)
    harness.store.connection.execute(
        f"CREATE TEMP TRIGGER refuse BEFORE UPDATE ON homing_notifications WHEN NEW.id = '{ids[20]}'"
        " BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
    )
    last = (await every(engine.bulk(CommandName.ACKNOWLEDGE, FAILED, who="ada")))[-1]
    assert (last.matched, last.done, last.refused) == (50, 49, 1)


@pytest.mark.parametrize("fields", [{"who": "ada\x00"}, {"who": "ada", "why": "be\x00cause"}])
async def test_a_command_with_a_control_character_is_refused(
    harness: EngineHarness, fields: dict[str, str]
) -> None:
    engine = await harness.open(working=False)
    id = await mail(engine)
    with pytest.raises(InvalidRequest, match=next(name for name, text in fields.items() if "\x00" in text)):
        await engine.cancel(id, **fields)
    assert await status(engine, id) is Status.PENDING


async def test_the_attempt_after_a_retry_is_named_correctly_even_if_it_was_made_already(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker()
    await engine.retry(id)
    assert attempt_after_retry(await engine.history(id)) == 2
    engine.start_worker()
    await seconds(1)
    assert (await engine.get(id)).attempt_count == 2
    assert attempt_after_retry(await engine.history(id)) == 2, "the worker was quicker than the answer"
    await engine.retry(id)
    await seconds(1)
    assert attempt_after_retry(await engine.history(id)) == 3
