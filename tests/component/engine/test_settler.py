"""Settlements are written in batches, and a problem with one delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.notifications import Status
from homing.core.ports.stores import Retention
from homing.engine.delivery.settler import Settler
from homing.testing.builders import a_claim_request, a_notification, a_submission, retry_in, sent
from support.engine_harness import EngineHarness, WatchedStore, seconds


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
    await Settler(harness.store, harness.clock).drained()


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


async def test_a_stale_settlement_is_counted_and_reported_as_such(harness: EngineHarness) -> None:
    told: list[bool] = []
    settler = Settler(
        harness.store,
        harness.clock,
        on_settled=lambda batch, refused: told.extend(one.id not in refused for one, _ in batch),
    )
    running = asyncio.create_task(settler.run())
    (claim,) = await claimed(harness.store, 1)
    settler.add(sent(claim), claim)
    await settler.drained()
    settler.add(retry_in(claim, 1000), claim)
    await settler.drained()
    assert (told, settler.stale) == ([True, False], 1)
    running.cancel()


async def test_a_settlement_of_a_deleted_notification_is_reported_as_not_applied(
    harness: EngineHarness,
) -> None:
    told: list[bool] = []
    settler = Settler(
        harness.store,
        harness.clock,
        on_settled=lambda batch, refused: told.extend(one.id not in refused for one, _ in batch),
    )
    running = asyncio.create_task(settler.run())
    (claim,) = await claimed(harness.store, 1)
    settler.add(sent(claim), claim)
    await settler.drained()
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
