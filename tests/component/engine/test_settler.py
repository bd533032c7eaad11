"""Settlements are written in batches, and a problem with one delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from homing.core.errors import StoreError, StoreRejected
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.notifications import Status
from homing.core.ports.stores import Retention
from homing.engine.delivery.settler import Settler
from homing.providers.local.scripted import ScriptedProvider
from homing.testing.builders import a_claim_request, a_notification, a_submission, dead, retry_in, sent
from support.engine_harness import EngineHarness, WatchedStore, mail, seconds


async def claimed(store: WatchedStore, number: int) -> tuple[Claim, ...]:
    await store.accept([a_submission(a_notification()) for _ in range(number)])
    return (await store.claim(a_claim_request())).claims


class FaultyStore(WatchedStore):
    """Raises on some settlements, in a way that no store should."""

    poison: frozenset[str] = frozenset()
    sizes: tuple[int, ...] = ()

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        self.sizes += (len(batch),)
        if any(settlement.id in self.poison for settlement in batch):
            raise AssertionError("an impossible transition")
        return await super().settle(batch)


async def test_simultaneous_settlements_are_written_together(harness: EngineHarness) -> None:
    store = FaultyStore(harness.clock)
    settler = Settler(store, harness.clock, batch_size=10, linger_ms=2)
    running = asyncio.create_task(settler.run())
    for claim in await claimed(store, 25):
        settler.add(sent(claim), claim)
    assert settler.backlog == 25
    await settler.drained()
    assert settler.backlog == 0
    assert store.sizes == (10, 10, 5)
    running.cancel()


async def test_without_settlements_draining_ends_at_once(harness: EngineHarness) -> None:
    settler = Settler(harness.store, harness.clock)
    await settler.drained()
    assert settler.backlog == 0


async def test_a_settlement_that_cannot_be_written_delays_no_other(harness: EngineHarness) -> None:
    store = FaultyStore(harness.clock)
    told: list[str] = []
    settler = Settler(
        store, harness.clock, on_settled=lambda batch, refused: told.extend(one.id for one, _ in batch)
    )
    running = asyncio.create_task(settler.run())
    claims = await claimed(store, 9)
    store.poison = frozenset({claims[4].id})
    for claim in claims:
        settler.add(sent(claim), claim)
    await settler.drained()
    assert {t.status: t.count for t in await store.tallies(None)} == {Status.SENT: 8, Status.SENDING: 1}
    assert set(told) == {claim.id for claim in claims} - store.poison
    running.cancel()


async def test_a_temporarily_unavailable_store_is_called_again(harness: EngineHarness) -> None:
    class Full(WatchedStore):
        refusals = 3

        async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
            if self.refusals:
                self.refusals -= 1
                raise StoreError("read-only, for now")
            return await super().settle(batch)

    store = Full(harness.clock)
    settler = Settler(store, harness.clock)
    running = asyncio.create_task(settler.run())
    (claim,) = await claimed(store, 1)
    settler.add(retry_in(claim, 1000), claim)
    await settler.drained()
    assert (await store.tallies(None))[0].status is Status.RETRYING
    running.cancel()


async def settled_once(harness: EngineHarness, told: list[bool]) -> tuple[Settler, Claim, asyncio.Task[None]]:
    """Returns a running settler that has settled a claim. It appends to `told` whether each was applied."""
    settler = Settler(
        harness.store,
        harness.clock,
        on_settled=lambda batch, refused: told.extend(one.id not in refused for one, _ in batch),
    )
    running = asyncio.create_task(settler.run())
    (claim,) = await claimed(harness.store, 1)
    settler.add(sent(claim), claim)
    await settler.drained()
    return settler, claim, running


async def test_a_stale_settlement_is_counted_and_reported_as_such(harness: EngineHarness) -> None:
    told: list[bool] = []
    settler, claim, running = await settled_once(harness, told)
    settler.add(retry_in(claim, 1000), claim)
    await settler.drained()
    assert (told, settler.stale) == ([True, False], 1)
    running.cancel()


async def test_a_settlement_of_a_deleted_notification_is_reported_as_not_applied(
    harness: EngineHarness,
) -> None:
    told: list[bool] = []
    settler, claim, running = await settled_once(harness, told)
    await seconds(10)
    await harness.store.prune(Retention(delivered_ms=1, sent_ms=1, others_ms=1, keys_ms=1), 10)
    settler.add(sent(claim), claim)
    await settler.drained()
    assert (told, settler.stale) == ([True, False], 1)
    running.cancel()


async def test_the_pauses_grow_up_to_half_a_second(harness: EngineHarness) -> None:
    settler = Settler(harness.store, harness.clock)
    running = asyncio.create_task(settler.run())
    (claim,) = await claimed(harness.store, 1)
    harness.store.away.add("settle")
    settler.add(sent(claim), claim)
    await seconds(60)
    assert 115 <= harness.store.calls["settle"] <= 130
    running.cancel()


class RefusingStore(WatchedStore):
    """Refuses settlements for good that contain a certain text, or all of them."""

    refused_text = "poison"
    refuses_all = False
    sizes: tuple[int, ...] = ()

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        self.sizes += (len(batch),)
        if self.refuses_all or any(
            one.attempt and self.refused_text in (one.attempt.error or "") for one in batch
        ):
            raise StoreRejected
        return await super().settle(batch)


async def test_a_refused_settlement_is_isolated_in_few_calls_and_written_in_a_simpler_form(
    harness: EngineHarness,
) -> None:
    store = RefusingStore(harness.clock)
    store.refused_text = "🚫"
    settler = Settler(store, harness.clock)
    running = asyncio.create_task(settler.run())
    claims = await claimed(store, 64)
    for number, claim in enumerate(claims):
        settler.add(dead(claim, error="no 🚫" if number == 40 else "no"), claim)
    await settler.drained()
    assert {t.status: t.count for t in await store.tallies(None)} == {Status.FAILED: 64}
    found = await store.get(claims[40].tenant, claims[40].id)
    assert found is not None
    assert found.notification.last_error == "no \\U0001f6ab"
    assert len(store.sizes) == 1 + 2 * 6 + 1
    running.cancel()


async def test_nothing_is_claimed_while_settlements_cannot_be_written(harness: EngineHarness) -> None:
    engine = await harness.open()
    harness.store.away.add("settle")
    await mail(engine)
    await seconds(5)
    before = len(harness.store.claims)
    for _ in range(20):
        await mail(engine)
    await seconds(60)
    assert len(harness.store.claims) == before
    assert {t.status: t.count for t in await harness.store.tallies(None)} == {
        Status.SENDING: 1,
        Status.PENDING: 20,
    }
    harness.store.away.clear()
    await seconds(5)
    assert {t.status: t.count for t in await harness.store.tallies(None)} == {Status.SENT: 21}


async def test_a_store_that_refuses_every_result_gets_few_attempts(harness: EngineHarness) -> None:
    store = RefusingStore(harness.clock)
    provider = ScriptedProvider("mail")
    engine = await harness.open({"mail": provider}, store=store)
    store.refuses_all = True
    for _ in range(300):
        await mail(engine)
        await seconds(0.05)
    assert len(provider.sent) < 100
    store.refuses_all = False
    await seconds(1200)
    assert Status.SENDING not in {t.status for t in await store.tallies(None)}


async def test_only_consecutive_refusals_stop_the_claims(harness: EngineHarness) -> None:
    store = FaultyStore(harness.clock)
    settler = Settler(store, harness.clock)
    running = asyncio.create_task(settler.run())
    claims = await claimed(store, 90)
    store.poison = frozenset(claim.id for number, claim in enumerate(claims) if number % 2 or number >= 60)
    blocked = []
    for claim in claims:
        settler.add(sent(claim), claim)
        await settler.drained()
        blocked.append(settler.blocked)
    assert blocked.index(True) == 78  # 20 refusals after the last success, which is number 58
    running.cancel()


async def test_an_unexpected_error_after_an_unavailable_store_does_not_stop_claims_for_good(
    harness: EngineHarness,
) -> None:
    class Failing(WatchedStore):
        errors: Sequence[Exception] = ()

        async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
            if self.errors:
                error, *self.errors = self.errors
                raise error
            return await super().settle(batch)

    store = Failing(harness.clock)
    settler = Settler(store, harness.clock)
    running = asyncio.create_task(settler.run())
    (claim,) = await claimed(store, 1)
    store.errors = [StoreError("away"), *([LookupError("an error of the driver")] * 10)]
    settler.add(sent(claim), claim)
    await settler.drained()
    assert not settler.blocked
    running.cancel()
