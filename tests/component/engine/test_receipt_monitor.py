"""A provider that accepts everything while its receipts turn bad or stop is paused."""

from __future__ import annotations

from typing import Any

import pytest

from homing import Homing
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.routing.breaker import Phase
from support.callback_provider import CallbackProvider, event_about, signed_callback
from support.engine_harness import HOUR, MINUTE, EngineHarness, mail, phase, seconds

pytestmark = pytest.mark.usefixtures("poll_rarely")

E = ReceiptEvent
QUICK: dict[str, Any] = {"bad_of": 10, "stopped_of": 20, "stopped_after_ms": "30m"}


async def send_and_tell(
    engine: Homing, post: CallbackProvider, events: list[ReceiptEvent | None], **fields: Any
) -> None:
    """Sends one email for each event and lets the provider report that event."""
    first = len(post.sent)
    for _ in events:
        await mail(engine)
    await seconds(1)
    for delivery, event in zip(post.sent[first:], events, strict=False):
        if event is not None:
            await engine.handle_callback(post.name, signed_callback([event_about(delivery, event, **fields)]))


async def open_two(
    harness: EngineHarness, **receipts: Any
) -> tuple[Homing, CallbackProvider, CallbackProvider]:
    post, spare = CallbackProvider("post"), CallbackProvider("spare")
    engine = await harness.open({"post": post, "spare": spare}, receipts={**QUICK, **receipts})
    await seconds(2)
    return engine, post, spare


async def test_receipts_that_turn_bad_open_the_breaker_with_that_reason(harness: EngineHarness) -> None:
    engine, post, spare = await open_two(harness)
    await send_and_tell(engine, post, [E.FAILED] * 12)
    assert await phase(harness, "post") is Phase.CLOSED
    await seconds(70)
    assert await phase(harness, "post") is Phase.OPEN
    alert = next(a for a in harness.alerts("BreakerChanged") if a["provider"] == "post")
    assert "100 % of 12 receipts" in alert["message"]
    taken = len(post.sent)
    await mail(engine)
    await seconds(1)
    assert len(post.sent) == taken
    assert spare.sent


async def test_that_pause_is_ended_by_time_but_not_by_a_good_health_check(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness)
    await send_and_tell(engine, post, [E.FAILED] * 12)
    await seconds(70)
    await seconds(8 * MINUTE)
    assert await phase(harness, "post") is Phase.OPEN
    await seconds(3 * MINUTE)
    await mail(engine, provider="post")
    await seconds(2)
    assert await phase(harness, "post") is Phase.CLOSED
    await seconds(5 * MINUTE)
    assert await phase(harness, "post") is Phase.CLOSED, "receipts from before the pause no longer count"


async def test_errors_of_recipients_never_open_a_breaker(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness)
    await send_and_tell(engine, post, [E.FAILED] * 30, outcome="bad_recipient")
    await seconds(5 * MINUTE)
    assert await phase(harness, "post") is Phase.CLOSED


async def test_some_bad_receipts_among_good_ones_open_nothing(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness)
    await send_and_tell(engine, post, [E.FAILED, E.DELIVERED, E.DELIVERED] * 8)
    await seconds(5 * MINUTE)
    assert await phase(harness, "post") is Phase.CLOSED


async def test_too_few_receipts_open_nothing(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness)
    await send_and_tell(engine, post, [E.FAILED] * 9)
    await seconds(5 * MINUTE)
    assert await phase(harness, "post") is Phase.CLOSED


async def test_receipts_that_stop_open_the_breaker_of_a_provider_that_used_to_send_them(
    harness: EngineHarness,
) -> None:
    engine, post, _ = await open_two(harness)
    await send_and_tell(engine, post, [E.DELIVERED] * 40)
    await seconds(HOUR)
    assert await phase(harness, "post") is Phase.CLOSED
    await send_and_tell(engine, post, [None] * 30)
    await seconds(25 * MINUTE)
    assert await phase(harness, "post") is not Phase.CLOSED
    await seconds(10 * MINUTE)
    assert await phase(harness, "post") is not Phase.CLOSED
    [alert] = [a for a in harness.alerts("BreakerChanged") if "no receipt" in a["message"]]
    assert alert["provider"] == "post"


async def test_a_provider_that_never_sent_receipts_is_not_paused(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness)
    await send_and_tell(engine, post, [None] * 40)
    await seconds(HOUR)
    await send_and_tell(engine, post, [None] * 30)
    await seconds(40 * MINUTE)
    assert await phase(harness, "post") is Phase.CLOSED


async def test_a_forced_breaker_stays_as_it_is(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness)
    await engine.force_breaker("post", Phase.CLOSED, who="ada")
    await send_and_tell(engine, post, [E.FAILED] * 12)
    await seconds(5 * MINUTE)
    state = (await harness.store.breakers())["post"]
    assert (state.forced, state.phase) == (Phase.CLOSED, Phase.CLOSED)


async def test_a_pause_of_zero_disables_this(harness: EngineHarness) -> None:
    engine, post, _ = await open_two(harness, pause_ms=0)
    await send_and_tell(engine, post, [E.FAILED] * 30)
    await seconds(5 * MINUTE)
    assert await phase(harness, "post") is Phase.CLOSED
