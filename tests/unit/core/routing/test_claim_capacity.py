"""Capacity of a claim: what a lane, provider, tenant or outlet has left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.lifecycle.claims import ClaimRequest, LaneCapacity, ProviderCapacity
from homing.core.notifications import Mode
from homing.core.routing.fair_share import (
    ClaimCapacity,
    DueQueue,
    TenantTurns,
    hanging_share,
    reserve_of,
    tenant_allowance,
)

OUTLETS = ["twilio", "hook@a/https://x", "hook@b/https://x", "hook@b/https://y"]

LANE = "standard.email"


def a_capacity(
    outlets: Mapping[str, int] | None = None, slots: int = 5, **providers: ProviderCapacity
) -> ClaimCapacity:
    request = ClaimRequest(
        worker="w",
        lease_ms=1,
        lanes={LANE: LaneCapacity(slots=100), "bulk.sms": LaneCapacity(slots=100)},
        providers=providers,
        outlet_slots=slots,
        outlet_capacity=outlets or {},
    )
    return ClaimCapacity(request)


def queue(outlet: str, tenant: str = "t", lane: str = LANE) -> DueQueue:
    return DueQueue(lane, tenant, outlet, 0)


@pytest.mark.parametrize(
    ("slots", "priority", "other"), [(1, 0, 0), (2, 1, 0), (7, 1, 0), (16, 2, 1), (128, 16, 8)]
)
def test_priority_has_an_eighth_and_the_others_a_sixteenth(slots: int, priority: int, other: int) -> None:
    assert reserve_of(Mode.PRIORITY, slots) == priority
    assert reserve_of(Mode.STANDARD, slots) == reserve_of(Mode.BULK, slots) == other


def test_hanging_outlets_have_a_quarter() -> None:
    assert [hanging_share(slots) for slots in (1, 4, 8, 128)] == [1, 1, 2, 32]


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_an_allowance_is_the_largest_within_the_share(
    held: int, free: int, factor: int, taking: int, others: int
) -> None:
    sharing = taking + others

    def within(rounds: int) -> bool:
        return held + taking * rounds <= factor * (free - sharing * rounds)

    rounds = tenant_allowance(held, free, factor, taking=taking, sharing=sharing)
    assert rounds == 0 or within(rounds)
    assert not within(rounds + 1)


def test_an_outlet_without_a_setting_has_the_default_capacity() -> None:
    capacity = a_capacity(slots=3, other=ProviderCapacity(slots=9, outlet_slots=2))
    assert capacity.left(queue("twilio")) == capacity.left(queue("hook@a/https://x")) == 3
    assert capacity.left(queue("other@a/https://x")) == 2
    assert capacity.left(queue("other")) == 3  # it has no hosts
    assert capacity.closed_outlets() == []


def test_every_host_counts_against_its_provider_s_limit() -> None:
    capacity = a_capacity({"hook@a": 2}, hook=ProviderCapacity(slots=3))
    capacity.use(queue("hook@a"))
    capacity.use(queue("hook@b"))
    assert capacity.left(queue("hook@a")) == capacity.left(queue("hook@b")) == 1
    capacity.use(queue("hook@b"))
    assert capacity.left(queue("hook@a")) == capacity.left(queue("hook@c")) == 0
    assert capacity.left(queue("twilio")) == 5


def test_a_paused_provider_closes_all_its_hosts_unless_another_stands_in() -> None:
    capacity = a_capacity({"sns@x": -1}, hook=ProviderCapacity(slots=0), acs=ProviderCapacity(slots=1))
    assert capacity.closed_providers(Mode.STANDARD) == ["hook"]
    assert capacity.closed_outlets() == ["sns@x"]
    assert not capacity.is_open(queue("hook@a"))
    assert capacity.is_open(queue("acs"))


def test_a_stand_in_that_is_closed_closes_the_providers_that_it_replaces() -> None:
    request = ClaimRequest(
        worker="w",
        lease_ms=1,
        lanes={LANE: LaneCapacity(slots=9)},
        providers={"down": ProviderCapacity(slots=0), "full": ProviderCapacity(slots=0)},
        stand_ins={"down": "full"},
        outlet_slots=9,
    )
    assert sorted(ClaimCapacity(request).closed_providers(Mode.BULK)) == ["down", "full"]


def test_nothing_is_used_up_until_a_limit_is_reached() -> None:
    capacity = a_capacity(
        slots=50, mail=ProviderCapacity(slots=16, reserved={Mode.PRIORITY: 2}, tenant_factor=7)
    )
    assert not capacity.is_used_up()
    capacity.use(queue("mail"), 11)
    assert not capacity.is_used_up()
    capacity.use(queue("mail"))
    assert capacity.is_used_up(), "twelve of fourteen: the tenant has its share"


@given(
    st.dictionaries(st.sampled_from([*OUTLETS, "hook"]), st.integers(0, 4)),
    st.integers(1, 4),
    st.integers(0, 9),
    st.lists(st.sampled_from(OUTLETS), max_size=30),
)
def test_no_allocation_exceeds_the_capacity_of_an_outlet_or_its_provider(
    given_capacity: dict[str, int], slots: int, hook: int, wanted: list[str]
) -> None:
    capacity, dealt = a_capacity(given_capacity, slots, hook=ProviderCapacity(slots=hook)), Counter[str]()
    for outlet in wanted:
        if capacity.left(queue(outlet)) > 0:
            assert capacity.is_open(queue(outlet))
            capacity.use(queue(outlet))
            dealt[outlet] += 1
    for outlet, count in dealt.items():
        assert count <= given_capacity.get(outlet, slots)
    assert sum(count for outlet, count in dealt.items() if "@" in outlet) <= hook


def test_only_the_newest_turns_are_kept() -> None:
    turns = TenantTurns()
    turns.record({(Mode.BULK, "mail", f"t-{n}"): n for n in range(1, 100_002)})
    assert turns.get(Mode.BULK, "mail", "t-100001") == 100_001
    assert turns.get(Mode.BULK, "mail", "t-1") == 0


def test_turns_of_overlapping_claims_never_go_back() -> None:
    turns = TenantTurns()
    turns.record({(Mode.BULK, "mail", "t"): 9})
    turns.record({(Mode.BULK, "mail", "t"): 7, (Mode.BULK, "mail", "u"): 8})
    assert turns.get(Mode.BULK, "mail", "t") == 9
    assert turns.get(Mode.BULK, "mail", "u") == 8
