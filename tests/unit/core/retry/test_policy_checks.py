"""Contradictory policies are refused when they are written, with the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from homing.core.errors import ConfigError
from homing.core.notifications import Mode
from homing.core.retry.policy import (
    Backoff,
    Jitter,
    OnTimeout,
    PolicyBook,
    PolicyPatch,
    RetryPolicy,
    Rule,
    decode_rule,
    policy_problems,
)
from homing.core.retry.presets import FIXED, PRIORITY, SIMPLE
from support.core_builders import DAY, SECOND, make_keys

CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": -1}),
    ("max_attempts", {"max_attempts": 1_001}),
    ("base_ms", {"base_ms": -1}),
    ("cap_ms", {"cap_ms": -1}),
    ("cap_ms", {"cap_ms": 5_000, "base_ms": 5_001}),
    ("cap_ms", {"cap_ms": 5_000, "base_ms": 5_001, "backoff": Backoff.LINEAR}),
    ("factor", {"factor": 0.99}),
    ("factor", {"factor": 100.5}),
    ("factor", {"factor": float("nan")}),
    ("factor", {"factor": float("inf")}),
    ("steps_ms", {"backoff": Backoff.FIXED}),
    ("steps_ms", {"backoff": Backoff.FIXED, "steps_ms": (1_000, -1)}),
    ("call", {"backoff": Backoff.CALLABLE}),
    ("jitter_ratio", {"jitter_ratio": -0.1}),
    ("jitter_ratio", {"jitter_ratio": 1.1}),
    ("jitter_ratio", {"jitter_ratio": float("nan")}),
    ("jitter_ms", {"jitter_ms": -1}),
    ("failover_after", {"failover_after": 0}),
    ("timeout_ms", {"timeout_ms": 0}),
    ("max_age_ms", {"max_age_ms": 0}),
    ("max_age_ms", {"max_age_ms": 29_999, "timeout_ms": 30_000}),
]


@pytest.mark.parametrize(("field", "fields"), CONTRADICTIONS)
def test_a_contradiction_is_refused_with_its_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**fields)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(("field", "fields"), CONTRADICTIONS)
def test_the_policy_book_refuses_a_contradictory_rule(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        PolicyBook(SIMPLE, [Rule(name="bad", tenant="acme", policy=PolicyPatch(**fields))])
    assert caught.value.field == f"policy.bad.{field}"
    assert caught.value.message.count(f"{field}: ") == 1, "the field is named once, with its rule"


def test_a_rule_is_checked_together_with_the_preset() -> None:
    with pytest.raises(ConfigError, match="below base_ms 300000") as caught:
        PolicyBook(SIMPLE, [Rule(name="short", policy=PolicyPatch(cap_ms=60 * SECOND))])
    assert caught.value.field == "policy.short.cap_ms"


def test_a_rule_is_checked_together_with_the_mode() -> None:
    with pytest.raises(ConfigError, match="below timeout_ms 15000") as caught:
        PolicyBook(SIMPLE, [Rule(name="brief", policy=PolicyPatch(max_age_ms=10 * SECOND))])
    assert caught.value.field == "policy.brief.max_age_ms"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 1, "base_ms": 0, "factor": 1.0, "timeout_ms": 1, "max_age_ms": 1},
        {"max_attempts": 1_000, "factor": 100.0, "jitter_ratio": 1.0},
        {"cap_ms": 5_000, "base_ms": 5_000},
        {"cap_ms": 0, "base_ms": DAY},
        {"backoff": Backoff.FIXED, "steps_ms": (0,), "cap_ms": 1},
        {"backoff": Backoff.CALLABLE, "call": float, "base_ms": 0},
        {"jitter": Jitter.ADDITIVE, "jitter_ms": 0},
    ],
)
def test_the_limits_themselves_are_allowed(fields: dict[str, Any]) -> None:
    assert policy_problems(RetryPolicy(**fields)) == []


def test_a_cap_below_the_base_is_irrelevant_for_a_callable() -> None:
    own = PolicyPatch(backoff=Backoff.CALLABLE, call=lambda attempt: 500.0, cap_ms=SECOND)
    policy = PolicyBook(PRIORITY, [Rule(name="own", policy=own)]).policy(make_keys(), Mode.STANDARD)
    assert (policy.backoff, policy.cap_ms) == (Backoff.CALLABLE, SECOND)


def test_a_rule_can_replace_the_growth_of_a_fixed_preset() -> None:
    linear = PolicyPatch(backoff=Backoff.LINEAR, base_ms=SECOND)
    policy = PolicyBook(FIXED, [Rule(name="linear", policy=linear)]).policy(make_keys(), Mode.STANDARD)
    assert (policy.backoff, policy.base_ms) == (Backoff.LINEAR, SECOND)


def test_a_rule_is_read_from_plain_data() -> None:
    raw = {
        "name": "otp",
        "type": "otp",
        "channel": "sms",
        "policy": {
            "max_attempts": 3,
            "factor": 2,
            "jitter": "full",
            "on_timeout": "hold",
            "steps_ms": [1, 2],
        },
    }
    patch = PolicyPatch(
        max_attempts=3, factor=2.0, jitter=Jitter.FULL, on_timeout=OnTimeout.HOLD, steps_ms=(1, 2)
    )
    assert decode_rule(raw, "policy[0]") == Rule(name="otp", type="otp", channel="sms", policy=patch)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"name": "a", "tennant": "x"}, "tennant"),
        ({"name": "a", "policy": {"max_atempts": 3}}, "max_atempts"),
        ({"name": "a", "policy": {"backoff": "expotential"}}, "backoff"),
        ({"name": "a", "policy": {"max_attempts": "three"}}, "max_attempts"),
        ({"name": "a", "policy": {"max_attempts": True}}, "max_attempts"),
        ({"name": "a", "policy": {"call": "not-yet-loaded:name"}}, "call"),
        ({"name": 1}, "name"),
        ({"tenant": "x"}, "name"),
        (["a"], "object"),
    ],
)
def test_a_wrong_or_misspelt_key_is_named(raw: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        decode_rule(raw, "policy[3]")
    assert caught.value.field == "policy[3]"


@pytest.mark.parametrize(("key", "value"), [("channel", "emial"), ("priority", "hihg"), ("priority", "HIGH")])
def test_a_rule_that_can_match_nothing_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value) as caught:
        decode_rule({"name": "lost", key: value}, "policy[0]")
    assert caught.value.field == f"policy.lost.{key}"
