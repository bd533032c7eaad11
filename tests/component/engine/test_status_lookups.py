"""Look-ups: providers are asked about notifications without receipts, but not too often."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec import convert

from homing import Homing
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import Status
from homing.core.routing.breaker import Phase
from support.callback_provider import (
    LOST_ANSWER,
    CallbackProvider,
    LookupProvider,
    event_about,
    signed_callback,
)
from support.engine_harness import HOUR, MINUTE, EngineHarness, mail, seconds, status, steady

pytestmark = pytest.mark.usefixtures("poll_rarely")

E = ReceiptEvent
HOLD = steady(on_timeout="hold")


async def in_doubt(harness: EngineHarness, **settings: Any) -> tuple[Homing, LookupProvider, str]:
    """Sends one email whose response is lost."""
    post = LookupProvider("post", [LOST_ANSWER])
    engine = await harness.open({"post": post}, rules=HOLD, **settings)
    id = await mail(engine)
    await seconds(1)
    assert await status(engine, id) is Status.IN_DOUBT
    return engine, post, id


@pytest.mark.parametrize(
    ("answer", "ends_as"),
    [(E.SENT, Status.SENT), (E.DELIVERED, Status.DELIVERED), (None, Status.IN_DOUBT)],
)
async def test_a_look_up_resolves_a_notification_in_doubt(
    harness: EngineHarness, answer: Any, ends_as: Status
) -> None:
    engine, post, id = await in_doubt(harness)
    post.answers[id] = answer
    await seconds(3 * MINUTE)
    assert await status(engine, id) is ends_as
    _, delivery, message_id = post.asked[0]
    assert (delivery.notification_id, delivery.attempt, message_id) == (id, 1, None)
    assert (delivery.address, delivery.content.body) == ("ada@example.org", "Hello")


async def test_a_message_that_never_reached_the_vendor_is_sent_again(harness: EngineHarness) -> None:
    engine, post, id = await in_doubt(harness)
    post.answers[id] = E.FAILED
    await seconds(3 * MINUTE)
    assert await status(engine, id) is Status.SENT
    assert [delivery.attempt for delivery in post.sent] == [1, 2]


@pytest.mark.parametrize(
    ("outcome", "ends_as", "sends"),
    [("bad_content", Status.FAILED, 1), ("provider_fault", Status.FAILED, 1), ("transient", Status.SENT, 2)],
)
async def test_a_failure_found_by_a_look_up_is_handled_by_its_class(
    harness: EngineHarness, outcome: str, ends_as: Status, sends: int
) -> None:
    engine, post, id = await in_doubt(harness)
    post.answers[id] = convert(
        {"provider": "post", "at": 0, **event_about(post.sent[0], E.FAILED, outcome=outcome)}, Receipt
    )
    await seconds(3 * MINUTE)
    assert (await status(engine, id), len(post.sent)) == (ends_as, sends)
    assert len(harness.alerts("ProviderFault")) == (outcome == "provider_fault")


async def test_a_sent_notification_without_receipts_is_looked_up_by_its_message_id(
    harness: EngineHarness,
) -> None:
    post = LookupProvider("post")
    engine = await harness.open({"post": post})
    id = await mail(engine)
    post.answers[id] = E.DELIVERED
    await seconds(29 * MINUTE)
    assert post.asked == []
    await seconds(3 * MINUTE)
    assert await status(engine, id) is Status.DELIVERED
    assert [message_id for _, _, message_id in post.asked] == ["post-1"]


async def test_a_notification_with_receipts_is_not_looked_up(harness: EngineHarness) -> None:
    post = LookupProvider("post")
    engine = await harness.open({"post": post})
    await mail(engine)
    await seconds(20 * MINUTE)
    await engine.handle_callback("post", signed_callback([event_about(post.sent[0], E.DELIVERED)]))
    await seconds(HOUR)
    assert post.asked == []


async def test_the_intervals_grow_and_come_to_an_end(harness: EngineHarness) -> None:
    _, post, _ = await in_doubt(harness, look_ups={"until_ms": "20m"})
    await seconds(40 * MINUTE)
    times = [at for at, _, _ in post.asked]
    assert len(times) == 5  # 1, 2, 4, 8, 16 minutes
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(later >= 1.4 * earlier for earlier, later in pairwise(pauses))
    assert times[-1] < 20 * MINUTE


async def test_of_several_workers_only_one_looks_up(harness: EngineHarness) -> None:
    _, post, _ = await in_doubt(harness)
    await harness.open({"post": post}, rules=HOLD)
    await seconds(10 * MINUTE)
    assert len(post.asked) == 4  # 1, 2, 4, 8 minutes


async def test_the_number_of_look_ups_per_round_is_limited(harness: EngineHarness) -> None:
    post = LookupProvider("post", [LOST_ANSWER] * 4)
    engine = await harness.open({"post": post}, rules=HOLD, look_ups={"per_round": 3})
    for _ in range(4):
        await mail(engine)
    await seconds(2.5 * MINUTE)
    assert len(post.asked) == 3


async def test_a_provider_that_is_paused_is_not_asked(harness: EngineHarness) -> None:
    engine, post, _ = await in_doubt(harness)
    await engine.force_breaker("post", Phase.OPEN, who="ada")
    await seconds(10 * MINUTE)
    assert post.asked == []


@pytest.mark.parametrize("answer", [ConnectionError("ada@example.org is unknown"), {"status": "fine"}])
async def test_a_provider_that_raises_or_returns_nonsense_changes_nothing(
    harness: EngineHarness, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    engine, post, id = await in_doubt(harness)
    other = await mail(engine)
    post.answers[id] = answer
    await seconds(35 * MINUTE)
    assert await status(engine, id) is Status.IN_DOUBT
    assert {delivery.notification_id for _, delivery, _ in post.asked} == {id, other}
    assert "ada@example.org" not in caplog.text


async def test_zero_disables_look_ups(harness: EngineHarness) -> None:
    _, post, _ = await in_doubt(harness, look_ups={"doubt_after_ms": 0})
    await seconds(10 * MINUTE)
    assert post.asked == []


async def test_an_unavailable_store_costs_one_round(harness: EngineHarness) -> None:
    engine, post, id = await in_doubt(harness)
    post.answers[id] = E.SENT
    harness.store.away.add("lead")
    await seconds(90)
    harness.store.away.clear()
    await seconds(4 * MINUTE)
    assert await status(engine, id) is Status.SENT


async def test_without_a_provider_that_supports_look_ups_nothing_runs(harness: EngineHarness) -> None:
    engine = await harness.open({"post": CallbackProvider("post")})
    await mail(engine)
    await seconds(40 * MINUTE)
    assert not engine._look_ups.possible
