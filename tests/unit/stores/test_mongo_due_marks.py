"""From where a claim on MongoDB searches busy queues."""

from __future__ import annotations

from homing.core.routing.fair_share import DueQueue
from homing.stores.mongo.documents import queue_key
from homing.stores.mongo.due_marks import DueMarks
from support.sweep_clock import SweepClock, pace_of_slow_sweeps

MARGIN_MS = 200


def key(tenant: str) -> str:
    return queue_key("standard.email", tenant, "smtp")


def served(tenant: str, *left: int, last: int = 50_000) -> DueQueue:
    """Returns a queue of which a claim took rows up to `last`. Those in `left` were fetched and not taken."""
    queue = DueQueue(
        "standard.email", tenant, "smtp", 1, took=True, after=(left[-1] if left else last, "id", 0)
    )
    queue.rows.extend((due_at, "id", 0) for due_at in left)
    return queue


def with_slow_sweeps(clock: SweepClock) -> DueMarks:
    marks = DueMarks()
    marks.pace = pace_of_slow_sweeps(clock)
    return marks


def test_a_busy_queue_is_searched_from_shortly_before_its_first_row() -> None:
    marks = with_slow_sweeps(SweepClock())
    marks.note([served("a", 60_000, 70_000), served("b", last=50_000)], {key("a"): 2, key("b"): 1})
    assert marks.begin() == {key("a"): 60_000 - MARGIN_MS, key("b"): 50_000 - MARGIN_MS}


def test_a_queue_of_which_nothing_was_taken_is_searched_from_the_beginning() -> None:
    marks = with_slow_sweeps(SweepClock())
    marks.note([DueQueue("standard.email", "a", "smtp", 1, after=(60_000, "id", 0), looked=True)], {})
    assert marks.begin() == {}


def test_all_queues_are_searched_from_the_beginning_in_a_twentieth_of_the_time() -> None:
    clock = SweepClock()
    marks = with_slow_sweeps(clock)
    marks.note([served("a")], {key("a"): 1})
    assert marks.sweep_at(1_000) == 3_000
    clock.now += 1.9
    assert marks.begin()
    clock.now += 0.2
    assert marks.begin() == {}
    assert marks.sweep_at(1_000) == 1_001


def test_while_sweeps_are_fast_every_claim_makes_one() -> None:
    marks = DueMarks()
    marks.note([served("a")], {key("a"): 1})
    assert marks.begin() == {}
    assert marks.by_queue


def test_the_busiest_queues_keep_their_marks() -> None:
    marks = with_slow_sweeps(SweepClock())
    tenants = [f"t{number}" for number in range(12)]
    marks.note([served(tenant) for tenant in tenants], {key(t): 10 + n for n, t in enumerate(tenants)})
    assert set(marks.begin()) == {key(tenant) for tenant in tenants[4:]}
    marks.note([served("flood")], {key("flood"): 500})
    assert key("flood") in marks.begin()
    assert len(marks.begin()) == 8
