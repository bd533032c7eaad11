"""Which rule applies, and where each field of the policy comes from."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Mode, Priority
from homing.core.retry.backoff import base_delay_ms
from homing.core.retry.policy import (
    MODE_DEFAULTS,
    MatchKeys,
    OnTimeout,
    PolicyBook,
    PolicyPatch,
    Preset,
    RetryPolicy,
    Rule,
    decode_rule,
)
from homing.core.retry.presets import CHANNEL, PRESETS, PRIORITY, SIMPLE
from homing.core.routing.delivery_modes import mode_of
from support.core_builders import HOUR, MINUTE, SECOND, make_keys

KEYS = ("tenant", "type", "origin", "channel", "priority")
BARE = Preset(name="bare", rules=(Rule(name="none"),), fallback="none")
"""An empty preset, so that only the mode and the defaults apply."""


def rule(name: str, **fields: Any) -> Rule:
    """Builds a rule from match keys and policy fields together."""
    keys = {key: value for key, value in fields.items() if key in KEYS}
    patch = {key: value for key, value in fields.items() if key not in KEYS}
    return Rule(name=name, policy=PolicyPatch(**patch), **keys)


def naming(named: tuple[str, ...], keys: MatchKeys) -> Rule:
    """Builds a rule that matches exactly these keys of the notification."""
    return replace(Rule(name="+".join(named) or "all"), **{key: str(getattr(keys, key)) for key in named})


ALL_RULES = [naming(named, make_keys()) for n in range(6) for named in itertools.combinations(KEYS, n)]


def test_a_rule_matches_only_if_all_its_keys_agree() -> None:
    everything = naming(KEYS, make_keys())
    assert everything.matches(make_keys())
    others: dict[str, Any] = {
        "tenant": "other",
        "type": "other",
        "origin": "other",
        "channel": Channel.PUSH,
        "priority": Priority.LOW,
    }
    for key, value in others.items():
        assert not everything.matches(make_keys(**{key: value}))
        assert naming(tuple(k for k in KEYS if k != key), make_keys()).matches(make_keys(**{key: value}))


@pytest.mark.parametrize(("better", "worse"), list(itertools.pairwise(KEYS)))
def test_of_two_rules_with_one_key_each_the_earlier_key_wins(better: str, worse: str) -> None:
    keys = make_keys()
    book = PolicyBook(BARE, [naming((worse,), keys), naming((better,), keys)])
    found = book.resolve(keys, Mode.STANDARD)
    assert (found.rule, found.passed_over) == (better, (worse,))


@given(st.lists(st.sampled_from(ALL_RULES), min_size=1, max_size=8, unique=True))
def test_the_most_specific_rule_wins_and_ties_follow_the_order_of_the_keys(rules: list[Rule]) -> None:
    def worth(candidate: Rule) -> tuple[int, list[int]]:
        named = [key for key in KEYS if getattr(candidate, key) != "*"]
        return -len(named), [KEYS.index(key) for key in named]

    expected = sorted(rules, key=worth)
    found = PolicyBook(BARE, rules).resolve(make_keys(), Mode.STANDARD)
    assert found.rule == expected[0].name
    assert set(found.passed_over) == {one.name for one in expected[1:]}


def test_three_later_keys_win_over_the_first_two() -> None:
    rules = [
        naming(("tenant", "type"), make_keys()),
        naming(("origin", "channel", "priority"), make_keys()),
    ]
    assert PolicyBook(BARE, rules).resolve(make_keys(), Mode.STANDARD).rule == "origin+channel+priority"


def test_of_two_rules_with_the_same_keys_the_first_wins() -> None:
    rules = [rule("first", tenant="default", max_attempts=2), rule("second", tenant="default")]
    found = PolicyBook(BARE, rules).resolve(make_keys(), Mode.STANDARD)
    assert (found.rule, found.passed_over, found.policy.max_attempts) == ("first", ("second",), 2)


def test_a_rule_that_does_not_match_contributes_nothing() -> None:
    book = PolicyBook(BARE, [rule("theirs", tenant="other"), rule("ours", tenant="default")])
    assert book.resolve(make_keys(), Mode.STANDARD).passed_over == ()
    nobody = book.resolve(make_keys(tenant="third"), Mode.STANDARD)
    assert (nobody.rule, nobody.passed_over) == (None, ())


def test_fields_come_from_the_rule_then_the_preset_then_the_mode_then_the_default() -> None:
    book = PolicyBook(PRIORITY, [rule("mine", type="order_confirmed", max_attempts=2, failover_after=1)])
    found = book.resolve(make_keys(), Mode.PRIORITY)
    assert found.policy.max_attempts == 2
    assert found.policy.base_ms == 2 * MINUTE
    assert found.policy.cap_ms == HOUR
    assert found.policy.timeout_ms == 15 * SECOND
    assert (found.rule, found.preset_rule) == ("mine", "medium")
    assert found.sources == {
        "max_attempts": "rule mine",
        "failover_after": "rule mine",
        "failover_wait": "default",
        "backoff": "preset priority/medium",
        "base_ms": "preset priority/medium",
        "factor": "preset priority/medium",
        "cap_ms": "preset priority/medium",
        "jitter": "preset priority/medium",
        "jitter_ratio": "preset priority/medium",
        "timeout_ms": "mode priority",
        "jitter_ms": "default",
        "steps_ms": "default",
        "on_timeout": "default",
        "max_age_ms": "default",
        "bounce_failover": "default",
        "call": "default",
    }


def test_a_longer_base_raises_the_cap_that_the_rule_did_not_set() -> None:
    book = PolicyBook(PRIORITY, [rule("slow", priority="critical", base_ms=HOUR)])
    found = book.resolve(make_keys(priority=Priority.CRITICAL), Mode.PRIORITY)
    assert (found.policy.base_ms, found.policy.cap_ms) == (HOUR, HOUR)
    assert found.sources["cap_ms"] == "rule slow"


def test_a_user_s_rule_wins_over_a_more_specific_preset_rule() -> None:
    book = PolicyBook(CHANNEL, [rule("patient", max_attempts=9)])
    found = book.resolve(make_keys(origin="auth", channel=Channel.SMS), Mode.STANDARD)
    assert (found.preset_rule, found.policy.max_attempts, found.policy.base_ms) == ("sms/auth", 9, 3 * SECOND)


@pytest.mark.parametrize("mode", list(Mode))
def test_fields_set_by_neither_rule_nor_preset_come_from_the_mode(mode: Mode) -> None:
    found = PolicyBook(BARE).resolve(make_keys(), mode)
    assert found.sources["max_attempts"] == found.sources["timeout_ms"] == f"mode {mode.value}"
    assert found.policy == replace(RetryPolicy(), **MODE_DEFAULTS[mode])


@pytest.mark.source("002", "65-68")
def test_modes_contribute_the_numbers_of_their_table() -> None:
    assert MODE_DEFAULTS == {
        Mode.SYNCHRONOUS: {"timeout_ms": 2_000, "max_attempts": 1},
        Mode.PRIORITY: {"timeout_ms": 15_000, "max_attempts": 3},
        Mode.STANDARD: {"timeout_ms": 30_000, "max_attempts": 6},
        Mode.BULK: {"timeout_ms": 30_000, "max_attempts": 6},
    }


def test_the_same_lookup_returns_the_same_result_and_policy_is_its_short_form() -> None:
    book = PolicyBook(SIMPLE)
    first = book.resolve(make_keys(), Mode.BULK)
    assert book.resolve(make_keys(), Mode.BULK) is first
    assert book.policy(make_keys(), Mode.BULK) is first.policy


def test_changing_a_book_returns_a_new_book_and_leaves_the_old_one_unchanged() -> None:
    before = PolicyBook(SIMPLE)
    after = PolicyBook(SIMPLE, [rule("more", max_attempts=7)])
    assert before.policy(make_keys(), Mode.BULK).max_attempts == 3
    assert after.policy(make_keys(), Mode.BULK).max_attempts == 7


def test_a_rule_for_normal_priority_is_a_rule_for_medium() -> None:
    normal = decode_rule({"name": "n", "priority": "normal", "policy": {"max_attempts": 2}}, "policy[0]")
    book = PolicyBook(PRIORITY, [normal])
    assert book.resolve(make_keys(priority=Priority.MEDIUM), Mode.STANDARD).rule == "n"


def test_a_rule_is_checked_only_against_preset_rules_that_can_match_together() -> None:
    tight = rule("tight", priority="critical", cap_ms=60 * SECOND)
    book = PolicyBook(PRIORITY, [tight])
    assert book.policy(make_keys(priority=Priority.CRITICAL), Mode.PRIORITY).cap_ms == 60 * SECOND


def test_a_rule_outside_the_preset_s_rules_is_checked_against_the_fallback() -> None:
    short = rule("short", channel="webhook", cap_ms=4 * SECOND)
    with pytest.raises(ConfigError, match="below base_ms 5000"):
        PolicyBook(CHANNEL, [short])
    meets_two = rule("two", channel="sms", cap_ms=4 * SECOND)
    with pytest.raises(ConfigError, match="below base_ms 5000"):
        PolicyBook(CHANNEL, [meets_two])
    meets_one = rule("one", channel="sms", origin="auth", cap_ms=4 * SECOND)
    policy = PolicyBook(CHANNEL, [meets_one]).policy(
        make_keys(origin="auth", channel=Channel.SMS), Mode.STANDARD
    )
    assert (policy.base_ms, policy.cap_ms) == (3 * SECOND, 4 * SECOND)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(ALL_RULES), max_size=4, unique=True), st.sampled_from(ALL_RULES))
def test_an_accepted_book_has_a_policy_for_every_notification(rules: list[Rule], one: Rule) -> None:
    capped = replace(one, name="capped", policy=PolicyPatch(cap_ms=5 * SECOND))
    try:
        book = PolicyBook(CHANNEL, [*rules, capped])
    except ConfigError:
        return
    for channel, priority, mode in itertools.product(Channel, Priority, Mode):
        for origin in ("auth", "orders", "other"):
            policy = book.policy(make_keys(channel=channel, priority=priority, origin=origin), mode)
            assert policy.cap_ms >= policy.base_ms


def test_the_longest_timeout_covers_every_mode_and_rule() -> None:
    assert PolicyBook(PRIORITY).longest_timeout_ms == 30 * SECOND
    assert PolicyBook(CHANNEL).longest_timeout_ms == 30 * SECOND
    slow = rule("slow", tenant="x", timeout_ms=90 * SECOND)
    assert PolicyBook(CHANNEL, [slow]).longest_timeout_ms == 90 * SECOND
    patient = Preset(name="p", rules=(rule("all", timeout_ms=45 * SECOND),), fallback="all")
    assert PolicyBook(patient, [rule("quick", timeout_ms=SECOND)]).longest_timeout_ms == 45 * SECOND


def test_two_rules_with_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="appears twice") as caught:
        PolicyBook(BARE, [rule("twin", tenant="a"), rule("twin", tenant="b")])
    assert caught.value.field == "policy.twin"


def test_a_rule_may_have_the_name_of_a_preset_rule() -> None:
    found = PolicyBook(PRIORITY, [rule("medium", max_attempts=2)]).resolve(make_keys(), Mode.STANDARD)
    assert (found.rule, found.preset_rule) == ("medium", "medium")
    assert found.sources["max_attempts"] == "rule medium"


def test_a_patch_lists_the_fields_it_sets() -> None:
    assert PolicyPatch().given() == {}
    patch = PolicyPatch(max_attempts=3, cap_ms=0, on_timeout=OnTimeout.HOLD)
    assert patch.given() == {"max_attempts": 3, "cap_ms": 0, "on_timeout": OnTimeout.HOLD}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_the_first_combination_that_matches_has_the_delays_of_the_notification(preset: Preset) -> None:
    """The SQL functions of PostgreSQL read the combinations instead of resolving the rules."""
    rules = (
        rule("all", max_attempts=7),
        rule("acme", tenant="acme", base_ms=7_000),
        rule("otp", type="otp", channel="sms", backoff="linear"),
        rule("acme otp", tenant="acme", type="otp", priority="high", max_attempts=2),
        rule("auth", origin="auth", max_attempts=9),
        rule("urgent", type="news", priority="critical", base_ms=3_000),
        rule("slow", type="news", priority="medium", base_ms=9_000),
    )
    values = (("acme", "other"), ("otp", "news"), ("auth", "orders", ""), tuple(Channel), tuple(Priority))
    for used in (rules, rules[1:], ()):
        book = PolicyBook(preset, used)
        combinations = list(book.combinations())
        for values_of_keys in itertools.product(*values):
            keys = MatchKeys(*values_of_keys)
            mode = mode_of(synchronous=False, type_=keys.type, priority=keys.priority, bulk=False)
            first = next(policy for one, policy in combinations if one.matches(keys))
            assert _delays(first) == _delays(book.policy(keys, mode)), keys


def test_a_priority_has_a_combination_of_its_own_only_if_it_has_another_number_of_attempts() -> None:
    """Every combination is a row that the SQL functions look through."""
    by_mode = [("critical", 3), ("high", 3), ("*", 6)]
    for rules, expected in (
        ((), [*by_mode, *by_mode]),  # once for the rule of the preset, and once without it
        ((rule("all", max_attempts=5),), [("*", 5), ("*", 5), *by_mode, *by_mode]),
    ):
        found = PolicyBook(BARE, rules).combinations()
        assert [(one.priority, policy.max_attempts) for one, policy in found] == expected


def _delays(policy: RetryPolicy) -> list[int]:
    return [base_delay_ms(policy, attempt) for attempt in range(1, policy.max_attempts)]
