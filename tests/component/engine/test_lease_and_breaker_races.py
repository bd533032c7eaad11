"""What changes between the claim of a notification and its send, and between its send and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from homing import DeliveryFailed, Outcome, Status
from homing.core.lifecycle.claims import Claim
from homing.core.retry.decide import RecipientFacts
from homing.core.routing.breaker import Phase
from homing.core.times import moment
from homing.engine.delivery.concurrency_limit import SlotWaits
from homing.engine.delivery.deliverer import ReadyClaim
from homing.providers.local.scripted import HANG
from homing.rehearsal.virtual_time import TASK_GROUP, VirtualLoop
from homing.testing.builders import a_claim_request
from support.batch_provider import BatchProvider
from support.engine_harness import (
    EngineHarness,
    K,
    RecipientHook,
    TimedProvider,
    mail,
    phase,
    seconds,
    serving,
    status,
    steady,
)


def stuck_after_first_claim() -> Callable[[str], Awaitable[None]]:
    """Returns a hook that lets the first claim pass and makes later ones wait for a minute."""
    claims = 0

    async def wait(operation: str) -> None:
        nonlocal claims
        claims += operation == "claim"
        if operation == "claim" and claims > 1:
            await seconds(60)

    return wait


async def test_a_failover_is_not_sent_if_the_lease_was_lost_before_it_was_recorded(
    harness: EngineHarness,
) -> None:
    """Another worker has the lease when the new provider is recorded. This worker cannot know it."""
    first, second = TimedProvider("first"), TimedProvider("second")
    engine = await harness.open({"first": first, "second": second}, rules=steady())
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    other = harness.store.twin()

    async def take_over(operation: str) -> None:
        if operation == "extend" and not taken:
            harness.clock.jump(3_600_000)
            taken.extend((await other.reclaim("w9", 10, 3_600_000)).claims)
            harness.clock.jump(-3_600_000)

    taken: list[Claim] = []
    harness.store.on_call = take_over
    id = await mail(engine)
    await seconds(2)
    assert [claim.id for claim in taken] == [id]
    assert first.times == second.times == []


async def test_a_send_does_not_start_if_its_lease_was_lost_before_it_was_extended(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    await mail(engine)
    [claim] = (await harness.store.claim(a_claim_request("standard.email", lease_ms=1_000))).claims
    await seconds(2)
    assert len((await harness.store.reclaim("w9", 10, 60_000)).claims) == 1
    deliverer = engine.worker._deliverer
    ready = ReadyClaim(claim, deliverer.policy(claim))
    assert await deliverer.attempt(ready, lambda one, settlement, task: None, SlotWaits()) is None
    assert provider.times == []


async def test_a_send_is_postponed_and_not_counted_if_the_store_cannot_extend_its_lease(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    await mail(engine)
    [claim] = (await harness.store.claim(a_claim_request("standard.email", lease_ms=1_000))).claims
    harness.store.away.add("extend")
    deliverer = engine.worker._deliverer
    ready = ReadyClaim(claim, deliverer.policy(claim))
    settled = await deliverer.attempt(ready, lambda one, settlement, task: None, SlotWaits())
    assert settled is not None
    assert (settled.status, settled.give_back, settled.attempt) == (Status.PENDING, True, None)
    assert settled.delay_ms > 0
    assert provider.times == []


@pytest.mark.parametrize("kind", [TimedProvider, BatchProvider])
async def test_the_latency_of_an_attempt_is_that_of_its_send(
    harness: EngineHarness, kind: type[TimedProvider]
) -> None:
    engine = await harness.open({"mail": kind("mail", latency_ms=150)})
    await seconds(60)
    id = await mail(engine)
    await seconds(1)
    assert [attempt.latency_ms for attempt in (await engine.history(id)).attempts] == [150]


async def test_a_provider_that_was_stopped_while_a_send_waited_for_a_slot_is_not_called(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(latency_ms=1_500)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=1)})
    await mail(engine)
    await seconds(0.5)
    waiting = asyncio.create_task(mail(engine, to="bob@example.org", synchronous=True))
    await seconds(0.5)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    with pytest.raises(DeliveryFailed):
        await waiting
    assert len(provider.times) == 1


async def test_a_send_after_a_long_wait_reads_the_breakers_again(harness: EngineHarness) -> None:
    """Another process stops the provider while this one waits for its directory and its next claim."""

    async def slow_facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        await seconds(7)
        return {}

    provider = TimedProvider()
    here = await harness.open(
        {"mail": provider},
        rules=steady(timeout_ms="60s"),
        directory=RecipientHook(slow_facts),
        working=False,
    )
    there = await harness.open({"mail": provider}, store=harness.store.twin(), working=False)
    harness.store.on_call = stuck_after_first_claim()
    harness.store.away.add("lead")  # upkeep reads the breakers too
    id = await mail(here)
    here.start_worker()
    await seconds(3)
    assert await status(there, id) is Status.SENDING
    await there.force_breaker("mail", Phase.OPEN, who="ada")
    await seconds(10)
    assert provider.times == []
    assert await status(there, id) is Status.PENDING


async def test_a_suspended_worker_blames_no_provider_for_attempts_that_timed_out_meanwhile(
    harness: EngineHarness,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    provider = BatchProvider(script=[HANG] * 10)
    joined = TASK_GROUP.set("suspended")
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="10s"))
    TASK_GROUP.reset(joined)
    for _ in range(10):
        await mail(engine)
    await seconds(1)
    loop.freeze("suspended")
    await seconds(60)
    loop.thaw("suspended")
    await seconds(5)
    assert len(provider.given_up) == 10
    assert await phase(harness) is Phase.CLOSED


async def test_a_failure_at_a_provider_whose_breaker_has_opened_moves_at_once(harness: EngineHarness) -> None:
    """The last failure opens the breaker. Its notification does not wait for the backoff of the policy."""
    first, second = TimedProvider("first", usual=K.TRANSIENT), TimedProvider("second")
    first.up = False
    engine = await harness.open(
        {"first": first, "second": second}, rules=steady(failover_after=50, max_attempts=9)
    )
    for _ in range(5):
        await mail(engine)
    await seconds(2)
    assert await phase(harness, "first") is Phase.OPEN
    assert len(second.times) >= 1


async def test_an_ambiguous_attempt_stays_at_its_provider_although_the_breaker_has_opened(
    harness: EngineHarness,
) -> None:
    """Without `on_timeout = "failover"`, another provider could deliver the same message a second time."""
    first, second = TimedProvider("first", usual=K.AMBIGUOUS), TimedProvider("second")
    first.up = False
    engine = await harness.open({"first": first, "second": second}, rules=steady(max_attempts=9))
    ids = [await mail(engine) for _ in range(5)]
    await seconds(2)
    assert await phase(harness, "first") is Phase.OPEN
    assert second.times == []
    assert {(await engine.get(id)).provider for id in ids} == {"first"}


async def test_a_notification_expires_at_once_if_every_provider_is_on_hold_beyond_its_expiry(
    harness: EngineHarness,
) -> None:
    busy = Outcome(K.THROTTLED, retry_after_ms=3_600_000)
    first, second = TimedProvider("first", usual=busy), TimedProvider("second", usual=busy)
    engine = await harness.open({"first": first, "second": second}, rules=steady(max_attempts=9))
    id = await mail(engine, expires_at=moment(harness.clock.now_ms() + 60_000))
    await seconds(5)
    assert (await engine.get(id)).status is Status.EXPIRED
    assert (len(first.times), len(second.times)) == (1, 1)


async def test_a_notification_on_hold_is_not_claimed_in_vain_because_a_breaker_allows_a_trial(
    harness: EngineHarness,
) -> None:
    """The first provider is on hold for an hour, so its trial is not for this notification.

    Only the second one counts, which is stopped until an operator releases it.
    """
    first = TimedProvider("first", script=[Outcome(K.THROTTLED, retry_after_ms=3_600_000)], usual=K.TRANSIENT)
    second = TimedProvider("second", usual=K.TRANSIENT)
    first.up = False
    engine = await harness.open({"first": first, "second": second}, rules=steady(max_attempts=9))
    id = await mail(engine)
    await seconds(1)
    await engine.force_breaker("second", Phase.OPEN, who="ada")
    others = [await mail(engine, provider="first") for _ in range(5)]
    await seconds(1)
    for other in others:
        await engine.cancel(other)
    await seconds(100)
    assert await phase(harness, "first") is Phase.OPEN
    harness.store.calls.clear()
    await seconds(300)
    assert await status(engine, id) is Status.RETRYING
    assert 1 <= harness.store.calls["settle"] <= 15
