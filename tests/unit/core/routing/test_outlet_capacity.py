"""Capacity of outlets: each host has its own, and the provider's limit covers all its hosts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from homing.core.routing.fair_share import OutletCapacity

OUTLETS = ["twilio", "hook@a.example", "hook@b.example", "hook@c.example"]


def test_an_outlet_without_a_setting_has_the_default_capacity() -> None:
    capacity = OutletCapacity({}, 3)
    assert capacity.left("twilio") == capacity.left("hook@a.example") == 3
    assert capacity.open("twilio")
    assert capacity.closed == []


def test_capacity_taken_at_one_outlet_is_not_taken_elsewhere() -> None:
    capacity = OutletCapacity({"twilio": 2}, 5)
    capacity.use("twilio")
    assert (capacity.left("twilio"), capacity.left("sns")) == (1, 5)


def test_every_host_counts_against_its_provider_s_limit() -> None:
    capacity = OutletCapacity({"hook": 3, "hook@a.example": 2}, 5)
    capacity.use("hook@a.example")
    capacity.use("hook@b.example")
    assert (capacity.left("hook@a.example"), capacity.left("hook@b.example"), capacity.left("hook")) == (
        1,
        1,
        1,
    )
    capacity.use("hook@b.example")
    assert (capacity.left("hook@a.example"), capacity.left("hook@c.example")) == (0, 0)


def test_without_a_provider_limit_hosts_do_not_block_each_other() -> None:
    capacity = OutletCapacity({"hook@a.example": 1}, 5)
    capacity.use("hook@a.example")
    assert (capacity.left("hook@a.example"), capacity.left("hook@b.example")) == (0, 5)


def test_a_paused_provider_closes_all_its_hosts() -> None:
    capacity = OutletCapacity({"hook": 0, "twilio": 0, "sns@x": -1, "acs": 1}, 5)
    assert capacity.closed == ["hook", "twilio", "sns@x"]
    assert not capacity.open("hook@a.example")
    assert capacity.left("hook@a.example") == 0
    assert not capacity.open("twilio")
    assert capacity.open("acs")


def test_a_host_without_capacity_does_not_close_its_provider() -> None:
    capacity = OutletCapacity({"hook@a.example": 0}, 5)
    assert not capacity.open("hook@a.example")
    assert capacity.open("hook@b.example")


@given(
    st.dictionaries(st.sampled_from([*OUTLETS, "hook"]), st.integers(0, 4)),
    st.integers(1, 4),
    st.lists(st.sampled_from(OUTLETS), max_size=30),
)
def test_no_allocation_exceeds_the_capacity_of_an_outlet_or_its_provider(
    given_capacity: dict[str, int], slots: int, wanted: list[str]
) -> None:
    capacity, dealt = OutletCapacity(given_capacity, slots), Counter[str]()
    for outlet in wanted:
        if capacity.left(outlet) > 0:
            assert capacity.open(outlet)
            capacity.use(outlet)
            dealt[outlet] += 1
    for outlet, count in dealt.items():
        assert count <= given_capacity.get(outlet, slots)
    if "hook" in given_capacity:
        assert sum(count for outlet, count in dealt.items() if "@" in outlet) <= given_capacity["hook"]
