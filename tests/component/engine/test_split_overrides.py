"""An operator's override of a channel's split: who starts where, for how long, and in which process."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from homing.core.errors import InvalidRequest, NotFound
from homing.core.notifications import Channel
from homing.engine.engine import Engine
from support.engine_harness import EngineHarness, K, TimedProvider, mail, seconds, serving

HOUR = timedelta(hours=1)


def two(weights: tuple[int | None, int | None] = (None, None), **usual: Any) -> dict[str, Any]:
    return {
        name: serving(name, TimedProvider(name, **usual), "email", weight=weight)
        for name, weight in zip("ab", weights, strict=True)
    }


async def starts(engine: Engine, number: int = 40) -> Counter[str]:
    return Counter([(await engine.get(await mail(engine))).provider for _ in range(number)])


async def test_an_override_decides_where_new_notifications_start_until_it_ends(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(two(), working=False)
    assert await starts(engine) == {"a": 40}
    view = await engine.splits.set("email", {"a": 0, "b": 1}, who="ada", why="a is slow", lasting=HOUR)
    assert view.shares == {"a": 0.0, "b": 100.0}
    assert await starts(engine) == {"b": 40}
    await seconds(3_599)
    assert await starts(engine, 1) == {"b": 1}
    await seconds(2)
    assert await starts(engine) == {"a": 40}, "it ends by itself"
    assert (await engine.splits.list())[0].override is None


async def test_shares_replace_the_weights_of_the_settings(harness: EngineHarness) -> None:
    engine = await harness.open(two((1, 0)), working=False)
    await engine.splits.set("email", {"a": 1, "b": 3}, who="ada", why="try b", lasting=HOUR)
    found = await starts(engine, 200)
    assert 120 <= found["b"] <= 180
    await engine.splits.reset("email", who="bob")
    assert await starts(engine) == {"a": 40}


async def test_a_notification_keeps_the_start_of_its_route_when_the_split_changes(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(two(usual=K.TRANSIENT), working=False)
    before = await mail(engine)
    await seconds(1)
    await engine.splits.set("email", {"b": 1}, who="ada", why="a is slow", lasting=HOUR)
    during = await mail(engine)
    await seconds(1)
    await engine.splits.reset("email", who="ada")
    after = await mail(engine)
    for _ in range(3):
        await seconds(7_200)
        await engine.process()
    names = {id: (await engine.get(id)).provider_names[:3] for id in (before, during, after)}
    assert names == {
        before: ("a", "b", "a"),
        during: ("b", "a", "b"),
        after: ("a", "b", "a"),
    }


async def test_another_process_follows_within_five_seconds(harness: EngineHarness) -> None:
    one = await harness.open(two(), working=False)
    other = await harness.open(two(), working=False)
    await starts(other, 1)
    await one.splits.set("email", {"b": 1}, who="ada", why="a is slow", lasting=HOUR)
    await seconds(5)
    assert await starts(other) == {"b": 40}
    await one.splits.reset("email", who="ada")
    await seconds(5)
    assert await starts(other) == {"a": 40}


async def test_an_override_is_shown_with_its_author_reason_and_end(harness: EngineHarness) -> None:
    engine = await harness.open(two(), working=False)
    await engine.splits.set("email", {"a": 1, "b": 4}, who="ada", why="a is slow", lasting=HOUR)
    (view,) = await engine.splits.list()
    assert view.override is not None
    assert (view.override.by, view.override.why) == ("ada", "a is slow")
    assert view.override.until - view.override.since == HOUR
    assert view.shares == {"a": 20.0, "b": 80.0}
    assert {p.id: p.splits for p in await engine.providers()} == {
        name: {Channel.EMAIL: view.override} for name in "ab"
    }
    assert (await engine.overview()).of(Channel.EMAIL).split == view.override
    explained = await engine.explain(await mail(engine))
    assert explained.split == view.override
    pinned = await engine.explain(await mail(engine, provider="b"))
    assert pinned.split is None


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("channel", {"channel": "push"}),
        ("channel", {"channel": "fax"}),
        ("shares", {"shares": {"c": 1}}),
        ("shares", {"shares": {"a": 0}}),
        ("shares", {"shares": {"a": -1}}),
        ("shares", {"shares": {"a": True}}),
        ("why", {"why": " "}),
        ("lasting", {"lasting": timedelta(0)}),
        ("lasting", {"lasting": timedelta(days=31)}),
    ],
)
async def test_an_invalid_override_changes_nothing(
    harness: EngineHarness, field: str, given: dict[str, Any]
) -> None:
    engine = await harness.open(two(), working=False)
    wanted = {"channel": "email", "shares": {"b": 1}, "why": "x", "lasting": HOUR, **given}
    with pytest.raises(InvalidRequest) as refused:
        await engine.splits.set(**wanted, who="ada")
    assert refused.value.field == field
    assert (await engine.splits.list())[0].override is None
    with pytest.raises(NotFound):
        await engine.splits.reset("email", who="ada")
