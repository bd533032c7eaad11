"""Choice of the provider for the next attempt, and names of outlets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.routing.failover import (
    ProviderChoice,
    Route,
    RouteStep,
    Spent,
    choose_provider,
    next_step,
    put_first,
    refused_only,
    rotate_route,
)
from support.core_builders import NOW, ONE, SECOND, THREE, TWO

NAMES = [step.provider for step in THREE]

routes = st.permutations(THREE).flatmap(lambda order: st.integers(1, 3).map(lambda size: tuple(order[:size])))
holds = st.dictionaries(st.sampled_from(NAMES), st.integers(NOW - SECOND, NOW + 9 * SECOND))


def pick(
    route: Route,
    start: str,
    *,
    pinned: bool = False,
    shut: frozenset[str] = frozenset(),
    holds: dict[str, int] | None = None,
    spent: dict[str, int] | None = None,
) -> ProviderChoice:
    return choose_provider(
        route,
        start,
        pinned=pinned,
        usable=lambda name: name not in shut,
        holds=holds or {},
        spent=spent or {},
        now=NOW,
    )


# The order -------------------------------------------------------------------------------------------


def test_a_route_is_rotated_to_start_at_the_given_provider() -> None:
    assert rotate_route(THREE, "sns") == (RouteStep("sns"), RouteStep("spare"), RouteStep("twilio"))
    assert rotate_route(THREE, "twilio") == THREE
    assert rotate_route(THREE, "elsewhere") == THREE
    assert rotate_route((), "twilio") == ()


@given(routes, st.sampled_from([*NAMES, "elsewhere"]))
def test_rotating_a_route_neither_loses_nor_repeats_a_step(route: Route, start: str) -> None:
    turned = rotate_route(route, start)
    assert sorted(step.provider for step in turned) == sorted(step.provider for step in route)
    if any(step.provider == start for step in route):
        assert turned[0].provider == start


def test_a_provider_is_put_first_without_changing_the_order_of_the_others() -> None:
    assert put_first(THREE, "spare") == (RouteStep("spare"), RouteStep("twilio"), RouteStep("sns"))
    assert put_first(THREE, "twilio") == THREE
    assert put_first(THREE, "elsewhere") == THREE


def test_the_next_step_is_the_first_that_is_neither_spent_nor_stopped_nor_on_hold() -> None:
    def provider(spent: str = "", stopped: str = "", **holds: int) -> str | None:
        step = next_step(THREE, spent=spent.split(), stopped=stopped.split(), holds=holds, now=NOW)
        return None if step is None else step.provider

    assert provider() == "twilio"
    assert provider("twilio") == "sns"
    assert provider("twilio", "sns") == "spare"
    assert provider("twilio", "sns", spare=NOW) == "spare"
    assert provider("twilio", "sns", spare=NOW + 1) is None


# The choice ------------------------------------------------------------------------------------------


@pytest.mark.source("002", "243-244", "265")
def test_the_first_choice_is_the_current_provider() -> None:
    assert pick(TWO, "sns") == ProviderChoice(RouteStep("sns"))


def test_with_an_open_breaker_the_next_provider_is_chosen_and_after_the_last_the_first() -> None:
    assert pick(THREE, "twilio", shut=frozenset({"twilio"})).step == RouteStep("sns")
    assert pick(THREE, "sns", shut=frozenset({"sns", "spare"})).step == RouteStep("twilio")


def test_with_an_open_breaker_the_choice_follows_the_route_from_its_start() -> None:
    assert pick(THREE, "sns", shut=frozenset({"sns"})).step == RouteStep("twilio")
    assert pick(THREE, "sns", shut=frozenset({"sns"}), spent={"twilio": 1}).step == RouteStep("spare")


@pytest.mark.parametrize("kind", list(Spent))
def test_a_spent_provider_is_not_chosen(kind: Spent) -> None:
    assert pick(TWO, "twilio", spent={"twilio": kind}).step == RouteStep("sns")
    assert pick(TWO, "sns", spent={"twilio": kind}).step == RouteStep("sns")


def test_a_round_ends_if_only_spent_providers_could_be_used() -> None:
    stopped = frozenset({"sns"})
    assert pick(TWO, "sns", shut=stopped, spent={"twilio": Spent.THIS_ROUND}) == ProviderChoice(
        None, None, True
    )
    assert pick(TWO, "sns", holds={"sns": NOW + 5}, spent={"twilio": Spent.THIS_ROUND}).round_ended
    assert not pick(TWO, "sns", shut=stopped, spent={"twilio": Spent.REFUSED}).round_ended
    assert not pick(TWO, "sns", shut=frozenset({"sns", "twilio"})).round_ended


def test_a_new_round_keeps_only_the_refusals() -> None:
    assert refused_only({"twilio": Spent.THIS_ROUND, "sns": Spent.REFUSED}) == {"sns": Spent.REFUSED}


def test_a_provider_that_was_removed_from_the_route_is_replaced_by_the_first_usable_one() -> None:
    assert pick(TWO, "gone").step == RouteStep("twilio")
    assert pick(TWO, "gone", shut=frozenset({"twilio"})).step == RouteStep("sns")


def test_a_hold_lasts_until_its_exact_end() -> None:
    assert pick(ONE, "twilio", holds={"twilio": NOW + 1}) == ProviderChoice(None, 1)
    assert pick(ONE, "twilio", holds={"twilio": NOW}) == ProviderChoice(RouteStep("twilio"))
    assert pick(TWO, "twilio", holds={"twilio": NOW + SECOND}).step == RouteStep("sns")


def test_if_all_are_on_hold_it_waits_for_the_first_hold_to_end() -> None:
    found = pick(THREE, "twilio", holds={"twilio": NOW + 9, "sns": NOW + 3, "spare": NOW + 5})
    assert found == ProviderChoice(None, 3)


def test_a_hold_at_a_blocked_provider_does_not_determine_the_next_try() -> None:
    found = pick(TWO, "twilio", shut=frozenset({"sns"}), holds={"twilio": NOW + 9, "sns": NOW + 3})
    assert found == ProviderChoice(None, 9)


def test_if_every_provider_is_blocked_there_is_no_choice_and_no_time() -> None:
    assert pick(TWO, "twilio", shut=frozenset({"twilio", "sns"})) == ProviderChoice(None, None)
    assert pick((), "twilio") == ProviderChoice(None, None)


def test_a_pinned_notification_goes_to_its_provider_or_waits() -> None:
    assert pick(TWO, "sns", pinned=True).step == RouteStep("sns")
    assert pick(TWO, "sns", pinned=True, shut=frozenset({"sns"})) == ProviderChoice(None, None)
    assert pick(TWO, "sns", pinned=True, holds={"sns": NOW + 7}) == ProviderChoice(None, 7)
    assert pick(TWO, "gone", pinned=True) == ProviderChoice(None, None)


@given(routes, st.sampled_from(NAMES), st.booleans(), st.frozensets(st.sampled_from(NAMES)), holds)
def test_a_choice_is_always_usable_and_made_whenever_one_exists(
    route: Route, start: str, pinned: bool, shut: frozenset[str], holds: dict[str, int]
) -> None:
    found = pick(route, start, pinned=pinned, shut=shut, holds=holds)
    able = {
        step.provider
        for step in route
        if step.provider not in shut and (not pinned or step.provider == start)
    }
    free = {name for name in able if holds.get(name, 0) <= NOW}
    if found.step is not None:
        assert found.step.provider in free
        assert found.wait_ms is None
    else:
        assert not free
        assert found.wait_ms == min((holds[name] - NOW for name in able), default=None)


# Outlets ---------------------------------------------------------------------------------------------


def test_a_provider_without_host_slots_is_its_own_outlet() -> None:
    assert RouteStep("twilio").outlet("acme", "+15550100") == "twilio"
    assert RouteStep("relay").outlet("acme", "https://shop.example/in") == "relay"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://shop.example/in", "shop.example"),
        ("https://SHOP.Example/In", "shop.example"),
        ("https://shop.example:8443/in?x=1#y", "shop.example:8443"),
        ("https://user:secret@shop.example/in", "shop.example"),
        ("https://user:p@ss@shop.example:8443", "shop.example:8443"),
        ("https://[2001:DB8::1]:8443/in", "[2001:db8::1]:8443"),
        ("https://[::1]/in", "[::1]"),
        ("https://shop.example", "shop.example"),
    ],
)
def test_each_host_is_its_own_outlet_however_its_url_is_written(url: str, host: str) -> None:
    assert RouteStep("webhook", per_host=True).outlet("acme", url) == f"webhook@acme/https://{host}"


def test_no_password_is_part_of_an_outlet_s_name() -> None:
    step = RouteStep("webhook", per_host=True)
    assert "secret" not in step.outlet("acme", "https://user:secret@shop.example/in")
    assert "secret" not in RouteStep("apprise", per_host=True).outlet("acme", "tgram://secret/42")


def test_tenants_and_schemes_have_outlets_of_their_own() -> None:
    step = RouteStep("webhook", per_host=True)
    urls = (
        "https://shop.example/in",
        "http://shop.example/in",
        "json://shop.example",
        "json://other.example",
    )
    outlets = [step.outlet(tenant, url) for tenant in ("acme", "globex") for url in urls]
    assert len(set(outlets)) == len(outlets)
    assert all(outlet.partition("@")[0] == "webhook" for outlet in outlets)
