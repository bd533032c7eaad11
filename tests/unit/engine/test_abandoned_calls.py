"""Calls that run on after the deadline of their attempt."""

from __future__ import annotations

from homing.core.notifications import Mode
from homing.engine.delivery.abandoned_calls import AbandonedCalls
from support.core_builders import make_claim

MAIL = make_claim(id="a", provider="ses", outlet="ses", tenant="acme", mode=Mode.BULK)
HOOK = make_claim(id="b", provider="hook", outlet="hook@x", tenant="acme", mode=Mode.BULK)


def test_calls_are_counted_by_provider_outlet_and_share_until_they_return() -> None:
    calls = AbandonedCalls()
    for claim in (MAIL, HOOK):
        calls.add(claim)
    assert (len(calls), MAIL in calls, HOOK in calls) == (2, True, True)
    assert calls.providers == {"ses": 1, "hook": 1}
    assert calls.outlets == {"ses": 1, "hook@x": 1}
    assert calls.shares == {("ses", Mode.BULK, "acme"): 1, ("hook", Mode.BULK, "acme"): 1}
    assert calls.hosts == {("hook@x", Mode.BULK, "acme"): 1}  # a whole provider is no host
    calls.remove(HOOK)
    calls.remove(HOOK)  # it returned once
    assert (len(calls), HOOK in calls) == (1, False)
    assert calls.providers == {"ses": 1}


def test_nothing_is_kept_of_tenants_and_hosts_whose_calls_have_returned() -> None:
    calls = AbandonedCalls()
    calls.add(HOOK)
    calls.remove(HOOK)
    assert [list(counts) for counts in (calls.providers, calls.outlets, calls.shares, calls.hosts)] == [
        []
    ] * 4
