"""A channel that is split between its providers: where notifications start and continue."""

from __future__ import annotations

from collections import Counter

from homing.core.notifications import Channel
from homing.core.routing.breaker import Phase
from support.engine_harness import EngineHarness, K, TimedProvider, mail, phase, seconds, serving


async def test_a_split_channel_starts_with_each_provider_by_its_weight(harness: EngineHarness) -> None:
    big, small, spare = TimedProvider("big"), TimedProvider("small"), TimedProvider("spare")
    engine = await harness.open(
        {
            "big": serving("big", big, "email", weight=3),
            "small": serving("small", small, "email", weight=1),
            "spare": serving("spare", spare, "email", weight=0),
        }
    )
    for _ in range(200):
        await mail(engine)
    await seconds(60)
    assert len(big.sent) + len(small.sent) == 200
    assert 120 <= len(big.sent) <= 180
    assert spare.sent == []


async def test_a_failure_continues_along_the_route_from_where_it_started(harness: EngineHarness) -> None:
    first, last = TimedProvider("first"), TimedProvider("last", usual=K.PROVIDER_FAULT)
    engine = await harness.open(
        {
            "first": serving("first", first, "email", weight=0),
            "last": serving("last", last, "email", weight=1),
        }
    )
    id = await mail(engine)
    await seconds(5)
    assert (await engine.get(id)).provider_names == ("last", "first")


async def test_while_a_breaker_is_open_the_other_providers_are_drawn(harness: EngineHarness) -> None:
    engine = await harness.open(
        {
            "a": serving("a", TimedProvider("a"), "email", weight=1),
            "b": serving("b", TimedProvider("b"), "email", weight=1),
        },
        working=False,
    )
    before = Counter([(await engine.get(await mail(engine))).provider for _ in range(40)])
    assert set(before) == {"a", "b"}
    await engine._breakers.force("a", Phase.OPEN, "ada")
    after = {(await engine.get(await mail(engine))).provider for _ in range(40)}
    assert after == {"b"}


async def test_with_a_forced_provider_none_is_drawn(harness: EngineHarness) -> None:
    engine = await harness.open(
        {
            "a": serving("a", TimedProvider("a"), "email", weight=1),
            "b": serving("b", TimedProvider("b"), "email", weight=0),
        },
        working=False,
    )
    assert {(await engine.get(await mail(engine, provider="b"))).provider for _ in range(10)} == {"b"}


async def test_a_trial_is_won_only_for_the_provider_that_the_notification_goes_to(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(
        {
            "a": serving("a", TimedProvider("a"), "email", weight=0),
            "b": serving("b", TimedProvider("b"), "email", weight=1),
            "c": serving("c", TimedProvider("c"), "email", weight=1),
        },
        working=False,
    )
    await engine.force_breaker("b", Phase.OPEN, who="ada")
    id = await mail(engine)
    while engine._roster.route_of(Channel.EMAIL, id)[0].provider != "b":  # where its rounds begin
        await engine.cancel(id)
        id = await mail(engine)
    assert (await engine.get(id)).provider == "c"
    await engine.force_breaker("b", None, who="ada")
    await engine.force_breaker("c", Phase.OPEN, who="ada")
    await engine._breakers.trip("a", "too many bounces", 1_000)
    await seconds(2)
    await engine.process()
    assert (await engine.get(id)).provider_names == ("b",)
    assert await phase(harness, "a") is Phase.OPEN
