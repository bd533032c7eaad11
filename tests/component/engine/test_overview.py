"""The overview of a tenant's deliveries, and the open alerts."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from homing import Channel, InvalidRequest, Status
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Filter
from homing.core.overview import VerdictLevel
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import Phase
from homing.core.times import moment
from homing.engine.intake.dead_requests import dead_request
from homing.engine.operations import commands, searches
from homing.engine.operations.dead_letters import fetch_dead_letters
from homing.engine.upkeep.alerts import Alerts
from homing.providers.local.scripted import ScriptedProvider
from homing.testing.builders import DAY_MS, a_notification, a_submission, an_id
from support.engine_harness import EngineHarness, K, mail, seconds, steady


async def test_the_overview_of_a_quiet_engine_says_that_all_is_well(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    for _ in range(3):
        await mail(engine)
    await seconds(5)
    found = await engine.overview()
    assert (found.level, found.live_workers) == (VerdictLevel.OK, 1)
    assert found.verdict == "All is well: 3 sent in the last hour, and nothing is late"
    email = found.of(Channel.EMAIL)
    assert (email.success_rate, email.waiting, email.troubles) == (100.0, 0, ())
    assert sum(point.sent for point in email.last_hour) == sum(point.sent for point in email.last_day) == 3
    other = await engine.of("other").overview()
    assert sum(point.accepted for one in other.channels for point in one.last_hour) == 0


async def test_an_outage_is_named_with_its_provider_and_what_waits(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.TRANSIENT)})
    for _ in range(6):
        await mail(engine)
    await seconds(200)
    found = await engine.overview()
    assert found.level is VerdictLevel.PROBLEM
    assert found.verdict.startswith("Email is 3 min late: mail ")
    assert found.verdict.endswith("6 waiting, oldest 3 min")
    email = found.of(Channel.EMAIL)
    assert [one.provider for one in email.troubles] == ["mail"]
    assert email.troubles[0].failed_over_to is None


async def test_single_notifications_that_wait_for_a_retry_do_not_make_their_channel_late(
    harness: EngineHarness,
) -> None:
    def send(delivery: Delivery) -> Outcome:
        busy = delivery.address == "busy@example.org"
        return Outcome(K.TRANSIENT, error_code="450", error="mailbox busy") if busy else Outcome(K.ACCEPTED)

    engine = await harness.open({"mail": ScriptedProvider(usual=send)}, rules=steady(base_ms="20m"))
    await mail(engine, "busy@example.org")
    for _ in range(120):
        await mail(engine)
        await seconds(5)
    found = await engine.overview()
    email = found.of(Channel.EMAIL)
    assert (email.late, email.works) == (1, True)
    assert found.level is VerdictLevel.OK
    sent = "All is well: 120 sent in the last hour"
    assert found.verdict == f"{sent}; email has 1 waiting for a retry, oldest 10 min"
    for _ in range(2):
        await mail(engine, "busy@example.org")
    await seconds(5)
    found = await engine.overview()
    assert found.level is VerdictLevel.WARNING, "more than one in a hundred"
    assert found.verdict == "Email has 3 waiting for a retry, oldest 10 min"
    await engine.stop_worker()
    await mail(engine)
    await seconds(100)
    found = await engine.overview()
    assert found.level is VerdictLevel.PROBLEM
    assert found.verdict.startswith("No worker is live: 4 waiting")


async def test_the_other_provider_that_an_outage_names_is_one_that_works(harness: EngineHarness) -> None:
    engine = await harness.open({name: ScriptedProvider(name) for name in ("a", "b", "c")})
    for name in ("a", "b"):
        await engine.force_breaker(name, Phase.OPEN, who="ada")
    email = (await engine.overview()).of(Channel.EMAIL)
    assert {one.provider: one.failed_over_to for one in email.troubles} == {"a": "c", "b": "c"}


async def test_what_becomes_late_while_the_overview_is_read_does_not_fail_it(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await engine.force_breaker("mail", Phase.OPEN, who="ada")

    async def mail_arrives(operation: str) -> None:
        if operation == "waiting_groups":
            harness.store.on_call = None
            await seconds(0.1)
            await mail(engine)

    harness.store.on_call = mail_arrives
    found = await engine.overview()
    assert found.of(Channel.EMAIL).late == 1
    assert found.verdict.startswith("Email has no working provider: mail forced open")


async def test_dead_letters_are_counted_in_the_overview(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    await mail(engine)
    await seconds(5)
    found = await engine.overview()
    assert (found.dead_letters, found.failed_last_hour) == (1, 1)
    assert (found.verdict, found.unacknowledged) == ("1 dead letter in the last hour", 1)
    await engine.acknowledge((await engine.list()).items[0].id, who="ada", why="seen")
    found = await engine.overview()
    assert (found.level, found.unacknowledged) == (VerdictLevel.OK, 0)
    assert found.verdict.endswith("nothing is late; 1 dead letter in the last hour is acknowledged")


async def test_an_exceeded_threshold_is_an_open_alert_until_it_has_recovered(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider}, thresholds={"retry_backlog": 3})
    assert await engine.open_alerts() == ()
    for _ in range(5):
        await mail(engine)
    await seconds(3_000)
    (backlog,) = [one for one in await engine.open_alerts() if one.name == "RetryBacklog"]
    assert backlog.details["limit"] == 3
    provider.usual = K.ACCEPTED
    await seconds(3_000)
    assert "RetryBacklog" not in [one.name for one in await engine.open_alerts()]


async def test_an_alert_that_is_not_raised_again_is_closed_after_some_minutes(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.PROVIDER_FAULT)})
    await mail(engine)
    await seconds(30)
    first = {one.name: one for one in await engine.open_alerts()}
    assert "ProviderFault" in first
    await engine.cancel((await engine.list()).items[0].id, who="ada")
    await seconds(3_600)
    assert "ProviderFault" not in [one.name for one in await engine.open_alerts()]


async def test_an_alert_that_tells_of_a_recovery_is_not_open(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider})
    for _ in range(12):
        await mail(engine)
    await seconds(60)
    (changed,) = [one for one in await engine.open_alerts() if one.name == "BreakerChanged"]
    assert changed.details["phase"] != "closed"
    provider.usual = K.ACCEPTED
    while (await engine.providers())[0].breaker.phase is not Phase.CLOSED:
        await seconds(10)
    await seconds(10)
    assert "BreakerChanged" not in [one.name for one in await engine.open_alerts()]
    await engine.force_breaker("mail", Phase.CLOSED, who="ada")
    await seconds(5)
    assert "BreakerForced" in [one.name for one in await engine.open_alerts()]
    await engine.force_breaker("mail", None, who="ada")
    await seconds(5)
    assert "BreakerForced" not in [one.name for one in await engine.open_alerts()]


async def test_alerts_about_several_channels_are_open_side_by_side(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    alerts = Alerts(harness.store, harness.clock, random.Random(1))
    for channel in ("sms", "email"):
        alerts.add("NoProviderLeft", f"no provider of {channel} is available", channel=channel)
    await alerts.flush()
    messages = {one.message for one in await engine.open_alerts() if one.name == "NoProviderLeft"}
    assert messages == {"no provider of sms is available", "no provider of email is available"}


async def test_the_alert_that_no_provider_is_left_ends_when_one_works_again(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider})
    for _ in range(12):
        await mail(engine)
    await seconds(60)
    assert "NoProviderLeft" in [one.name for one in await engine.open_alerts()]
    provider.usual = K.ACCEPTED
    while (await engine.providers())[0].breaker.phase is not Phase.CLOSED:
        await seconds(1)
    assert "NoProviderLeft" not in [one.name for one in await engine.open_alerts()]


async def test_the_histogram_shows_the_wave_of_retries_before_it_comes(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.TRANSIENT)}, preset="simple")
    for _ in range(4):
        await mail(engine)
    await seconds(5)
    found = await engine.waiting_histogram(timedelta(minutes=1))
    assert found.complete
    assert sum(one.count for one in found.groups) == 4
    assert all(one.provider == "mail" and one.due_from is not None for one in found.groups)
    later = await engine.waiting_histogram(timedelta(minutes=1), timedelta(minutes=1))
    (end,) = {one.due_from for one in later.groups}
    assert sum(one.count for one in later.groups) == 4
    assert end is not None
    with pytest.raises(InvalidRequest, match="step"):
        await engine.waiting_histogram(timedelta(seconds=1))
    some = await engine.waiting_histogram(timedelta(minutes=1), most=1)
    assert (some.complete, found.complete) == (False, True)
    with pytest.raises(InvalidRequest, match="most"):
        await engine.waiting_histogram(most=0)


async def test_what_becomes_due_right_now_is_late_from_now_on(harness: EngineHarness) -> None:
    engine, store = await harness.open(working=False), harness.store
    due = await store.now_ms() + 1_000
    await store.accept([a_submission(a_notification(send_at=due))])
    found = []
    for now in (due - 1, due):
        harness.clock.jump(now - await store.now_ms())
        for step_ms in (None, 60_000):
            [group] = (await store.waiting_groups(engine.tenant, step_ms=step_ms)).groups
            found.append((group.late, group.oldest_at))
    assert found == [(0, None), (0, None), (1, moment(due)), (1, moment(due))]


async def test_the_overview_of_providers_has_their_share_latency_and_failing_hosts(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[K.ACCEPTED] * 3, usual=K.BAD_RECIPIENT)})
    for _ in range(3):
        await mail(engine)
    await seconds(5)
    for path in ("a", "b"):
        await engine.send(
            channel="webhook", recipient={"url": f"https://down.example/{path}"}, content={"body": "."}
        )
    await seconds(5)
    found = await engine.provider_overview()
    (one,) = found.items
    assert (one.provider.id, one.attempts, one.sent, one.failed) == ("mail", 5, 3, 2)
    assert one.share == {Channel.EMAIL: 100.0, Channel.WEBHOOK: 100.0}
    assert (one.without_receipt, one.waiting, found.complete) == (3, 0, True)
    assert one.mean_attempt_ms is not None
    assert sum(point.attempts for point in one.last_hour) == 5
    assert [(host.host, host.count) for host in found.failing_hosts] == [("down.example", 2)]
    (unused,) = (await engine.of("other").provider_overview()).items
    assert (unused.attempts, unused.mean_attempt_ms, unused.share) == (0, None, {})


async def test_a_request_that_was_never_accepted_is_no_failing_host(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_RECIPIENT)})
    unread = dead_request(
        id=an_id(), channel=Channel.WEBHOOK, type="t", request="{", why="cannot be read", max_age_ms=DAY_MS
    )
    await harness.store.accept([a_submission(unread)])
    await engine.send(channel="webhook", recipient={"url": "https://down.example/a"}, content={"body": "."})
    await seconds(5)
    found = await engine.provider_overview()
    assert (await engine.get(unread.id)).status is Status.FAILED
    assert [(host.host, host.count) for host in found.failing_hosts] == [("down.example", 1)]


async def test_dead_letters_are_grouped_and_a_dry_run_counts_and_estimates(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    for _ in range(5):
        await mail(engine)
    await seconds(5)
    found = await engine.dead_letter_groups()
    assert (found.total, found.complete, [one.last_hour for one in found.items]) == (5, True, [5])
    dry = await engine.dry_run("resend", {"status": "failed"}, rate_per_second=2)
    assert (dry.matched, dry.complete, dry.takes_ms) == (5, True, 2_500)
    assert (await engine.dry_run("resend", {"status": "failed"})).takes_ms is None


async def test_a_dry_run_whose_first_step_takes_too_long_is_not_complete(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    await mail(engine)
    await seconds(5)
    monkeypatch.setattr(commands, "_LAST_STEP_MS", 0)
    dry = await engine.dry_run("resend", {"status": "failed"}, within=timedelta(0))
    assert (dry.matched, dry.complete) == (0, False)


async def test_a_list_of_dead_letters_that_takes_too_long_compares_only_some_and_goes_on_at_its_cursor(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    ids = [await mail(engine, type=f"t{number % 3}") for number in range(6)]
    await seconds(5)
    monkeypatch.setattr(searches, "_SCANNED", 2)
    shown, whole = list[str](), list[bool]()
    cursor: str | None = None
    while cursor is not None or not shown:
        page = await fetch_dead_letters(
            engine, Filter(type="t0"), acknowledged=False, cursor=cursor, within=timedelta(0)
        )
        shown += [one.id for one in page.items]
        whole.append(page.complete)
        cursor = page.cursor
    assert shown == [ids[3], ids[0]]
    assert whole == [False, False, False, True]
    at_once = await fetch_dead_letters(engine, Filter(type="t0"), acknowledged=False)
    assert ([one.id for one in at_once.items], at_once.complete) == (shown, True)
