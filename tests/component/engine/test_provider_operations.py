"""Operators' view of providers: list, check, test message, and forced breakers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from homing import Channel, InvalidRequest, Outcome, RateLimit, Status
from homing.core.notifications import OutcomeKind, Recipient
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import Phase
from homing.core.times import moment
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import START_MS
from support.engine_harness import ADA, EngineHarness, K, TimedProvider, mail, seconds, serving, status

NOW = moment(START_MS)


class HealthCheckedProvider(ScriptedProvider):
    """Returns the health check that the test has set."""

    def __init__(self, answer: Any) -> None:
        super().__init__("checked")
        self.answer = answer

    async def check(self) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer)


async def test_a_provider_is_listed_with_its_position_on_every_route(harness: EngineHarness) -> None:
    engine = await harness.open(
        {
            "a": serving("a", TimedProvider("a"), "email", weight=3, max_in_flight=5, rate=RateLimit(2.5, 4)),
            "b": serving("b", TimedProvider("b"), "email", "sms", weight=1),
        },
        working=False,
        routes={"email": ["b", "a"]},
    )
    a, b = await engine.providers()
    assert (a.id, a.kind, a.channels, a.weight) == ("a", "TimedProvider", (Channel.EMAIL,), 3)
    assert (a.routes, b.routes) == ({Channel.EMAIL: 2}, {Channel.EMAIL: 1, Channel.SMS: 1})
    assert (a.max_in_flight, a.rate_per_second, a.rate_burst) == (5, 2.5, 4)
    assert (b.rate_per_second, b.breaker.phase, b.breaker.forced) == (None, Phase.CLOSED, False)


async def test_an_automatically_opened_breaker_shows_until_when(harness: EngineHarness) -> None:
    provider = TimedProvider("mail", usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider})
    for _ in range(5):
        await mail(engine)
    await seconds(2)
    [found] = await engine.providers()
    assert (found.breaker.phase, found.breaker.forced) == (Phase.OPEN, False)
    assert found.breaker.until is not None
    assert found.breaker.since is not None
    assert found.breaker.until == found.breaker.since + timedelta(seconds=60)
    began, tried = found.breaker.since, len(provider.times)
    await seconds(600)
    [found] = await engine.providers()
    assert len(provider.times) > tried, "trials have failed since"
    assert (found.breaker.phase is Phase.CLOSED, found.breaker.since) == (False, began)
    verdict = (await engine.overview()).verdict
    assert f"since {began:%H:%M}" in verdict


async def test_a_forced_breaker_records_who_when_and_why(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider("mail")}, working=False)
    await seconds(7)
    await engine.force_breaker("mail", Phase.OPEN, who="ada", why="maintenance until nine")
    other = await harness.open({"mail": TimedProvider("mail")}, working=False)
    [found] = await other.providers()
    assert (found.breaker.phase, found.breaker.forced, found.breaker.by) == (Phase.OPEN, True, "ada")
    assert (found.breaker.why, found.breaker.until) == ("maintenance until nine", None)
    assert found.breaker.since == NOW + timedelta(seconds=7)
    await engine.force_breaker("mail", None, who="bob")
    [found] = await other.providers()
    assert (found.breaker.phase, found.breaker.forced, found.breaker.why) == (Phase.CLOSED, False, "")


async def test_a_forced_breaker_is_published_to_the_sinks(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider("mail")})
    await engine.force_breaker("mail", Phase.OPEN, who="ada", why="maintenance")
    await engine.force_breaker("mail", None, who="bob")
    await seconds(5)
    held, back = harness.alerts("BreakerForced")
    assert (held["provider"], held["phase"], held["who"], held["why"]) == (
        "mail",
        "open",
        "ada",
        "maintenance",
    )
    assert held["message"] == "breaker of mail is forced open by ada: maintenance"
    assert back["message"] == "breaker of mail is returned to automatic control by bob"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (True, ""),
        (False, "the health check failed"),
        (OSError("no route"), "no route"),
        (OSError(), "OSError"),
    ],
)
async def test_a_failed_check_reports_the_error(harness: EngineHarness, answer: Any, problem: str) -> None:
    engine = await harness.open(
        {"x": HealthCheckedProvider(answer), "y": HealthCheckedProvider(True)}, working=False
    )
    x, y = await engine.check_providers()
    assert (x.provider, x.usable, x.problem) == ("x", not problem, problem)
    assert y.usable
    assert await engine.check_providers("X") == (x,)


async def test_a_test_message_uses_only_that_provider_and_is_not_stored(harness: EngineHarness) -> None:
    a, b = TimedProvider("a"), TimedProvider("b", [Outcome(OutcomeKind.ACCEPTED, provider_message_id="m-1")])
    engine = await harness.open({"a": serving("a", a), "b": serving("b", b)})
    tried = await engine.try_provider("b", ADA)
    assert (tried.provider, tried.channel, tried.outcome) == ("b", Channel.EMAIL, K.ACCEPTED)
    assert (tried.provider_message_id, tried.recipient) == ("m-1", Recipient(email=ADA))
    await seconds(60)
    [delivery] = b.sent
    assert (delivery.address, delivery.type, delivery.attempt) == (ADA, "homing_test", 1)
    assert a.sent == []
    assert (await engine.list()).items == ()


async def test_a_failed_test_message_is_not_retried_and_does_not_count_for_the_breaker(
    harness: EngineHarness,
) -> None:
    bad = TimedProvider(
        "bad", usual=Outcome(OutcomeKind.PROVIDER_FAULT, error_code="401", error="who are you?")
    )
    engine = await harness.open({"bad": serving("bad", bad)})
    for _ in range(10):
        tried = await engine.try_provider("bad", ADA)
        assert (tried.outcome, tried.error_code, tried.error) == (K.PROVIDER_FAULT, "401", "who are you?")
    await seconds(60)
    assert len(bad.times) == 10
    assert (await engine.providers())[0].breaker.phase is Phase.CLOSED


async def test_a_test_message_reaches_a_provider_whose_breaker_is_forced_open(harness: EngineHarness) -> None:
    mended = TimedProvider("mended")
    engine = await harness.open({"mended": serving("mended", mended)})
    await engine.force_breaker("mended", Phase.OPEN, who="ada")
    assert (await engine.try_provider("mended", ADA)).outcome is K.ACCEPTED
    id = await mail(engine)
    await seconds(30)
    assert await status(engine, id) is Status.PENDING


async def test_a_provider_that_raises_or_hangs_gives_an_outcome(harness: EngineHarness) -> None:
    class Raising(ScriptedProvider):
        async def send(self, delivery: Delivery) -> Outcome:
            raise RuntimeError("boom")

    engine = await harness.open(
        {
            "raises": serving("raises", Raising()),
            "hangs": serving("hangs", TimedProvider("hangs", latency_ms=10**7)),
        },
        working=False,
    )
    assert (await engine.try_provider("raises", ADA)).outcome is K.AMBIGUOUS
    hung = await engine.try_provider("hangs", ADA)
    assert (hung.outcome, hung.error_code, hung.latency_ms) == (K.AMBIGUOUS, "timeout", 30_000)


@pytest.mark.parametrize(
    ("provider", "address", "channel", "field"),
    [
        ("nobody", ADA, None, "provider"),
        ("both", ADA, None, "channel"),
        ("both", ADA, Channel.PUSH, "channel"),
        ("both", "not an address", Channel.EMAIL, "recipient.email"),
        ("both", "call me", Channel.SMS, "recipient.phone"),
    ],
)
async def test_an_invalid_test_message_is_refused(
    harness: EngineHarness, provider: str, address: str, channel: Channel | None, field: str
) -> None:
    both = TimedProvider("both")
    engine = await harness.open({"both": serving("both", both, "email", "sms")}, working=False)
    with pytest.raises(InvalidRequest) as refused:
        await engine.try_provider(provider, address, channel)
    assert refused.value.field == field
    assert both.sent == []


async def test_a_breaker_that_another_process_opened_a_moment_ago_holds_a_notification_back(
    harness: EngineHarness,
) -> None:
    one = await harness.open({"mail": ScriptedProvider()}, working=False)
    two = await harness.open({"mail": ScriptedProvider()}, working=False)
    waiting = await two.get(await mail(two))
    assert await two.find_hold(waiting) is None
    await one.force_breaker("mail", Phase.OPEN, who="ada")
    hold = await two.find_hold(waiting)
    assert hold is not None
    assert (hold.provider, hold.until) == ("mail", None)
    await one.force_breaker("mail", None, who="ada")
    assert await two.find_hold(waiting) is None
