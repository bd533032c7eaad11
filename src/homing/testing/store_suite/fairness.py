"""Tests of fairness: one tenant's backlog never delays another tenant beyond its share."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from homing.core.lifecycle.claims import NewNotification, NewOutletsCapacity, ProviderCapacity
from homing.core.notifications import Channel, Mode, Status, lane_of
from homing.testing.builders import HOUR_MS, MINUTE_MS, a_claim_request, a_notification, sent
from homing.testing.store_suite.harness import Harness, accept, accept_one, count_by_status

ALL_LANES = [
    lane_of(mode, channel)
    for channel in (Channel.SMS, Channel.EMAIL)
    for mode in (Mode.BULK, Mode.STANDARD, Mode.PRIORITY)
]
"""Lanes in an order that no store may follow: by channel, and the least urgent first."""


def shared(mode: Mode, channel: Channel = Channel.SMS, outlet: str = "shared") -> NewNotification:
    """Returns a notification at a provider that several lanes share."""
    return a_notification(mode=mode, channel=channel, provider="shared", outlet=outlet)


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
        batch = await store.claim(a_claim_request(slots=15, held={"a": 90}, tenant_factor=7))
        assert Counter(claim.tenant for claim in batch.claims) == {"a": 1, "b": 7, "c": 6}

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
        batch = await store.claim(a_claim_request(slots=5, tenant_factor=7))
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

    async def test_starts_are_dealt_by_mode_before_channel(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.BULK) for _ in range(20)), tenant="flood")
        await accept(store, *(shared(Mode.STANDARD) for _ in range(20)), tenant="flood")
        await harness.advance(MINUTE_MS)
        urgent = await accept_one(store, shared(Mode.PRIORITY, Channel.EMAIL), tenant="other")
        one_slot = {"shared": ProviderCapacity(slots=1)}
        [claim] = (await store.claim(a_claim_request(*ALL_LANES, providers=one_slot))).claims
        assert claim.id == urgent
        [claim] = (await store.claim(a_claim_request(*ALL_LANES, providers=one_slot))).claims
        assert claim.mode is Mode.STANDARD

    async def test_a_reserve_is_left_to_its_mode(self, harness: Harness) -> None:
        store = harness.store
        for mode in (Mode.BULK, Mode.STANDARD, Mode.PRIORITY):
            await accept(store, *(shared(mode) for _ in range(20)))
        reserved = {Mode.PRIORITY: 2, Mode.STANDARD: 1, Mode.BULK: 1}
        provider = {"shared": ProviderCapacity(slots=10, reserved=reserved)}
        bulk = [lane for lane in ALL_LANES if lane.startswith("bulk")]
        batch = await store.claim(a_claim_request(*bulk, providers=provider))
        assert len(batch.claims) == 7
        batch = await store.claim(a_claim_request(*ALL_LANES, providers=provider))
        assert Counter(claim.mode for claim in batch.claims) == {
            Mode.PRIORITY: 8,
            Mode.STANDARD: 1,
            Mode.BULK: 1,
        }

    async def test_reserved_starts_of_a_rate_limit_are_left_to_priority(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.BULK) for _ in range(20)))
        provider = {"shared": ProviderCapacity(slots=50, starts=3, reserved_starts=1)}
        request = a_claim_request(*ALL_LANES, providers=provider)
        assert len((await store.claim(request)).claims) == 2
        urgent = await accept_one(store, shared(Mode.PRIORITY, Channel.EMAIL))
        last = {"shared": ProviderCapacity(slots=50, starts=1, reserved_starts=1)}
        batch = await store.claim(a_claim_request(*ALL_LANES, providers=last))
        assert [claim.id for claim in batch.claims] == [urgent]

    async def test_a_mode_that_is_owed_a_start_comes_before_priority(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.PRIORITY) for _ in range(5)))
        await accept(store, *(shared(Mode.BULK) for _ in range(5)))
        owed = ProviderCapacity(slots=50, starts=1, reserved_starts=1, owed={Mode.BULK: 1})
        [claim] = (await store.claim(a_claim_request(*ALL_LANES, providers={"shared": owed}))).claims
        assert claim.mode is Mode.BULK
        owed = ProviderCapacity(slots=50, starts=3, owed={Mode.BULK: 1})
        batch = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": owed}))
        assert Counter(claim.mode for claim in batch.claims) == {Mode.BULK: 1, Mode.PRIORITY: 2}

    async def test_a_tenant_takes_at_most_seven_times_the_slots_that_stay_free(
        self, harness: Harness
    ) -> None:
        store = harness.store
        for channel in (Channel.SMS, Channel.EMAIL):
            await accept(store, *(shared(Mode.BULK, channel) for _ in range(50)), tenant="flood")
        provider = {"shared": ProviderCapacity(slots=16, tenant_factor=7)}
        batch = await store.claim(a_claim_request(*ALL_LANES, providers=provider))
        assert len(batch.claims) == 14, "over all lanes together"
        held = {(Mode.BULK, "flood"): 14}
        rest = {"shared": ProviderCapacity(slots=2, tenant_factor=7, held=held)}
        assert (await store.claim(a_claim_request(*ALL_LANES, providers=rest))).claims == ()
        await accept(store, *(shared(Mode.BULK) for _ in range(5)), tenant="other")
        batch = await store.claim(a_claim_request(*ALL_LANES, providers=rest))
        assert [claim.tenant for claim in batch.claims] == ["other"]

    async def test_a_tenant_at_its_share_gets_its_first_slot_of_another_mode(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.BULK) for _ in range(5)))
        await accept(store, *(shared(Mode.PRIORITY) for _ in range(5)))
        held = {(Mode.BULK, "default"): 7}
        provider = {"shared": ProviderCapacity(slots=1, tenant_factor=7, held=held)}
        batch = await store.claim(a_claim_request(*ALL_LANES, providers=provider))
        assert [claim.mode for claim in batch.claims] == [Mode.PRIORITY]

    async def test_tenants_take_turns_at_a_provider_over_all_its_channels(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.PRIORITY) for _ in range(20)), tenant="flood")
        await accept(store, *(shared(Mode.PRIORITY, Channel.EMAIL) for _ in range(4)), tenant="other")
        one_start = a_claim_request(*ALL_LANES, providers={"shared": ProviderCapacity(slots=9, starts=1)})
        served = [(await store.claim(one_start)).claims[0].tenant for _ in range(8)]
        assert Counter(served) == {"flood": 4, "other": 4}

    async def test_many_outlets_give_a_tenant_no_more_turns(self, harness: Harness) -> None:
        """Each of the flood's outlets was never served, and its queue is gone once it was."""
        store = harness.store
        flood = [shared(Mode.STANDARD, outlet=f"shared@flood/{n}") for n in range(30)]
        await accept(store, *flood, tenant="flood")
        await accept(store, *(shared(Mode.STANDARD, outlet="shared@z") for _ in range(4)), tenant="z")
        one_start = a_claim_request(*ALL_LANES, providers={"shared": ProviderCapacity(slots=9, starts=1)})
        served = []
        for _ in range(8):
            [claim] = (await store.claim(one_start)).claims
            served.append(claim.tenant)
            await store.settle([sent(claim)])
        assert Counter(served) == {"flood": 4, "z": 4}

    async def test_a_turn_at_one_provider_is_none_at_another(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.STANDARD) for _ in range(8)), tenant="a")
        await accept(store, *(a_notification(outlet="wide") for _ in range(50)), tenant="a")
        await accept(store, *(shared(Mode.STANDARD) for _ in range(8)), tenant="b")
        served: Counter[str] = Counter()
        for _ in range(8):
            providers = {"shared": ProviderCapacity(slots=1), "wide": ProviderCapacity(slots=3)}
            batch = await store.claim(a_claim_request(*ALL_LANES, providers=providers))
            served.update(claim.tenant for claim in batch.claims if claim.outlet == "shared")
        assert served == {"a": 4, "b": 4}

    async def test_hanging_outlets_share_a_few_slots(self, harness: Harness) -> None:
        store = harness.store
        hanging = [f"shared@h-{n}" for n in range(20)]
        await accept(store, *(shared(Mode.STANDARD, outlet=outlet) for outlet in hanging for _ in range(3)))
        await accept(store, *(shared(Mode.STANDARD, outlet="shared@quick") for _ in range(9)))
        providers = {"shared": ProviderCapacity(slots=50, hanging_slots=4)}
        ones = dict.fromkeys(hanging, 1)
        request = a_claim_request(*ALL_LANES, providers=providers, outlet_capacity=ones, hanging=hanging)
        taken = Counter(claim.outlet for claim in (await store.claim(request)).claims)
        assert taken.pop("shared@quick") == 9
        assert sorted(taken.values()) == [1, 1, 1, 1]
        full = {"shared": ProviderCapacity(slots=50, hanging_slots=0)}
        request = a_claim_request(*ALL_LANES, providers=full, outlet_capacity=ones, hanging=hanging)
        assert (await store.claim(request)).claims == ()

    async def test_outlets_that_have_not_answered_yet_leave_slots_for_those_that_have(
        self, harness: Harness
    ) -> None:
        store = harness.store
        new = [f"shared@n-{n}" for n in range(20)]
        await accept(store, *(shared(Mode.STANDARD, outlet=outlet) for outlet in new for _ in range(3)))
        await accept(store, *(shared(Mode.STANDARD, outlet="shared@quick") for _ in range(9)))
        providers = {
            "shared": ProviderCapacity(slots=12, new_outlets=NewOutletsCapacity(slots=5), outlet_slots=2)
        }
        known = {"shared@quick": 50}
        request = a_claim_request(
            *ALL_LANES, providers=providers, outlet_capacity=known, answering=["shared@quick"]
        )
        taken = Counter(claim.outlet for claim in (await store.claim(request)).claims)
        assert taken.pop("shared@quick") == 7
        assert taken.total() == 5
        assert max(taken.values()) <= 2

    async def test_a_tenant_with_many_new_outlets_leaves_slots_at_new_outlets_of_another(
        self, harness: Harness
    ) -> None:
        store = harness.store
        flood = [shared(Mode.STANDARD, outlet=f"shared@flood/{n}") for n in range(20)]
        await accept(store, *flood, tenant="flood")
        new = NewOutletsCapacity(slots=9, reserved={Mode.PRIORITY: 1})
        provider = ProviderCapacity(slots=50, tenant_factor=7, new_outlets=new)
        batch = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": provider}))
        assert len(batch.claims) == 7
        held = {(Mode.STANDARD, "flood"): 7, (Mode.STANDARD, "third"): 2}
        full = ProviderCapacity(slots=41, tenant_factor=7, new_outlets=NewOutletsCapacity(slots=0, held=held))
        await accept(
            store, *(shared(Mode.STANDARD, outlet="shared@other/1") for _ in range(3)), tenant="other"
        )
        urgent = await accept_one(store, shared(Mode.PRIORITY, outlet="shared@flood/1"), tenant="flood")
        batch = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": full}))
        assert urgent in {claim.id for claim in batch.claims}, "the first of its mode"
        assert Counter(claim.tenant for claim in batch.claims) == {"flood": 1, "other": 1}

    async def test_thousands_of_outlets_without_capacity_delay_no_other_tenant(
        self, harness: Harness
    ) -> None:
        """More queues than a claim considers, none of which can be served, come before the one that can."""
        store = harness.store
        flood = [shared(Mode.STANDARD, outlet=f"shared@flood/{n}") for n in range(2_050)]
        await accept(store, *flood, tenant="flood")
        await accept(store, *(shared(Mode.STANDARD) for _ in range(3)), tenant="other")
        one = ProviderCapacity(slots=1)
        served = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": one}, limit=1))
        if served.claims[0].tenant == "flood":
            await store.claim(a_claim_request(*ALL_LANES, providers={"shared": one}, limit=1))
        held = {(Mode.STANDARD, "flood"): 7}
        new = NewOutletsCapacity(slots=0, held=held)
        full = ProviderCapacity(slots=9, tenant_factor=7, held=held, new_outlets=new)
        batch = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": full}))
        assert Counter(claim.tenant for claim in batch.claims) == {"other": 2}
        answering = ["shared@flood/2049"]
        batch = await store.claim(
            a_claim_request(*ALL_LANES, providers={"shared": full}, answering=answering)
        )
        assert [claim.outlet for claim in batch.claims] == answering

    async def test_a_stand_in_shares_its_capacity(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(shared(Mode.STANDARD) for _ in range(9)), tenant="a")
        await accept(store, *(a_notification(outlet="down") for _ in range(9)), tenant="b")
        providers = {"shared": ProviderCapacity(slots=6), "down": ProviderCapacity(slots=0)}
        request = a_claim_request(*ALL_LANES, providers=providers, stand_ins={"down": "shared"})
        taken = Counter(claim.outlet for claim in (await store.claim(request)).claims)
        assert taken == {"shared": 3, "down": 3}

    async def test_next_due_at_ignores_what_has_no_capacity(self, harness: Harness) -> None:
        store = harness.store
        later = await store.now_ms() + HOUR_MS
        bulk = a_notification(mode=Mode.BULK, provider="shared", outlet="shared", send_at=later)
        await accept(store, bulk, tenant="flood")
        for closed in (
            ProviderCapacity(slots=1, reserved={Mode.PRIORITY: 1}),
            ProviderCapacity(slots=9, starts=1, reserved_starts=1),
            ProviderCapacity(slots=1, tenant_factor=7, held={(Mode.BULK, "flood"): 7}),
        ):
            batch = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": closed}))
            assert batch.next_due_at is None
        free = ProviderCapacity(slots=2, reserved={Mode.PRIORITY: 1}, tenant_factor=7)
        batch = await store.claim(a_claim_request(*ALL_LANES, providers={"shared": free}))
        assert batch.next_due_at == later
