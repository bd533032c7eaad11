"""Look-ups: whoever can be asked is asked about what nothing is heard of, and is not pestered."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec import convert

from homing import Homing
from homing.core.breaker import Phase
from homing.core.model import Receipt, ReceiptEvent, Status
from support.callback_provider import LOST_ANSWER, Answering, Postman, signed, told
from support.engine_world import HOUR, MINUTE, World, mail, seconds, status, steady

pytestmark = pytest.mark.usefixtures("poll_rarely")

E = ReceiptEvent
HOLD = steady(on_timeout="hold")


async def in_doubt(world: World, **settings: Any) -> tuple[Homing, Answering, str]:
    """One email whose send was cut off."""
    post = Answering("post", [LOST_ANSWER])
    engine = await world.open({"post": post}, rules=HOLD, **settings)
    id = await mail(engine)
    await seconds(1)
    assert await status(engine, id) is Status.IN_DOUBT
    return engine, post, id


@pytest.mark.parametrize(
    ("answer", "ends_as"),
    [(E.SENT, Status.SENT), (E.DELIVERED, Status.DELIVERED), (None, Status.IN_DOUBT)],
)
async def test_a_doubt_is_resolved_by_asking(world: World, answer: Any, ends_as: Status) -> None:
    engine, post, id = await in_doubt(world)
    post.answers[id] = answer
    await seconds(3 * MINUTE)
    assert await status(engine, id) is ends_as
    _, delivery, message_id = post.asked[0]
    assert (delivery.notification_id, delivery.attempt, message_id) == (id, 1, None)
    assert (delivery.address, delivery.content.body) == ("ada@example.org", "Hello")


async def test_one_that_never_left_is_sent_after_all(world: World) -> None:
    engine, post, id = await in_doubt(world)
    post.answers[id] = E.FAILED
    await seconds(3 * MINUTE)
    assert await status(engine, id) is Status.SENT
    assert [delivery.attempt for delivery in post.sent] == [1, 2]


@pytest.mark.parametrize(
    ("outcome", "ends_as", "sends"),
    [("bad_content", Status.FAILED, 1), ("provider_fault", Status.FAILED, 1), ("transient", Status.SENT, 2)],
)
async def test_a_failure_that_was_asked_for_follows_its_class(
    world: World, outcome: str, ends_as: Status, sends: int
) -> None:
    engine, post, id = await in_doubt(world)
    post.answers[id] = convert(
        {"provider": "post", "at": 0, **told(post.sent[0], E.FAILED, outcome=outcome)}, Receipt
    )
    await seconds(3 * MINUTE)
    assert (await status(engine, id), len(post.sent)) == (ends_as, sends)
    assert len(world.alerts("ProviderFault")) == (outcome == "provider_fault")


async def test_one_that_was_sent_and_is_long_silent_is_asked_about_by_its_message_id(world: World) -> None:
    post = Answering("post")
    engine = await world.open({"post": post})
    id = await mail(engine)
    post.answers[id] = E.DELIVERED
    await seconds(29 * MINUTE)
    assert post.asked == []
    await seconds(3 * MINUTE)
    assert await status(engine, id) is Status.DELIVERED
    assert [message_id for _, _, message_id in post.asked] == ["post-1"]


async def test_one_of_which_something_was_heard_is_left_alone(world: World) -> None:
    post = Answering("post")
    engine = await world.open({"post": post})
    await mail(engine)
    await seconds(20 * MINUTE)
    await engine.hear("post", signed([told(post.sent[0], E.DELIVERED)]))
    await seconds(HOUR)
    assert post.asked == []


async def test_the_pauses_grow_and_come_to_an_end(world: World) -> None:
    _, post, _ = await in_doubt(world, look_ups={"until_ms": "20m"})
    await seconds(40 * MINUTE)
    times = [at for at, _, _ in post.asked]
    assert len(times) == 5  # 1, 2, 4, 8, 16 minutes
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(later >= 1.4 * earlier for earlier, later in pairwise(pauses))
    assert times[-1] < 20 * MINUTE


async def test_with_several_workers_one_asks(world: World) -> None:
    _, post, _ = await in_doubt(world)
    await world.open({"post": post}, rules=HOLD)
    await seconds(10 * MINUTE)
    assert len(post.asked) == 4  # 1, 2, 4, 8 minutes


async def test_no_more_than_so_many_are_asked_about_in_a_round(world: World) -> None:
    post = Answering("post", [LOST_ANSWER] * 4)
    engine = await world.open({"post": post}, rules=HOLD, look_ups={"per_round": 3})
    for _ in range(4):
        await mail(engine)
    await seconds(2.5 * MINUTE)
    assert len(post.asked) == 3


async def test_a_provider_that_is_paused_is_not_asked(world: World) -> None:
    engine, post, _ = await in_doubt(world)
    await engine.force_breaker("post", Phase.OPEN, who="ada")
    await seconds(10 * MINUTE)
    assert post.asked == []


@pytest.mark.parametrize("answer", [ConnectionError("ada@example.org is unknown"), {"status": "fine"}])
async def test_a_provider_that_raises_or_answers_nonsense_changes_nothing(
    world: World, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    engine, post, id = await in_doubt(world)
    other = await mail(engine)
    post.answers[id] = answer
    await seconds(35 * MINUTE)
    assert await status(engine, id) is Status.IN_DOUBT
    assert {delivery.notification_id for _, delivery, _ in post.asked} == {id, other}
    assert "ada@example.org" not in caplog.text


async def test_zero_turns_it_off(world: World) -> None:
    _, post, _ = await in_doubt(world, look_ups={"doubt_after_ms": 0})
    await seconds(10 * MINUTE)
    assert post.asked == []


async def test_a_store_that_is_away_costs_a_round(world: World) -> None:
    engine, post, id = await in_doubt(world)
    post.answers[id] = E.SENT
    world.store.away.add("lead")
    await seconds(90)
    world.store.away.clear()
    await seconds(4 * MINUTE)
    assert await status(engine, id) is Status.SENT


async def test_where_nobody_can_be_asked_nothing_runs(world: World) -> None:
    engine = await world.open({"post": Postman("post")})
    await mail(engine)
    await seconds(40 * MINUTE)
    assert not engine._look_ups.possible
