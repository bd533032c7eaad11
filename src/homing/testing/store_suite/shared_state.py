"""Tests of the state that all workers share: breakers, rate limits and leadership."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from homing.core.ports.stores import TokenRequest
from homing.core.routing.breaker import Breaker, Phase
from homing.core.routing.rate_limits import RateLimit
from homing.testing.builders import DAY_MS, HOUR_MS, MINUTE_MS
from homing.testing.store_suite.harness import Harness

SLOW = RateLimit(per_second=1 / 600, burst=5)
"""One token per ten minutes, with a burst of five, so that no token is added while a test runs."""


class SharedStateTests:
    """Tests of `breakers`, `put_breaker`, `take`, `take_many` and `lead`."""

    async def test_there_are_no_breakers_at_first(self, harness: Harness) -> None:
        assert await harness.store.breakers() == {}

    async def test_a_breaker_reads_back_with_the_next_version(self, harness: Harness) -> None:
        store, other = harness.store, await harness.second()
        breaker = Breaker(
            phase=Phase.OPEN,
            failures=5,
            open_until=1_750_000_060_000,
            trial_by="w-1",
            trial_until=1_750_000_070_000,
            ramp_from=3,
            forced=Phase.CLOSED,
            forced_by="ada",
            changed_at=1_750_000_000_000,
        )
        assert await store.put_breaker("twilio", breaker)
        assert await other.breakers() == {"twilio": replace(breaker, version=1)}

    async def test_a_breaker_is_written_only_if_its_version_is_unchanged(self, harness: Harness) -> None:
        store = harness.store
        assert not await store.put_breaker("twilio", Breaker(version=1))
        assert await store.put_breaker("twilio", Breaker())
        assert not await store.put_breaker("twilio", Breaker(phase=Phase.OPEN))
        assert await store.put_breaker("twilio", Breaker(phase=Phase.OPEN, version=1))
        assert await store.put_breaker("sns", Breaker(failures=2))
        assert await store.breakers() == {
            "twilio": Breaker(phase=Phase.OPEN, version=2),
            "sns": Breaker(failures=2, version=1),
        }

    async def test_one_of_many_workers_wins_the_trial(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        await harness.store.put_breaker("twilio", Breaker(phase=Phase.OPEN))
        won = await asyncio.gather(
            *(
                stores[n % 2].put_breaker(
                    "twilio", Breaker(phase=Phase.HALF_OPEN, trial_by=f"w-{n}", version=1)
                )
                for n in range(8)
            )
        )
        assert sum(won) == 1
        assert (await harness.store.breakers())["twilio"].trial_by == f"w-{won.index(True)}"

    async def test_a_bucket_grants_at_most_its_burst(self, harness: Harness) -> None:
        store = harness.store
        first = await store.take("sms", SLOW, 3)
        assert (first.granted, first.wait_ms) == (3, 0)
        second = await store.take("sms", SLOW, 3)
        assert second.granted == 2
        assert 9 * MINUTE_MS < second.wait_ms <= 10 * MINUTE_MS
        empty = await store.take("sms", SLOW, 1)
        assert empty.granted == 0
        assert 9 * MINUTE_MS < empty.wait_ms <= 10 * MINUTE_MS

    async def test_a_bucket_refills_up_to_its_burst(self, harness: Harness) -> None:
        store = harness.store
        assert (await store.take("sms", SLOW, 5)).granted == 5
        await harness.advance(21 * MINUTE_MS)
        assert (await store.take("sms", SLOW, 5)).granted == 2
        await harness.advance(DAY_MS)
        assert (await store.take("sms", SLOW, 50)).granted == 5

    async def test_a_token_is_available_after_the_returned_wait(self, harness: Harness) -> None:
        store = harness.store
        await store.take("sms", SLOW, 5)
        wait_ms = (await store.take("sms", SLOW, 1)).wait_ms
        await harness.advance(wait_ms)
        assert (await store.take("sms", SLOW, 1)).granted == 1

    async def test_buckets_are_independent(self, harness: Harness) -> None:
        store = harness.store
        await store.take("sms", SLOW, 5)
        assert (await store.take("email", SLOW, 5)).granted == 5

    async def test_a_request_for_zero_tokens_takes_none(self, harness: Harness) -> None:
        store = harness.store
        assert (await store.take("sms", SLOW, 0)).granted == 0
        assert (await store.take("sms", SLOW, 5)).granted == 5

    async def test_concurrent_workers_share_one_bucket(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        taken = await asyncio.gather(*(stores[n % 2].take("sms", SLOW, 2) for n in range(6)))
        assert sum(each.granted for each in taken) == 5

    async def test_take_many_takes_from_several_buckets(self, harness: Harness) -> None:
        store = harness.store
        await store.take("sms", SLOW, 4)
        taken = await store.take_many(
            {"sms": TokenRequest(SLOW, 3), "email": TokenRequest(SLOW, 3), "push": TokenRequest(SLOW, 9)}
        )
        assert {key: each.granted for key, each in taken.items()} == {"sms": 1, "email": 3, "push": 5}
        assert taken["email"].wait_ms == 0
        assert 9 * MINUTE_MS < taken["sms"].wait_ms <= 10 * MINUTE_MS
        assert await store.take_many({}) == {}

    async def test_each_of_many_buckets_has_its_own_limit(self, harness: Harness) -> None:
        fast = RateLimit(10.0, 50)
        taken = await harness.store.take_many(
            {"sms": TokenRequest(SLOW, 20), "email": TokenRequest(fast, 20)}
        )
        assert [taken["sms"].granted, taken["email"].granted] == [5, 20]

    async def test_returned_tokens_can_be_taken_again_up_to_the_burst(self, harness: Harness) -> None:
        store = harness.store
        await store.take("sms", SLOW, 5)
        given = (await store.take_many({"sms": TokenRequest(SLOW, -2)}))["sms"]
        assert (given.granted, given.wait_ms) == (0, 0)
        assert (await store.take("sms", SLOW, 5)).granted == 2
        await store.take_many({"sms": TokenRequest(SLOW, -50)})
        assert (await store.take("sms", SLOW, 50)).granted == 5

    async def test_concurrent_take_many_calls_never_deadlock(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        keys = [f"recipient:{n}" for n in range(20)]
        orders = [keys, keys[::-1]] * 4
        taken = await asyncio.gather(
            *(
                stores[n % 2].take_many({key: TokenRequest(SLOW, 1) for key in order})
                for n, order in enumerate(orders)
            )
        )
        assert {key: sum(each[key].granted for each in taken) for key in keys} == dict.fromkeys(keys, 5)

    async def test_one_worker_leads_at_a_time(self, harness: Harness) -> None:
        store, other = harness.store, await harness.second()
        assert await store.lead("prune", "w-1", HOUR_MS)
        assert not await other.lead("prune", "w-2", HOUR_MS)
        assert await other.lead("relay", "w-2", HOUR_MS)

    async def test_a_leader_can_renew_its_lead(self, harness: Harness) -> None:
        store = harness.store
        assert await store.lead("prune", "w-1", HOUR_MS)
        await harness.advance(50 * MINUTE_MS)
        assert await store.lead("prune", "w-1", HOUR_MS)
        await harness.advance(50 * MINUTE_MS)
        assert not await store.lead("prune", "w-2", HOUR_MS)

    async def test_a_leader_can_renew_its_lead_while_others_ask(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        assert await harness.store.lead("prune", "w-0", HOUR_MS)
        for _ in range(5):
            leads = await asyncio.gather(
                *(stores[n % 2].lead("prune", f"w-{n}", HOUR_MS) for n in (1, 2, 3, 0, 4, 5))
            )
            assert leads == [False, False, False, True, False, False]

    async def test_a_lead_expires(self, harness: Harness) -> None:
        store = harness.store
        assert await store.lead("prune", "w-1", HOUR_MS)
        await harness.advance(HOUR_MS + MINUTE_MS)
        assert await store.lead("prune", "w-2", HOUR_MS)
        assert not await store.lead("prune", "w-1", HOUR_MS)

    async def test_only_one_of_many_workers_becomes_leader(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        leads = await asyncio.gather(*(stores[n % 2].lead("prune", f"w-{n}", HOUR_MS) for n in range(8)))
        assert sum(leads) == 1
