"""The five presets match the specification's table, and modes fill in the rest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Mode, Priority
from homing.core.retry.policy import (
    Backoff,
    BounceFailover,
    FailoverWait,
    Jitter,
    OnTimeout,
    PolicyBook,
    RetryPolicy,
)
from homing.core.retry.presets import PRESETS, find_preset
from support.core_builders import DAY, HOUR, MINUTE, SECOND, make_keys

QUEUED = [Mode.PRIORITY, Mode.STANDARD, Mode.BULK]
MODE_TIMEOUTS = {Mode.SYNCHRONOUS: 2_000, Mode.PRIORITY: 15_000, Mode.STANDARD: 30_000, Mode.BULK: 30_000}


def resolved(name: str, mode: Mode = Mode.STANDARD, **keys: Any) -> RetryPolicy:
    return PolicyBook(find_preset(name)).policy(make_keys(**keys), mode)


def test_there_are_five_presets_each_under_its_own_name() -> None:
    assert list(PRESETS) == ["priority", "simple", "channel", "fixed", "broker"]
    assert all(find_preset(name).name == name for name in PRESETS)


def test_an_unknown_preset_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigError, match="priority, simple, channel, fixed, broker") as caught:
        find_preset("listo")
    assert caught.value.field == "preset"


@pytest.mark.source("003", "437")
@pytest.mark.parametrize("mode", QUEUED)
@pytest.mark.parametrize(
    ("priority", "retries", "base_ms", "cap_ms"),
    [
        (Priority.CRITICAL, 10, 10 * SECOND, 5 * MINUTE),
        (Priority.HIGH, 8, 30 * SECOND, 15 * MINUTE),
        (Priority.MEDIUM, 5, 2 * MINUTE, HOUR),
        (Priority.LOW, 3, 5 * MINUTE, 2 * HOUR),
    ],
)
@pytest.mark.source("003", "437")
def test_priority_limits_retries_by_priority_in_every_mode(
    mode: Mode, priority: Priority, retries: int, base_ms: int, cap_ms: int
) -> None:
    assert resolved("priority", mode, priority=priority) == RetryPolicy(
        max_attempts=retries + 1,
        backoff=Backoff.EXPONENTIAL,
        base_ms=base_ms,
        factor=2.0,
        cap_ms=cap_ms,
        jitter=Jitter.PROPORTIONAL,
        jitter_ratio=0.3,
        timeout_ms=MODE_TIMEOUTS[mode],
    )


@pytest.mark.source("001", "27-31", "578-589")
@pytest.mark.parametrize("mode", QUEUED)
@pytest.mark.parametrize(
    ("type_", "attempts", "minutes"),
    [("incident", 5, 10), ("checkIn", 3, 5), ("photo", 2, 15), ("anything", 3, 5)],
)
def test_simple_limits_retries_by_type_and_takes_its_timeout_from_the_mode(
    mode: Mode, type_: str, attempts: int, minutes: int
) -> None:
    assert resolved("simple", mode, type=type_) == RetryPolicy(
        max_attempts=attempts,
        backoff=Backoff.EXPONENTIAL,
        base_ms=minutes * MINUTE,
        factor=2.0,
        jitter=Jitter.NONE,
        timeout_ms=MODE_TIMEOUTS[mode],
    )


AUTH_SMS = (4, 3, 120, 1_000, 20)
EMAIL = (6, 5, 600, 1_000, 30)
ORDERS_PUSH = (3, 2, 300, 500, 15)


@pytest.mark.source("002", "122-162")
@pytest.mark.parametrize("mode", QUEUED)
@pytest.mark.parametrize(
    ("origin", "channel", "row", "rule"),
    [
        ("auth", Channel.SMS, AUTH_SMS, "sms/auth"),
        ("auth", Channel.EMAIL, EMAIL, "email/*"),
        ("", Channel.EMAIL, EMAIL, "email/*"),
        ("orders", Channel.PUSH, ORDERS_PUSH, "push/orders"),
        ("orders", Channel.SMS, None, "email/*"),
        ("auth", Channel.PUSH, None, "email/*"),
        ("orders", Channel.WEBHOOK, None, "email/*"),
    ],
)
def test_channel_selects_by_origin_and_channel_and_falls_back_to_mode_and_email_row(
    mode: Mode, origin: str, channel: Channel, row: tuple[int, int, int, int, int] | None, rule: str
) -> None:
    attempts, base_s, cap_s, jitter_ms, timeout_s = row or EMAIL
    if row is None:  # no rule matches: attempts and timeout are those of the mode
        attempts, timeout_s = {Mode.PRIORITY: (3, 15), Mode.STANDARD: (6, 30), Mode.BULK: (6, 30)}[mode]
    found = PolicyBook(find_preset("channel")).resolve(make_keys(origin=origin, channel=channel), mode)
    assert found.preset_rule == rule
    assert found.policy == RetryPolicy(
        max_attempts=attempts,
        backoff=Backoff.EXPONENTIAL,
        base_ms=base_s * SECOND,
        factor=2.0,
        cap_ms=cap_s * SECOND,
        jitter=Jitter.ADDITIVE,
        jitter_ms=jitter_ms,
        timeout_ms=timeout_s * SECOND,
        failover_after=2,
        failover_wait=FailoverWait.BACKOFF,
        on_timeout=OnTimeout.FAILOVER,
        bounce_failover=BounceFailover.ALWAYS,
    )


def test_only_channel_fails_over_every_bounce_and_refuses_unmatched_locales() -> None:
    keys = make_keys()
    always = {
        n
        for n in PRESETS
        if PolicyBook(find_preset(n)).policy(keys, Mode.STANDARD).bounce_failover == "always"
    }
    assert always == {"channel"}
    assert {name for name in PRESETS if find_preset(name).reject_unmatched_locale} == {"channel"}


@pytest.mark.parametrize("mode", QUEUED)
def test_fixed_is_a_list_of_five_delays_for_everything(mode: Mode) -> None:
    assert resolved("fixed", mode) == RetryPolicy(
        max_attempts=6,
        backoff=Backoff.FIXED,
        steps_ms=(MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR),
        jitter=Jitter.NONE,
        timeout_ms=MODE_TIMEOUTS[mode],
    )


@pytest.mark.parametrize("mode", QUEUED)
def test_broker_retries_three_times_up_to_a_minute_apart(mode: Mode) -> None:
    assert resolved("broker", mode) == RetryPolicy(
        max_attempts=4,
        backoff=Backoff.EXPONENTIAL,
        base_ms=2 * SECOND,
        factor=2.0,
        cap_ms=60 * SECOND,
        jitter=Jitter.ADDITIVE,
        jitter_ms=1_000,
        timeout_ms=MODE_TIMEOUTS[mode],
    )


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_keeps_the_general_defaults(name: str) -> None:
    book = PolicyBook(find_preset(name))
    for channel, priority, mode in itertools.product(Channel, Priority, Mode):
        policy = book.policy(make_keys(channel=channel, priority=priority), mode)
        assert policy.max_age_ms == 2 * DAY
        failover = (policy.failover_after, policy.failover_wait, policy.on_timeout)
        if name == "channel":
            assert failover == (2, FailoverWait.BACKOFF, OnTimeout.FAILOVER)
        else:
            assert failover == (1, FailoverWait.NONE, OnTimeout.RETRY)


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_mode_s_number_of_attempts_is_ignored_if_the_preset_has_one(name: str) -> None:
    book = PolicyBook(find_preset(name))
    for channel, priority, mode in itertools.product(Channel, Priority, Mode):
        found = book.resolve(make_keys(channel=channel, priority=priority), mode)
        if mode is Mode.SYNCHRONOUS:
            assert (found.policy.max_attempts, found.policy.timeout_ms) == (1, 2_000), (
                "hard, whatever a rule says"
            )
        else:
            matches = name != "channel" or channel in (Channel.EMAIL, Channel.PUSH)  # of origin orders
            source = f"preset {name}/{found.preset_rule}" if matches else f"mode {mode.value}"
            assert found.sources["max_attempts"] == source


@pytest.mark.parametrize("name", ["priority", "simple", "fixed", "broker"])
@pytest.mark.parametrize("mode", list(Mode))
def test_without_a_timeout_in_the_preset_the_mode_s_applies(name: str, mode: Mode) -> None:
    found = PolicyBook(find_preset(name)).resolve(make_keys(), mode)
    assert found.sources["timeout_ms"] == f"mode {mode.value}"
    assert found.policy.timeout_ms == MODE_TIMEOUTS[mode]
