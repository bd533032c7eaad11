"""Quiet hours and rate limits of tenants and recipients: only what must wait is delayed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from homing import ConfigError, Homing, Reason, Status
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement
from homing.core.recipients.quiet_hours import Window
from homing.core.retry.decide import RecipientFacts
from homing.providers.local.scripted import ScriptedProvider
from homing.testing.manual_clock import ManualClock
from support.engine_harness import (
    ADA,
    HOUR,
    MINUTE,
    EngineHarness,
    RecipientHook,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
)

pytestmark = pytest.mark.usefixtures("poll_rarely")

BOB = "bob@example.org"


def hour(harness: EngineHarness, offset_h: int = 0) -> str:
    """Returns the current hour of the wall clock, in UTC."""
    now = datetime.fromtimestamp(harness.clock.now_ms() / 1000, UTC) + timedelta(hours=offset_h)
    return f"{now.hour:02d}:00"


def quiet_now(harness: EngineHarness, **more: Any) -> dict[str, Any]:
    """Quiet hours that started an hour ago and end after the next full hour."""
    return {"start": hour(harness, -1), "end": hour(harness, 2), **more}


def next_full_hour(harness: EngineHarness, offset_h: int) -> int:
    return (harness.clock.now_ms() // 3_600_000 + offset_h) * 3_600_000


# Quiet hours ----------------------------------------------------------------------------------------


async def test_a_notification_in_quiet_hours_is_sent_when_they_end(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, quiet_hours=quiet_now(harness))
    end = next_full_hour(harness, 2)
    began = harness.clock.now_ms()
    id = await mail(engine)
    await seconds(MINUTE)
    waiting = await engine.get(id)
    assert (waiting.status, waiting.reason, waiting.attempt_count) == (Status.PENDING, Reason.QUIET_HOURS, 0)
    assert waiting.next_retry_at is not None
    assert end <= waiting.next_retry_at.timestamp() * 1000 < end + 2_000
    told = await engine.explain(id)
    assert told.verdict == "pending (QUIET_HOURS)"
    assert waiting.next_retry_at.isoformat(timespec="seconds") in told.next_step
    assert "(quiet_hours)" in told.next_step
    await seconds(2 * HOUR)
    assert await status(engine, id) is Status.SENT
    (at,) = provider.times
    assert end <= began + at * 1000 < end + 5_000


async def test_the_recipient_s_time_zone_decides(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()}, quiet_hours={"start": hour(harness, -1), "end": hour(harness, 1)}
    )
    here = await engine.send({"email": ADA, "time_zone": "UTC"}, channel="email", body="x")
    far = await engine.send({"email": ADA, "time_zone": "Asia/Kathmandu"}, channel="email", body="x")
    nowhere = await engine.send({"email": ADA, "time_zone": "Mars/Olympus"}, channel="email", body="x")
    await seconds(2)
    assert await status(engine, here.id) is Status.PENDING
    assert await status(engine, far.id) is Status.SENT
    assert await status(engine, nowhere.id) is Status.PENDING  # as for a recipient without a time zone


async def test_the_stored_time_zone_overrides_that_of_the_message(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, quiet_hours=quiet_now(harness))
    await engine.recipients.put({"id": "u-1", "email": ADA, "timeZone": "Asia/Tokyo"}, who="crm")
    sent = await engine.send({"id": "u-1", "email": ADA, "time_zone": "UTC"}, channel="email", body="x")
    await seconds(2)
    assert await status(engine, sent.id) is Status.SENT


async def test_a_recipient_may_have_own_quiet_hours_or_none(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, quiet_hours=quiet_now(harness))
    people = engine.recipients
    await people.put({"id": "owl", "email": ADA, "quietHours": {"start": "00:00", "end": "00:00"}}, who="app")
    longer = {"start": hour(harness, -1), "end": hour(harness, 3)}
    await people.put({"id": "lark", "email": BOB, "quietHours": longer}, who="app")
    owl, lark = [await engine.send({"id": id}, channel="email", body="x") for id in ("owl", "lark")]
    await seconds(2 * HOUR)
    assert [await status(engine, one.id) for one in (owl, lark)] == [Status.SENT, Status.PENDING]
    await seconds(1.1 * HOUR)
    assert await status(engine, lark.id) is Status.SENT


@pytest.mark.parametrize(
    ("exempt", "fields", "goes"),
    [
        ({}, {"priority": "critical"}, True),
        ({"exempt_priorities": []}, {"priority": "critical"}, False),
        ({"exempt_priorities": ["high"]}, {"priority": "high"}, True),
        ({"exempt_types": ["alarm"]}, {"type": "alarm"}, True),
        ({"exempt_categories": ["security"]}, {"category": "security"}, True),
        ({}, {"priority": "high"}, False),
    ],
)
async def test_an_exempt_category_is_sent_at_any_hour(
    harness: EngineHarness, exempt: dict[str, Any], fields: dict[str, Any], goes: bool
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, quiet_hours=quiet_now(harness, **exempt))
    id = await mail(engine, **fields)
    await seconds(2)
    assert await status(engine, id) is (Status.SENT if goes else Status.PENDING)


async def test_a_synchronous_send_is_never_postponed(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()},
        quiet_hours=quiet_now(harness, exempt_priorities=[]),
        limits={"recipient": {"most": 1}, "tenant": {"most": 1, "per_ms": "1h"}},
    )
    for _ in range(3):
        sent = await engine.send(ADA, channel="email", body="123", synchronous=True)
        assert sent.status == "sent"


async def test_a_notification_that_expires_in_quiet_hours_has_that_reason(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, quiet_hours=quiet_now(harness))
    id = await mail(engine, expires_at=timedelta(minutes=20))
    await seconds(MINUTE)
    told = await engine.explain(id)
    assert told.next_step.startswith("expires at ")
    assert "(quiet_hours)" in told.next_step
    await seconds(25 * MINUTE)
    found = await engine.get(id)
    assert (found.status, found.reason, found.attempt_count) == (Status.EXPIRED, Reason.EXPIRED, 0)


async def test_quiet_hours_do_not_count_towards_the_age(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()}, quiet_hours=quiet_now(harness), rules=steady(max_age_ms="10m")
    )
    id = await mail(engine)
    await seconds(3 * HOUR)
    assert await status(engine, id) is Status.SENT


async def test_retries_wait_for_the_end_of_quiet_hours_too(harness: EngineHarness) -> None:
    provider = TimedProvider(script=["transient"])
    engine = await harness.open(
        {"mail": provider},
        quiet_hours={"start": hour(harness, 1), "end": hour(harness, 3)},
        rules=steady(base_ms="50m", max_attempts=3),
    )
    left_ms = next_full_hour(harness, 1) - harness.clock.now_ms()
    await seconds(left_ms / 1000 - MINUTE)
    id = await mail(engine)
    await seconds(HOUR)
    found = await engine.get(id)
    assert (found.status, found.reason, found.attempt_count) == (Status.RETRYING, Reason.QUIET_HOURS, 1)
    await seconds(1.5 * HOUR)
    assert await status(engine, id) is Status.SENT
    assert len(provider.times) == 2


async def test_a_hook_may_return_time_zone_and_hours(harness: EngineHarness) -> None:
    now_ms = harness.clock.now_ms() % 86_400_000
    window = Window((now_ms - 60_000) % 86_400_000, (now_ms + 600_000) % 86_400_000)
    hook = RecipientHook(
        lambda claims: {c.id: RecipientFacts(time_zone="UTC", quiet_hours=window) for c in claims}
    )
    engine = await harness.open({"mail": ScriptedProvider()}, directory=hook)
    id = await mail(engine)
    await seconds(MINUTE)
    assert (await engine.get(id)).reason is Reason.QUIET_HOURS
    await seconds(11 * MINUTE)
    assert await status(engine, id) is Status.SENT


# Rate limits ----------------------------------------------------------------------------------------


@pytest.mark.source("003", "439")
async def test_a_recipient_gets_no_more_than_allowed_and_everything_in_the_end(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, limits={"recipient": {"most": 2, "per_ms": "10m"}})
    ids = await _one_after_another(engine, 6)
    other = await mail(engine, to=BOB)
    await seconds(MINUTE)
    assert len(provider.times) == 3
    assert await status(engine, other) is Status.SENT
    waiting = await engine.get(ids[-1])
    assert (waiting.status, waiting.reason, waiting.attempt_count) == (Status.PENDING, Reason.RATE_LIMIT, 0)
    assert "(rate_limit)" in (await engine.explain(ids[-1])).next_step
    await seconds(30 * MINUTE)
    assert [await status(engine, id) for id in ids] == [Status.SENT] * 6
    to_ada = [one.content.body for one in provider.sent if one.address == ADA]
    assert to_ada == [str(n) for n in range(6)]
    assert provider.gaps[3:] == pytest.approx([300.0] * 3, abs=5)


async def test_the_limit_applies_to_the_recipient_s_id_if_there_is_one(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open(
        {"any": serving("any", provider, "email", "sms")}, limits={"recipient": {"most": 1}}
    )
    ada = {"id": "u-1", "email": ADA, "phone": "+15550100"}
    await engine.send(ada, channels=["email", "sms"], body="x")
    await engine.send({"email": ADA}, channel="email", body="x")
    await seconds(MINUTE)
    assert len(provider.sent) == 2


async def test_tenants_have_their_own_buckets_and_limits(harness: EngineHarness) -> None:
    limits = {
        "tenant": {"most": 2, "per_ms": "1h", "of": {"big": {"most": 5, "per_ms": "1h"}, "free": {"most": 0}}}
    }
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, limits=limits, working=False)
    for tenant in ("default", "big", "free", "small"):
        for n in range(8):
            await _submit(engine, tenant, f"p{n}@example.org")
    engine.start_worker()
    await seconds(MINUTE)
    sent = [one.tenant for one in provider.sent]
    counts = {tenant: sent.count(tenant) for tenant in ("default", "big", "free", "small")}
    assert counts == {"default": 2, "big": 5, "free": 8, "small": 2}


async def test_an_exempt_category_is_neither_held_nor_counted(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, limits={"recipient": {"most": 1}})
    for _ in range(3):
        await mail(engine, priority="critical")
    await mail(engine)
    await seconds(MINUTE)
    assert len(provider.sent) == 4


async def test_a_batch_needs_one_call_for_any_number_of_recipients(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()}, limits={"recipient": {"most": 1}}, working=False
    )
    for n in range(90):
        await mail(engine, to=f"p{n}@example.org")
    engine.start_worker()
    await seconds(2)
    assert (await engine.queue_counts())["sent"] == 90
    assert harness.store.calls["take_many"] == 1


async def test_without_limits_the_store_is_not_called(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    id = await mail(engine)
    await seconds(2)
    assert await status(engine, id) is Status.SENT
    assert harness.store.calls["take_many"] == 0


async def test_many_notifications_waiting_for_one_recipient_return_one_by_one(harness: EngineHarness) -> None:
    """Otherwise all of them would be claimed and postponed again for each one that is sent."""
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, limits={"recipient": {"most": 1, "per_ms": "10s"}})
    put_back = 0

    def count(settlement: Settlement, applied: bool) -> None:
        nonlocal put_back
        put_back += settlement.reason is Reason.RATE_LIMIT

    engine.on_settled = count
    await _one_after_another(engine, 60)
    await seconds(700)
    assert (await engine.queue_counts())["sent"] == 60
    assert [one.content.body for one in provider.sent] == [str(n) for n in range(60)]
    assert 59 <= put_back < 2 * 60


async def test_a_waiting_recipient_does_not_delay_others(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open(
        {"mail": provider}, limits={"recipient": {"most": 1}}, slots={"standard": 4}, working=False
    )
    for n in range(200):
        await mail(engine, body=str(n))
    late = await mail(engine, to=BOB)
    engine.start_worker()
    await seconds(20)
    assert await status(engine, late) is Status.SENT


async def test_a_notification_held_by_its_tenant_s_limit_uses_no_token_of_its_recipient(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider()
    engine = await harness.open(
        {"mail": provider},
        limits={"recipient": {"most": 1, "per_ms": "1d"}, "tenant": {"most": 1, "per_ms": "1m"}},
        working=False,
    )
    for to in (ADA, BOB):
        await mail(engine, to=to)
    engine.start_worker()
    await seconds(5 * MINUTE)
    assert sorted(one.address for one in provider.sent) == [ADA, BOB]


async def test_while_the_store_cannot_count_no_limit_is_exceeded(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, limits={"recipient": {"most": 1}})
    harness.store.away.add("take_many")
    limited, free = await mail(engine), await mail(engine, priority="critical")
    await seconds(10)
    assert (await status(engine, limited), await status(engine, free)) == (Status.PENDING, Status.SENT)
    harness.store.away.clear()
    await seconds(10)
    found = await engine.get(limited)
    assert (found.status, found.attempt_count) == (Status.SENT, 1)


async def test_limits_cover_all_workers_together(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    limits = {"recipient": {"most": 3}}
    engines = [await harness.open({"mail": provider}, limits=limits, working=False) for _ in range(3)]
    for n in range(12):
        await mail(engines[0], body=str(n))
    for engine in engines:
        engine.start_worker()
    await seconds(MINUTE)
    assert len(provider.sent) == 3


async def test_waiting_for_a_rate_limit_does_not_count_towards_the_age(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()},
        limits={"recipient": {"most": 1, "per_ms": "20m"}},
        rules=steady(max_age_ms="10m"),
    )
    ids = [await mail(engine) for _ in range(3)]
    await seconds(45 * MINUTE)
    assert [await status(engine, id) for id in ids] == [Status.SENT] * 3


# Hooks that return invalid facts --------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        RecipientFacts(postpone_ms=-5),
        RecipientFacts(postpone_ms=10**18),
        RecipientFacts(postpone_ms="soon"),  # type: ignore[arg-type]
        RecipientFacts(postpone_ms=True),
        RecipientFacts(skip="because"),  # type: ignore[arg-type]
        RecipientFacts(postpone_reason=3),  # type: ignore[arg-type]
        RecipientFacts(time_zone=5),  # type: ignore[arg-type]
        RecipientFacts(quiet_hours=("22:00", "07:00")),  # type: ignore[arg-type]
        "no",
        None,
    ],
)
async def test_invalid_facts_about_one_notification_postpone_only_that_one(
    harness: EngineHarness, nonsense: Any
) -> None:
    told: dict[str, Any] = {ADA: nonsense}

    def facts(claims: Sequence[Claim]) -> Any:
        return {c.id: told[c.address] for c in claims if c.address in told}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts))
    odd, fine = await mail(engine), await mail(engine, to=BOB)
    await seconds(20)
    assert (await status(engine, odd), await status(engine, fine)) == (Status.PENDING, Status.SENT)
    told.clear()
    await seconds(20)
    found = await engine.get(odd)
    assert (found.status, found.attempt_count) == (Status.SENT, 1)


async def test_a_hook_that_cancels_itself_counts_as_failed(harness: EngineHarness) -> None:
    broken = True

    async def facts(claims: Sequence[Claim]) -> Any:
        if broken:
            raise asyncio.CancelledError
        return {}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts))
    id = await mail(engine)
    await seconds(30)
    found = await engine.get(id)
    assert (found.status, found.attempt_count) == (Status.PENDING, 0)
    broken = False
    await seconds(20)
    assert await status(engine, id) is Status.SENT


# Settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"quiet_hours": {"start": "25:00"}}, "quiet_hours.start"),
        ({"quiet_hours": {"time_zone": "Mars/Olympus"}}, "quiet_hours.time_zone"),
        ({"quiet_hours": {"exempt_priorities": ["urgent"]}}, "quiet_hours.exempt_priorities"),
        ({"quiet_hours": {"from": "22:00"}}, "quiet_hours.from"),
        ({"limits": {"recipient": {"most": -1}}}, "limits.recipient.most"),
        ({"limits": {"recipient": {"per_ms": 0}}}, "limits.recipient.per_ms"),
        ({"limits": {"recipient": {"most": 1, "per_ms": "8d"}}}, "limits.recipient.per_ms"),
        ({"limits": {"tenant": {"burst": -1}}}, "limits.tenant.burst"),
        (
            {"limits": {"tenant": {"of": {"acme": {"most": 1, "per_ms": "never"}}}}},
            "limits.tenant.of.acme.per_ms",
        ),
        ({"limits": {"tenant": {"of": {"acme": {"most": -1}}}}}, "limits.tenant.of.acme.most"),
        ({"limits": {"tenant": {"of": {"acme": 5}}}}, "limits.tenant.of.acme"),
        ({"limits": {"tenant": {"exempt_priorities": ["urgent"]}}}, "limits.tenant.exempt_priorities"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Homing("memory:", clock=ManualClock(), **settings)
    assert refused.value.field == field


async def _one_after_another(engine: Homing, number: int) -> list[str]:
    """Sends this many numbered notifications, each in a different millisecond."""
    ids = []
    for n in range(number):
        ids.append(await mail(engine, body=str(n)))
        await seconds(0.002)
    return ids


async def _submit(engine: Homing, tenant: str, to: str) -> None:
    from homing import Content, Recipient, SendRequest

    await engine.of(tenant).submit(
        SendRequest(recipient=Recipient(email=to), channel="email", content=Content(body="x"))
    )
