"""Outlets: which endpoints are remembered, and which are paused."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from homing import Listed
from homing.core.notifications import Channel, OutcomeKind
from homing.core.routing.breaker import BreakerPolicy
from homing.engine.delivery import outlets as module
from homing.engine.delivery.outlets import Outlets
from homing.engine.provider_roster import ProviderRoster
from homing.providers.local.scripted import ScriptedProvider
from homing.testing.manual_clock import ManualClock

HOOK = Listed(
    id="hook",
    provider=ScriptedProvider(),
    channels=(Channel.WEBHOOK,),
    host_slots=2,
    breaker=BreakerPolicy(failures=1),
)


@pytest.fixture
def outlets(monkeypatch: pytest.MonkeyPatch) -> Outlets:
    monkeypatch.setattr(module, "_MAX_OUTLETS", 3)
    return Outlets(ProviderRoster([HOOK]), ManualClock())


def answers(outlets: Outlets, *names: str, kind: OutcomeKind = OutcomeKind.ACCEPTED) -> None:
    for name in names:
        outlets.answered(HOOK, name, kind, 5, False)


def test_the_outlet_that_answered_longest_ago_is_forgotten(outlets: Outlets) -> None:
    answers(outlets, "hook@a", "hook@b", "hook@c")
    answers(outlets, "hook@a")  # nothing changes but the order
    answers(outlets, "hook@d")
    assert outlets.answering == {"hook@a", "hook@c", "hook@d"}


def test_a_paused_and_a_hanging_outlet_are_kept_before_others(outlets: Outlets) -> None:
    answers(outlets, "hook@down", kind=OutcomeKind.TRANSIENT)
    outlets.answered(HOOK, "hook@hangs", OutcomeKind.THROTTLED, 5, True)
    answers(outlets, "hook@a", "hook@b", "hook@c")
    assert outlets.paused() == ["hook@down"]
    assert outlets.hanging == {"hook@hangs"}
    assert outlets.answering == {"hook@down", "hook@c"}


def test_an_outlet_is_forgotten_even_if_all_are_paused(outlets: Outlets) -> None:
    answers(outlets, *"abcd", kind=OutcomeKind.TRANSIENT)
    assert sorted(outlets.paused()) == ["b", "c", "d"]


def test_the_pause_of_an_outlet_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outlets = Outlets(ProviderRoster([HOOK]), clock)
    with caplog.at_level(logging.INFO, "homing"):
        answers(outlets, "hook@a")
        answers(outlets, "hook@a", kind=OutcomeKind.TRANSIENT)
        clock.advance(HOOK.breaker_policy.open_ms)
        answers(outlets, "hook@a", "hook@a", "hook@b")
    assert outlets.paused() == []
    assert [record.message for record in caplog.records] == [
        "an endpoint of hook keeps failing; its notifications wait",
        "an endpoint of hook answers again",
    ]


WIDE = replace(HOOK, host_slots=64, breaker=BreakerPolicy(failures=5))


def slots_after(*kinds: OutcomeKind, start: int = 64) -> int:
    """Returns the slots of a quick outlet that has given these answers since it had `start` slots."""
    outlets = Outlets(ProviderRoster([WIDE]), ManualClock())
    for kind in (*[OutcomeKind.ACCEPTED] * start, *kinds):
        outlets.answered(WIDE, "hook@a", kind, 5, False)
    return outlets.capacity({})["hook@a"]


def test_an_outlet_with_a_few_quick_errors_keeps_its_slots() -> None:
    one_in_ten = [*[OutcomeKind.ACCEPTED] * 9, OutcomeKind.TRANSIENT]
    assert slots_after(*one_in_ten * 50, *one_in_ten[:4]) == 64


def test_an_outlet_that_often_fails_loses_its_slots() -> None:
    one_in_two = [OutcomeKind.ACCEPTED, OutcomeKind.TRANSIENT]
    assert slots_after(*one_in_two * 50) == 1


def test_an_outlet_that_asks_to_slow_down_keeps_half_of_its_slots_and_gets_more_slowly() -> None:
    assert slots_after(OutcomeKind.THROTTLED) == 32
    assert slots_after(OutcomeKind.THROTTLED, *[OutcomeKind.ACCEPTED] * 33) == 33


@pytest.mark.parametrize("kind", [OutcomeKind.ACCEPTED, OutcomeKind.TRANSIENT])
def test_the_answer_to_an_earlier_attempt_neither_ends_nor_prolongs_a_pause(kind: OutcomeKind) -> None:
    clock = ManualClock()
    outlets = Outlets(ProviderRoster([HOOK]), clock)
    answers(outlets, "hook@a", kind=OutcomeKind.TRANSIENT)
    clock.advance(1000)
    answers(outlets, "hook@a", kind=kind)
    assert outlets.paused() == ["hook@a"]
    assert outlets.next_trial_ms() == HOOK.breaker_policy.open_ms - 1000


def test_a_paused_outlet_gets_one_slot_for_its_trial_once_its_pause_is_over() -> None:
    clock = ManualClock()
    outlets = Outlets(ProviderRoster([HOOK]), clock)
    answers(outlets, "hook@a", "hook@a", kind=OutcomeKind.TRANSIENT)
    clock.advance(HOOK.breaker_policy.open_ms - 1)
    assert (outlets.paused(), outlets.next_trial_ms()) == (["hook@a"], 1)
    assert outlets.capacity({}) == {"hook@a": 0}
    clock.advance(1)
    assert (outlets.paused(), outlets.next_trial_ms()) == ([], None)
    assert outlets.capacity({}) == {"hook@a": 1}
    assert outlets.capacity({"hook@a": 1}) == {"hook@a": 0}


def test_a_trial_that_proves_nothing_leaves_the_outlet_as_it_was() -> None:
    clock = ManualClock()
    outlets = Outlets(ProviderRoster([HOOK]), clock)
    answers(outlets, "hook@a", kind=OutcomeKind.TRANSIENT)
    clock.advance(HOOK.breaker_policy.open_ms)
    answers(outlets, "hook@a", kind=OutcomeKind.LOST)
    assert outlets.capacity({}) == {"hook@a": 1}


def test_an_outlet_in_use_that_has_not_answered_yet_has_the_slots_of_a_new_one() -> None:
    outlets = Outlets(ProviderRoster([WIDE, replace(HOOK, id="plain", host_slots=None)]), ManualClock())
    new = outlets.new_slots(WIDE)
    assert new is not None
    assert outlets.new_slots(replace(WIDE, host_slots=1)) == 1
    assert outlets.new_slots(replace(WIDE, host_slots=None)) is None
    in_flight = {"hook@new": 1, "hook@full": new + 1, "hook": 1, "plain@a": 1, "gone@a": 1}
    assert outlets.capacity(in_flight) == {"hook@new": new - 1, "hook@full": 0}


def test_a_timeout_leaves_one_slot_until_answers_come_in_time_again() -> None:
    outlets = Outlets(ProviderRoster([WIDE]), ManualClock())
    for _ in range(10):
        outlets.answered(WIDE, "hook@a", OutcomeKind.ACCEPTED, 5, False)
    outlets.answered(WIDE, "hook@a", OutcomeKind.AMBIGUOUS, 30_000, True)
    assert outlets.capacity({}) == {"hook@a": 1}
    assert (set(outlets.hanging), set(outlets.answering)) == ({"hook@a"}, set())
    outlets.answered(WIDE, "hook@a", OutcomeKind.ACCEPTED, 5, False)
    assert (set(outlets.hanging), set(outlets.answering)) == (set(), {"hook@a"})
    assert outlets.capacity({}) == {"hook@a": 2}


def test_an_outlet_that_becomes_slow_loses_a_tenth_of_its_slots_per_answer() -> None:
    outlets = Outlets(ProviderRoster([WIDE]), ManualClock())
    for _ in range(64):
        outlets.answered(WIDE, "hook@a", OutcomeKind.ACCEPTED, 5, False)
    outlets.answered(WIDE, "hook@a", OutcomeKind.ACCEPTED, 29_000, False)
    assert outlets.capacity({}) == {"hook@a": 57}
    for _ in range(60):
        outlets.answered(WIDE, "hook@a", OutcomeKind.ACCEPTED, 29_000, False)
    assert outlets.capacity({}) == {"hook@a": 1}
