"""Capacity of outlets: each host has its own, and the provider's limit covers all its hosts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from homing.core.routing.fair_share import OutletCapacity

OUTLETS = ["twilio", "hook@a.example", "hook@b.example", "hook@c.example"]


def test_an_outlet_without_a_setting_has_the_default_capacity() -> None:
    room = OutletCapacity({}, 3)
    assert room.left("twilio") == room.left("hook@a.example") == 3
    assert room.open("twilio")
    assert room.closed == []


def test_capacity_taken_at_one_outlet_is_not_taken_elsewhere() -> None:
    room = OutletCapacity({"twilio": 2}, 5)
    room.use("twilio")
    assert (room.left("twilio"), room.left("sns")) == (1, 5)


def test_every_host_counts_against_its_provider_s_limit() -> None:
    room = OutletCapacity({"hook": 3, "hook@a.example": 2}, 5)
    room.use("hook@a.example")
    room.use("hook@b.example")
    assert (room.left("hook@a.example"), room.left("hook@b.example"), room.left("hook")) == (1, 1, 1)
    room.use("hook@b.example")
    assert (room.left("hook@a.example"), room.left("hook@c.example")) == (0, 0)


def test_without_a_provider_limit_hosts_do_not_block_each_other() -> None:
    room = OutletCapacity({"hook@a.example": 1}, 5)
    room.use("hook@a.example")
    assert (room.left("hook@a.example"), room.left("hook@b.example")) == (0, 5)


def test_a_paused_provider_closes_all_its_hosts() -> None:
    room = OutletCapacity({"hook": 0, "twilio": 0, "sns@x": -1, "acs": 1}, 5)
    assert room.closed == ["hook", "twilio", "sns@x"]
    assert not room.open("hook@a.example")
    assert room.left("hook@a.example") == 0
    assert not room.open("twilio")
    assert room.open("acs")


def test_a_host_without_capacity_does_not_close_its_provider() -> None:
    room = OutletCapacity({"hook@a.example": 0}, 5)
    assert not room.open("hook@a.example")
    assert room.open("hook@b.example")


@given(
    st.dictionaries(st.sampled_from([*OUTLETS, "hook"]), st.integers(0, 4)),
    st.integers(1, 4),
    st.lists(st.sampled_from(OUTLETS), max_size=30),
)
def test_no_allocation_exceeds_the_capacity_of_an_outlet_or_its_provider(
    given_room: dict[str, int], slots: int, wanted: list[str]
) -> None:
    room, dealt = OutletCapacity(given_room, slots), Counter[str]()
    for outlet in wanted:
        if room.left(outlet) > 0:
            assert room.open(outlet)
            room.use(outlet)
            dealt[outlet] += 1
    for outlet, count in dealt.items():
        assert count <= given_room.get(outlet, slots)
    if "hook" in given_room:
        assert sum(count for outlet, count in dealt.items() if "@" in outlet) <= given_room["hook"]
