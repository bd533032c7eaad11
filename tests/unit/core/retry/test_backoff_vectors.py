"""Exact delays of all five presets, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from homing.core.notifications import Channel, Mode, Priority
from homing.core.retry.backoff import base_delay_ms, bounds_ms
from homing.core.retry.policy import Backoff, PolicyBook, RetryPolicy
from homing.core.retry.presets import BROKER, CHANNEL, FIXED, PRIORITY, SIMPLE
from support.core_builders import MINUTE, make_keys
from support.vector_files import vectors

TABLES = vectors("backoff")["formulas"]
A, B, C, D, E = (TABLES[k] for k in ("a_priority", "b_minutes", "c_origin_channel", "d_fixed", "e_broker"))


def by_priority(name: str) -> RetryPolicy:
    keys = make_keys(priority=Priority(name.lower()))
    return PolicyBook(PRIORITY).policy(keys, Mode.STANDARD)


def by_channel(name: str) -> RetryPolicy:
    channel, origin = name.split("/")
    keys = make_keys(channel=Channel(channel), origin="any" if origin == "*" else origin)
    return PolicyBook(CHANNEL).policy(keys, Mode.STANDARD)


def by_minutes(minutes: int, backoff: Backoff) -> RetryPolicy:
    return RetryPolicy(backoff=backoff, base_ms=minutes * MINUTE, max_attempts=10)


fixed = PolicyBook(FIXED).policy(make_keys(), Mode.STANDARD)
broker = PolicyBook(BROKER).policy(make_keys(), Mode.STANDARD)


def rows(classes: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(name, row, id=f"{name}-{row['n']}")
        for name, entry in classes.items()
        for row in entry["rows"]
    ]


@pytest.mark.parametrize(("name", "row"), rows(A["classes"]))
def test_the_delays_of_priority_are_those_of_its_table(name: str, row: dict[str, int]) -> None:
    policy = by_priority(name)
    assert base_delay_ms(policy, row["n"]) == row["base_delay_ms"]
    assert bounds_ms(policy, row["n"]) == (row["min_ms"], row["max_ms"])
    assert (row["base_delay_ms"] == policy.cap_ms) == row["capped"]


@pytest.mark.parametrize("name", A["classes"])
def test_priority_allows_as_many_retries_as_its_table_has_rows(name: str) -> None:
    entry, policy = A["classes"][name], by_priority(name)
    assert policy.max_attempts == entry["max_retries"] + 1 == len(entry["rows"]) + 1
    bounds = [bounds_ms(policy, n) for n in range(1, policy.max_attempts)]
    assert sum(low for low, _ in bounds) == entry["total_min_ms"]
    assert sum(high for _, high in bounds) == entry["total_max_ms"]


@pytest.mark.parametrize("case", A["extreme"], ids=lambda c: f"{c['class']}-{c['n']}")
def test_priority_stays_at_its_cap_for_huge_attempt_numbers(case: dict[str, Any]) -> None:
    assert base_delay_ms(by_priority(case["class"]), case["n"]) == case["base_delay_ms"]


MINUTES_ROWS = [
    pytest.param(int(name.partition("=")[2]), row, id=f"{name}-{row['attempts']}")
    for name, table in B["tables"].items()
    for row in table
]


@pytest.mark.source("001", "555-571")
@pytest.mark.parametrize(("minutes", "row"), MINUTES_ROWS)
@pytest.mark.parametrize(
    ("backoff", "column"),
    [
        (Backoff.EXPONENTIAL, "exponential_ms"),
        (Backoff.LINEAR, "linear_ms"),
        (Backoff.FIBONACCI, "fibonacci_list_index_ms"),
    ],
)
def test_delays_in_minutes_are_those_of_their_table(
    minutes: int, row: dict[str, int], backoff: Backoff, column: str
) -> None:
    policy = by_minutes(minutes, backoff)
    assert base_delay_ms(policy, row["attempts"]) == row[column]
    assert bounds_ms(policy, row["attempts"]) == (row[column], row[column])


@pytest.mark.parametrize("row", B["tables"]["delayMinutes=5"], ids=lambda r: f"attempts-{r['attempts']}")
def test_simple_has_the_five_minute_table_and_three_attempts(row: dict[str, Any]) -> None:
    policy = PolicyBook(SIMPLE).policy(make_keys(), Mode.STANDARD)
    assert base_delay_ms(policy, row["attempts"]) == row["exponential_ms"]
    assert (row["attempts"] >= policy.max_attempts) == row["exhausted_at_default_max_3"]


@pytest.mark.source("002", "166-177")
@pytest.mark.parametrize(("name", "row"), rows(C["classes"]))
def test_the_delays_of_channel_are_those_of_its_table(name: str, row: dict[str, Any]) -> None:
    policy = by_channel(name)
    attempt = row["n"] + 1  # this preset numbers its retries from 0
    assert base_delay_ms(policy, attempt) == row["base_delay_ms"]
    assert bounds_ms(policy, attempt) == (row["min_ms"], row["max_ms"])
    assert (attempt < policy.max_attempts) == row["used"]


@pytest.mark.parametrize("name", C["classes"])
def test_the_delays_of_channel_add_up_to_no_more_than_its_table_says(name: str) -> None:
    entry, policy = C["classes"][name], by_channel(name)
    bounds = [bounds_ms(policy, n) for n in range(1, policy.max_attempts)]
    assert sum(low for low, _ in bounds) == entry["used_total_min_ms"]
    worst_ms = sum(high for _, high in bounds)
    assert worst_ms == entry["used_total_max_ms"]
    assert worst_ms + policy.max_attempts * policy.timeout_ms == entry["worst_case_span_ms"]


@pytest.mark.parametrize("case", C["extreme"], ids=lambda c: f"{c['class']}-{c['n']}")
def test_channel_stays_at_its_cap_for_huge_attempt_numbers(case: dict[str, Any]) -> None:
    assert base_delay_ms(by_channel(case["class"]), case["n"] + 1) == case["base_delay_ms"]


@pytest.mark.source("003", "16", "97-104")
def test_the_delays_of_fixed_are_those_of_its_list_and_then_it_ends() -> None:
    assert fixed.max_attempts == D["attempts_total"]
    total_ms = 0
    for row in D["rows"]:
        if row["delay_ms"] is None:
            assert row["failure"] == fixed.max_attempts
            continue
        assert bounds_ms(fixed, row["failure"]) == (row["delay_ms"], row["delay_ms"])
        total_ms += row["delay_ms"]
        assert total_ms == row["cumulative_ms"]


@pytest.mark.source("004", "53-61")
@pytest.mark.parametrize("row", E["rows"], ids=lambda r: f"retryCount-{r['retry_count']}")
def test_the_delays_of_broker_are_those_of_its_table(row: dict[str, Any]) -> None:
    attempt = row["retry_count"] + 1
    assert base_delay_ms(broker, attempt) == row["base_delay_ms"]
    assert bounds_ms(broker, attempt) == (row["min_ms"], row["max_ms"])
    assert (attempt < broker.max_attempts) == (row["action"] == "retry")


def test_the_delays_of_broker_add_up_to_the_sum_in_its_table() -> None:
    bounds = [bounds_ms(broker, n) for n in range(1, broker.max_attempts)]
    assert sum(low for low, _ in bounds) == E["used_total_min_ms"]
    assert sum(high for _, high in bounds) == E["used_total_max_ms"]
    assert broker.max_attempts == E["max_retries"] + 1


@pytest.mark.parametrize("case", E["extreme"], ids=lambda c: f"retryCount-{c['retry_count']}")
def test_broker_stays_at_its_cap_for_huge_retry_counts(case: dict[str, int]) -> None:
    assert base_delay_ms(broker, case["retry_count"] + 1) == case["base_delay_ms"]
