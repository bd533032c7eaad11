"""Tests of fairness: one tenant's backlog never delays another tenant beyond its share."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from homing.core.notifications import Status
from homing.testing.builders import MINUTE_MS, a_claim_request, a_notification, sent
from homing.testing.store_suite.harness import Harness, accept, accept_one, count_by_status


class FairnessTests:
    """Tests of how `claim` divides capacity between the tenants of a lane and the outlets of a tenant."""

    flood = 2_000
    """Number of due rows of a tenant with a large backlog."""

    async def test_a_large_backlog_of_one_tenant_does_not_delay_another_tenant(
        self, harness: Harness
    ) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(self.flood)), tenant="flood")
        await harness.advance(MINUTE_MS)
        single = await accept_one(store, tenant="single")
        batch = await store.claim(a_claim_request(slots=2))
        assert single in {claim.id for claim in batch.claims}
        assert len(batch.claims) == 2

    async def test_shares_are_equal_and_unused_slots_go_to_other_tenants(self, harness: Harness) -> None:
        store = harness.store
        for tenant, number in (("a", 1), ("b", 3), ("c", 100), ("d", 100)):
            await accept(store, *(a_notification() for _ in range(number)), tenant=tenant)
        batch = await store.claim(a_claim_request(slots=20))
        assert Counter(claim.tenant for claim in batch.claims) == {"a": 1, "b": 3, "c": 8, "d": 8}

    async def test_shares_differ_by_at_most_one(self, harness: Harness) -> None:
        store = harness.store
        for tenant in "abc":
            await accept(store, *(a_notification() for _ in range(20)), tenant=tenant)
        batch = await store.claim(a_claim_request(slots=10))
        shares = Counter(claim.tenant for claim in batch.claims)
        assert sorted(shares.values()) == [3, 3, 4]

    async def test_slots_that_a_limited_tenant_cannot_use_go_to_the_others(self, harness: Harness) -> None:
        store = harness.store
        for tenant in "abc":
            await accept(store, *(a_notification() for _ in range(20)), tenant=tenant)
        batch = await store.claim(a_claim_request(slots=15, tenant_capacity={"a": 1}))
        assert Counter(claim.tenant for claim in batch.claims) == {"a": 1, "b": 7, "c": 7}

    async def test_a_single_slot_rotates_between_tenants(self, harness: Harness) -> None:
        store = harness.store
        for tenant in "abcde":
            await accept(store, *(a_notification() for _ in range(10)), tenant=tenant)
        for _ in range(3):
            served = [(await store.claim(a_claim_request(slots=1))).claims[0].tenant for _ in range(5)]
            assert sorted(served) == list("abcde")

    async def test_uneven_rounds_favour_no_tenant(self, harness: Harness) -> None:
        store = harness.store
        for tenant in "abcd":
            await accept(store, *(a_notification() for _ in range(40)), tenant=tenant)
        served: Counter[str] = Counter()
        for _ in range(13):
            batch = await store.claim(a_claim_request(slots=3))
            served.update(claim.tenant for claim in batch.claims)
            assert max(served.values()) - min(served[tenant] for tenant in "abcd") <= 1

    async def test_a_new_tenant_among_many_backlogs_is_served_within_one_round(
        self, harness: Harness
    ) -> None:
        store = harness.store
        tenants = [f"t-{number:02}" for number in range(30)]
        for tenant in tenants:
            await accept(store, *(a_notification() for _ in range(30)), tenant=tenant)
        for _ in range(9):
            await store.claim(a_claim_request(slots=5))
        newcomer = await accept_one(store, tenant="zz-new")
        round_trips = -(-(len(tenants) + 1) // 5)
        seen = [
            claim.id
            for _ in range(round_trips)
            for claim in (await store.claim(a_claim_request(slots=5))).claims
        ]
        assert newcomer in seen

    async def test_a_tenant_with_single_rows_does_not_overtake_waiting_tenants(
        self, harness: Harness
    ) -> None:
        """A tenant that always has exactly one due row gets its turn, not every turn."""
        store = harness.store
        await accept(store, *(a_notification() for _ in range(50)), tenant="flood")
        served: Counter[str] = Counter()
        for _ in range(10):
            await accept_one(store, tenant="regular")
            [claim] = (await store.claim(a_claim_request(slots=1))).claims
            served[claim.tenant] += 1
            await store.settle([sent(claim)])
        assert served == {"flood": 5, "regular": 5}

    async def test_all_instances_share_the_rotation_of_tenants(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        for tenant in "ab":
            await accept(harness.store, *(a_notification() for _ in range(10)), tenant=tenant)
        served = [
            (await stores[number // 2 % 2].claim(a_claim_request(slots=1, worker=f"w-{number}")))
            .claims[0]
            .tenant
            for number in range(8)
        ]
        assert Counter(served) == {"a": 4, "b": 4}
        assert all(one != other for one, other in pairwise(served))

    async def test_the_outlets_of_a_tenant_share_its_slots(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification(outlet="slow") for _ in range(100)))
        await harness.advance(MINUTE_MS)
        single = await accept_one(store, a_notification(outlet="other"))
        batch = await store.claim(a_claim_request(slots=50, tenant_slots=4))
        assert len(batch.claims) == 4
        assert single in {claim.id for claim in batch.claims}

    async def test_a_single_slot_rotates_between_the_outlets_of_a_tenant(self, harness: Harness) -> None:
        store = harness.store
        for outlet in "xyz":
            await accept(store, *(a_notification(outlet=outlet) for _ in range(10)))
        for _ in range(3):
            served = [(await store.claim(a_claim_request(slots=1))).claims[0].outlet for _ in range(3)]
            assert sorted(served) == list("xyz")

    async def test_a_backlog_at_a_closed_outlet_delays_no_other_outlet(self, harness: Harness) -> None:
        store = harness.store
        for tenant in ("a", "b"):
            await accept(store, *(a_notification(outlet="down") for _ in range(200)), tenant=tenant)
        await harness.advance(MINUTE_MS)
        await accept(store, *(a_notification(outlet="up") for _ in range(3)), tenant="a")
        await accept(store, *(a_notification(outlet="up") for _ in range(3)), tenant="c")
        batch = await store.claim(a_claim_request(slots=10, outlet_capacity={"down": 0}))
        assert Counter(claim.tenant for claim in batch.claims) == {"a": 3, "c": 3}
        assert await count_by_status(store, None) == {Status.PENDING: 400, Status.SENDING: 6}

    async def test_an_outlet_with_one_slot_serves_all_tenants_in_turn(self, harness: Harness) -> None:
        store = harness.store
        for tenant in "abc":
            await accept(store, *(a_notification(outlet="narrow") for _ in range(10)), tenant=tenant)
        served: Counter[str] = Counter()
        for _ in range(6):
            batch = await store.claim(a_claim_request(slots=10, outlet_capacity={"narrow": 1}))
            assert len(batch.claims) == 1
            served.update(claim.tenant for claim in batch.claims)
        assert served == {"a": 2, "b": 2, "c": 2}

    async def test_all_slots_are_used_while_rows_are_due(self, harness: Harness) -> None:
        store = harness.store
        for number, tenant in enumerate("abcdef"):
            news = (a_notification(outlet=f"o-{n % 3}") for n in range(3 * number + 1))
            await accept(store, *news, tenant=tenant)
        total = sum(3 * number + 1 for number in range(6))
        claimed = 0
        while claimed < total:
            batch = await store.claim(a_claim_request(slots=7))
            assert len(batch.claims) == min(7, total - claimed)
            claimed += len(batch.claims)
        assert (await store.claim(a_claim_request())).claims == ()
