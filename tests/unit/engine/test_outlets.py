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
