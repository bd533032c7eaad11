"""Fair shares: the shortcut for whole rounds gives the same result as dealing row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from homing.core.lifecycle.claims import LaneCapacity
from homing.core.routing.fair_share import DueQueue, DueRow, FairShare, OutletCapacity

OUTLETS = ("x", "y", "hook@1", "hook@2", "hook")

Places = dict[tuple[str, str], int]
"""(tenant, outlet) → number of due rows."""

places = st.dictionaries(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(OUTLETS)), st.integers(0, 40), max_size=12
)
rooms = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 30), max_size=4)
outlets = st.dictionaries(st.sampled_from(OUTLETS), st.integers(0, 60), max_size=5)


def rows_of(place: tuple[str, str], number: int) -> list[DueRow]:
    tenant, outlet = place
    return [(n, f"{tenant} {outlet} {n:03}", n) for n in range(number)]


class OneByOne(FairShare):
    """The rule itself, without the shortcut."""

    def _whole_rounds(self, line: Sequence[tuple[int, str]]) -> list[DueRow]:
        return []


def share(
    kind: type[FairShare],
    due: Places,
    capacity: LaneCapacity,
    outlet_capacity: dict[str, int],
    served: dict[str, int],
) -> tuple[list[str], list[tuple[str, int]], int]:
    def fetch(queues: Sequence[DueQueue], limit: int) -> None:
        assert limit > 0
        for queue in queues:
            there = [
                row
                for row in rows_of((queue.tenant, queue.outlet), due[queue.tenant, queue.outlet])
                if row[:2] > queue.after[:2]
            ][:limit]
            queue.fill(there, limit)

    queues = [DueQueue("lane", tenant, outlet, 0) for tenant, outlet in due]
    dealing = kind(capacity, OutletCapacity(outlet_capacity, 25), queues, served, 100)
    running = dealing.run()
    while True:
        try:
            fetch(*next(running))
        except StopIteration as end:
            dealt: list[DueRow] = end.value
            break
    return [id for _, id, _ in dealt], sorted(dealing.served()), dealing.serial


@given(places, st.integers(0, 80), st.integers(0, 40), rooms, outlets)
def test_whole_rounds_equal_dealing_row_by_row(
    due: Places, slots: int, tenant_slots: int, capacity: dict[str, int], outlet_capacity: dict[str, int]
) -> None:
    lane = LaneCapacity(slots=slots, tenant_slots=tenant_slots, tenant_capacity=capacity)
    served = {"a": 7, "b": 3}
    assert share(FairShare, due, lane, outlet_capacity, served) == share(
        OneByOne, due, lane, outlet_capacity, served
    )


@given(places, st.integers(0, 80), st.integers(0, 40), rooms, outlets)
def test_no_capacity_is_exceeded_and_none_is_left_unused(
    due: Places, slots: int, tenant_slots: int, capacity: dict[str, int], outlet_capacity: dict[str, int]
) -> None:
    lane = LaneCapacity(slots=slots, tenant_slots=tenant_slots, tenant_capacity=capacity)
    dealt, _, _ = share(FairShare, due, lane, outlet_capacity, {})
    taken = [id.split() for id in dealt]
    by_tenant, by_place = Counter(t for t, _, _ in taken), Counter((t, o) for t, o, _ in taken)
    left = OutletCapacity(outlet_capacity, 25)
    for _, outlet, _ in taken:
        assert left.left(outlet) > 0
        left.use(outlet)
    assert len(dealt) == len(set(dealt)) <= slots
    assert all(number <= capacity.get(tenant, tenant_slots) for tenant, number in by_tenant.items())
    for (tenant, outlet), number in due.items():
        assert by_place[tenant, outlet] <= number
        left_over = by_place[tenant, outlet] < number
        full = (
            len(dealt) == slots
            or by_tenant[tenant] >= capacity.get(tenant, tenant_slots)
            or left.left(outlet) <= 0
        )
        assert full or not left_over


@given(st.integers(0, 200), st.integers(1, 60))
def test_a_flood_leaves_a_small_tenant_its_share(flood: int, slots: int) -> None:
    lane = LaneCapacity(slots=slots, tenant_slots=1000)
    dealt, _, _ = share(FairShare, {("a", "x"): flood, ("b", "y"): 5}, lane, {"x": 1000, "y": 1000}, {})
    small = sum(id.startswith("b") for id in dealt)
    assert small >= min(5, slots // 2)
    assert len(dealt) == min(slots, flood + 5)
