"""Durations in text: one parser for settings and flags, one printer for tables and charts."""

from __future__ import annotations

from typing import Any

import pytest

from homing import ConfigError
from homing.core.durations import format_duration, parse_duration, read_duration
from homing.core.times import LONGEST_MS


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (0, 0),
        (1500, 1500),
        (2.9, 2),
        ("250", 250),
        ("500ms", 500),
        ("30s", 30_000),
        ("1.5 m", 90_000),
        ("1h30m", 5_400_000),
        (" 1 H 30 M ", 5_400_000),
        ("7d", 604_800_000),
        ("-5", -5),
    ],
)
def test_a_duration_is_a_number_or_text(given: Any, ms: int) -> None:
    assert parse_duration(given, "x") == ms


@pytest.mark.parametrize(
    "given", ["", "soon", "5 minutes", "1h and 5m", "-5s", True, None, [5], float("nan"), float("inf"), "1e3"]
)
def test_an_invalid_duration_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"where: is .*; give milliseconds or text like 30s, 5m, 1h30m"):
        parse_duration(given, "where")


def test_a_duration_of_more_than_100_years_is_refused() -> None:
    assert parse_duration(LONGEST_MS, "x") == LONGEST_MS
    assert read_duration("36501d") == LONGEST_MS + 86_400_000
    with pytest.raises(ConfigError, match="where: is '36501d'; at most 100 years are allowed"):
        parse_duration("36501d", "where")


def test_a_long_text_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError, match="where: has 101 characters; give milliseconds or text like 30s"):
        parse_duration("1" * 101, "where")


@pytest.mark.parametrize(
    ("ms", "short", "spaced"),
    [
        (0, "0ms", "0 ms"),
        (340.9, "340ms", "340 ms"),
        (999, "999ms", "999 ms"),
        (1000, "1s", "1 s"),
        (12_500, "12.5s", "12.5 s"),
        (59_949, "59.9s", "59.9 s"),
        (59_950, "1m", "1 min"),
        (90_000, "1m 30s", "1 min 30 s"),
        (3_600_000, "1h", "1 h"),
        (4_860_000, "1h 21m", "1 h 21 min"),
        (86_399_999, "1d", "1 d"),
        (93_600_000, "1d 2h", "1 d 2 h"),
        (86_460_000, "1d", "1 d"),
        (LONGEST_MS, "36500d", "36500 d"),
    ],
)
def test_a_duration_is_printed_in_at_most_two_units(ms: float, short: str, spaced: str) -> None:
    assert (format_duration(ms), format_duration(ms, spaced=True)) == (short, spaced)
