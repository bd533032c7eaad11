"""The worker's estimate of the store's time: slow calls must not change what is sent, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from homing import Outcome, Status
from homing.core.routing.breaker import Phase
from homing.core.times import moment
from support.engine_harness import (
    EngineHarness,
    K,
    TimedProvider,
    mail,
    seconds,
    status,
    steady,
)


def slow(operations: Collection[str], duration_s: float) -> Callable[[str], Awaitable[None]]:
    """Returns a hook that makes calls of these operations wait before the store performs them."""

    async def wait(operation: str) -> None:
        if operation in operations:
            await seconds(duration_s)

    return wait


async def test_a_notification_does_not_expire_early_because_its_claim_was_slow(
    harness: EngineHarness,
) -> None:
    """The claim waits 4 s for the store, so 3 s of 7 are left: the worker must not count the 4 s twice."""
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    id = await mail(engine, expires_at=moment(harness.clock.now_ms() + 7_000))
    harness.store.on_call = slow({"claim"}, 4)
    engine.start_worker()
    await seconds(10)
    assert await status(engine, id) is Status.SENT
    assert provider.times == [4.0]


async def test_a_slow_claim_does_not_cut_a_retry_after_short(harness: EngineHarness) -> None:
    """While the substitute is stopped, the notification waits for the end of the first provider's hold."""
    first = TimedProvider("first", script=[Outcome(K.THROTTLED, retry_after_ms=40_000)])
    second = TimedProvider("second", usual=K.TRANSIENT)
    engine = await harness.open(
        {"first": first, "second": second}, rules=steady(max_attempts=9, failover_after=1)
    )
    await engine.force_breaker("second", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(5)
    harness.store.on_call = slow({"claim", "reclaim"}, 15)
    await seconds(120)
    assert await status(engine, id) is Status.SENT
    assert first.gaps[0] >= 40
