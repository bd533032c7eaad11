"""Fair shares: the shortcut for whole rounds gives the same result as dealing row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from homing.core.lifecycle.claims import ClaimRequest, LaneCapacity, NewOutletsCapacity, ProviderCapacity
from homing.core.notifications import Mode, mode_of
from homing.core.routing.fair_share import (
    TENANT_FACTOR,
    ClaimCapacity,
    DueQueue,
    DueRow,
    FairShare,
    TenantTurns,
    new_outlets_share,
    reserve_of,
)

LANES = ("priority.email", "standard.email", "standard.sms", "bulk.email")

OUTLETS = ("x", "y", "hook@1", "hook@2")

Place = tuple[str, str, str]
"""(lane, tenant, outlet)."""

places = st.dictionaries(
    st.tuples(st.sampled_from(LANES), st.sampled_from("abcd"), st.sampled_from(OUTLETS)),
    st.integers(0, 40),
    max_size=12,
)
factors = st.sampled_from([None, 1, 7])
lane_capacities = st.builds(
    LaneCapacity,
    slots=st.integers(0, 80),
    held=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40)),
    tenant_factor=factors,
)
queued_modes = st.sampled_from([Mode.PRIORITY, Mode.STANDARD, Mode.BULK])
provider_capacities = st.builds(
    ProviderCapacity,
    slots=st.integers(0, 60),
    reserved=st.dictionaries(queued_modes, st.integers(0, 9)),
    starts=st.integers(0, 60),
    reserved_starts=st.integers(0, 5),
    owed=st.dictionaries(queued_modes, st.integers(0, 2)),
    held=st.dictionaries(st.tuples(queued_modes, st.sampled_from("abcd")), st.integers(0, 40)),
    tenant_factor=factors,
    hanging_slots=st.integers(0, 9),
    new_outlets=st.one_of(
        st.none(),
        st.builds(
            NewOutletsCapacity,
            slots=st.integers(0, 20),
            reserved=st.dictionaries(queued_modes, st.integers(0, 4)),
            held=st.dictionaries(st.tuples(queued_modes, st.sampled_from("abcd")), st.integers(0, 20)),
        ),
    ),
)
requests = st.builds(
    ClaimRequest,
    worker=st.just("w"),
    lease_ms=st.just(1),
    lanes=st.fixed_dictionaries(dict.fromkeys(LANES, lane_capacities)),
    providers=st.dictionaries(st.sampled_from(["x", "y", "hook"]), provider_capacities),
    stand_ins=st.sampled_from([{}, {"y": "x"}]),
    outlet_slots=st.integers(0, 60),
    outlet_capacity=st.dictionaries(st.sampled_from(OUTLETS), st.integers(0, 60), max_size=4),
    hanging=st.sampled_from([frozenset(), frozenset({"hook@1"}), frozenset({"hook@1", "hook@2"})]),
    answering=st.sampled_from([frozenset(), frozenset({"hook@2"})]),
    limit=st.one_of(st.none(), st.integers(0, 60)),
)


class OneByOne(FairShare):
    """The rule itself, without the shortcut."""

    def _deal_whole_rounds(self, tenants: Sequence[object]) -> list[DueRow]:
        return []


def rows_of(place: Place, number: int) -> list[DueRow]:
    lane, tenant, outlet = place
    return [(n, f"{lane} {tenant} {outlet} {n:03}", n) for n in range(number)]


def share(
    kind: type[FairShare], due: dict[Place, int], request: ClaimRequest, serial: int = 100
) -> tuple[list[str], int]:
    dealing, _ = deal(kind, due, request, serial)
    return [id for _, id, _ in dealing.dealt], dealing.serial


def deal(
    kind: type[FairShare], due: dict[Place, int], request: ClaimRequest, serial: int = 100
) -> tuple[FairShare, int]:
    """Runs a claim. Returns it and the number of its fetches."""
    queues = [DueQueue(*place, served=number % 5) for number, place in enumerate(due)]
    turns = TenantTurns()
    turns.record({(Mode.STANDARD, "x", "a"): 7, (Mode.STANDARD, "x", "b"): 3})
    dealing = kind(ClaimCapacity(request), queues, turns, serial)
    fetches = 0
    for wanted, limit in dealing.run():
        fetches += 1
        assert 0 < limit <= sum(lane.slots for lane in request.lanes.values())
        for queue in wanted:
            place = (queue.lane, queue.tenant, queue.outlet)
            there = [row for row in rows_of(place, due[place]) if row[:2] > queue.after[:2]][:limit]
            queue.fill(there, limit)
    return dealing, fetches


def test_only_queues_that_were_dealt_a_row_have_had_a_turn() -> None:
    due = {("bulk.email", tenant, outlet): 5 for tenant in "ab" for outlet in ("x", "y")}
    lanes = {"bulk.email": LaneCapacity(slots=9)}
    providers = {"x": ProviderCapacity(slots=1), "y": ProviderCapacity(slots=9)}
    request = ClaimRequest(worker="w", lease_ms=1, lanes=lanes, providers=providers, outlet_slots=1000)
    dealing, _ = deal(FairShare, due, request)
    dealt = {tuple(id.split()[:3]) for _, id, _ in dealing.dealt}
    assert {(q.lane, q.tenant, q.outlet) for q in dealing.took_turns()} == dealt
    assert len(dealt) == 3 < len(dealing.looked())
    assert {(provider, tenant) for _, provider, tenant in dealing.taken()} == {
        (outlet, tenant) for _, tenant, outlet in dealt
    }


def test_a_turn_that_the_store_has_lost_delays_no_tenant() -> None:
    due = {("standard.email", tenant, outlet): 5 for tenant in "ab" for outlet in ("x", "y")}
    request = ClaimRequest(
        worker="w",
        lease_ms=1,
        lanes={"standard.email": LaneCapacity(slots=2)},
        providers={"x": ProviderCapacity(slots=9), "y": ProviderCapacity(slots=0)},
        stand_ins={"y": "x"},
        outlet_slots=1000,
    )
    ids, _ = share(FairShare, due, request, serial=3)
    assert [id.split()[1] for id in ids] == ["a", "b"]


def test_rows_of_tenants_with_many_outlets_are_fetched_at_once() -> None:
    due = {("bulk.email", tenant, f"hook@{tenant}/{n * 37 % 100}"): 5 for tenant in "abc" for n in range(100)}
    provider = ProviderCapacity(slots=64, tenant_factor=TENANT_FACTOR, outlet_slots=2)
    lanes = {"bulk.email": LaneCapacity(slots=256)}
    request = ClaimRequest(
        worker="w", lease_ms=1, lanes=lanes, providers={"hook": provider}, outlet_slots=1000
    )
    dealing, fetches = deal(FairShare, due, request)
    assert len(dealing.dealt) > 50
    assert fetches == 1


def test_a_fetch_asks_for_no_more_queues_of_a_tenant_than_it_can_get_rows() -> None:
    queues = [DueQueue("bulk.email", "a", f"hook@{n}", served=n) for n in range(20)]
    queues += [DueQueue("bulk.email", "b", "hook@b", served=0)]
    provider = ProviderCapacity(slots=64, held={(Mode.BULK, "a"): 60}, tenant_factor=1)
    request = ClaimRequest(
        worker="w",
        lease_ms=1,
        lanes={"bulk.email": LaneCapacity(slots=256)},
        providers={"hook": provider},
        outlet_slots=1000,
    )
    wanted, _ = next(FairShare(ClaimCapacity(request), queues, TenantTurns(), 100).run())
    asked = Counter(queue.tenant for queue in wanted)
    assert asked["b"] == 1
    assert asked["a"] == ClaimCapacity(request).tenant_left(Mode.BULK, "hook", "a") < 20


@given(places, requests)
def test_whole_rounds_equal_dealing_row_by_row(due: dict[Place, int], request: ClaimRequest) -> None:
    assert share(FairShare, due, request) == share(OneByOne, due, request)


@given(places, requests)
def test_no_capacity_is_exceeded_and_none_is_left_unused(
    due: dict[Place, int], request: ClaimRequest
) -> None:
    dealt, _ = share(FairShare, due, request)
    taken = Counter[Place]()
    left = ClaimCapacity(request)
    for id in dealt:
        lane, tenant, outlet, _ = id.split()
        queue = DueQueue(lane, tenant, outlet, 0)
        assert left.is_open(queue)
        left.use(queue)
        taken[lane, tenant, outlet] += 1
    assert len(dealt) == len(set(dealt))
    for place, number in due.items():
        assert taken[place] <= number
        assert taken[place] == number or left.left(DueQueue(*place, 0)) <= 0


@given(places, requests)
def test_urgent_rows_come_first_except_for_what_others_are_owed(
    due: dict[Place, int], request: ClaimRequest
) -> None:
    order = [Mode.PRIORITY, Mode.STANDARD, Mode.BULK]
    dealt, _ = share(FairShare, due, request)
    ranks = [order.index(mode_of(id.split()[0])) for id in dealt]
    owed = sum(number for one in request.providers.values() for number in one.owed.values())
    assert any(ranks[start:] == sorted(ranks[start:]) for start in range(owed + 1))


@given(st.integers(0, 200), st.integers(1, 60))
@example(200, 8)
def test_a_flood_leaves_a_small_tenant_its_share(flood: int, slots: int) -> None:
    request = ClaimRequest(
        worker="w", lease_ms=1, lanes={"bulk.email": LaneCapacity(slots=slots)}, outlet_slots=1000
    )
    due = {("bulk.email", "a", "x"): flood, ("bulk.email", "b", "y"): 5}
    dealt, _ = share(FairShare, due, request)
    small = sum(" b " in id for id in dealt)
    assert small >= min(5, slots // 2)
    assert len(dealt) == min(slots, flood + 5)


@given(st.integers(2, 200), st.integers(0, 3))
def test_a_flood_in_bulk_always_leaves_a_slot_for_priority_and_for_another_tenant(
    slots: int, flooding: int
) -> None:
    reserved = {mode: reserve_of(mode, slots) for mode in (Mode.PRIORITY, Mode.STANDARD, Mode.BULK)}
    provider = ProviderCapacity(slots=slots, reserved=reserved, tenant_factor=TENANT_FACTOR)
    request = ClaimRequest(
        worker="w",
        lease_ms=1,
        lanes=dict.fromkeys(LANES, LaneCapacity(slots=1000)),
        providers={"x": provider},
        outlet_slots=1000,
    )
    due = {("bulk.email", f"flood-{n}", "x"): 500 for n in range(flooding + 1)}
    dealt, _ = share(FairShare, due, request)
    after = ClaimCapacity(request)
    for id in dealt:
        lane, tenant, outlet, _ = id.split()
        after.use(DueQueue(lane, tenant, outlet, 0))
    assert after.left(DueQueue("priority.email", "flood-0", "x", 0)) >= 1
    assert after.left(DueQueue("priority.email", "new", "x", 0)) >= 1
    if slots >= 64:
        assert after.left(DueQueue("bulk.email", "new", "x", 0)) >= 1


@given(st.integers(2, 200), st.integers(0, 3))
@example(128, 0)
def test_a_flood_at_hosts_that_have_not_answered_leaves_a_slot_for_another_new_host(
    slots: int, flooding: int
) -> None:
    half = new_outlets_share(slots)
    modes = (Mode.PRIORITY, Mode.STANDARD, Mode.BULK)
    provider = ProviderCapacity(
        slots=slots,
        reserved={mode: reserve_of(mode, slots) for mode in modes},
        tenant_factor=TENANT_FACTOR,
        new_outlets=NewOutletsCapacity(slots=half, reserved={mode: reserve_of(mode, half) for mode in modes}),
        outlet_slots=2,
    )
    request = ClaimRequest(
        worker="w",
        lease_ms=1,
        lanes=dict.fromkeys(LANES, LaneCapacity(slots=1000)),
        providers={"hook": provider},
        outlet_slots=1000,
    )
    due = {
        ("bulk.email", f"flood-{n}", f"hook@flood-{n}/{host}"): 2
        for n in range(flooding + 1)
        for host in range(100)
    }
    dealt, _ = share(FairShare, due, request)
    after = ClaimCapacity(request)
    for id in dealt:
        lane, tenant, outlet, _ = id.split()
        after.use(DueQueue(lane, tenant, outlet, 0))
    assert dealt
    assert after.left(DueQueue("priority.email", "flood-0", "hook@flood-0/new", 0)) >= 1
    assert after.left(DueQueue("priority.email", "new", "hook@new/1", 0)) >= 1
    if slots >= 64:
        assert after.left(DueQueue("bulk.email", "new", "hook@new/1", 0)) >= 1
    if slots >= 128:
        assert after.left(DueQueue("priority.email", "new", "hook@new/1", 0)) >= 2, "more than the first"
