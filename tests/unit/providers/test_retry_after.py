"""`Retry-After`, on the contract's vectors."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.net.retry_after import parse_retry_after_ms

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/retry_after.json").read_text())
DATE_PARTS = st.sampled_from(
    [
        "Mon",
        "Monday",
        ",",
        " ",
        "15",
        "Jan",
        "-",
        "2024",
        "24",
        "12:02:00",
        ":",
        ".",
        "GMT",
        "+0000",
        "9" * 30,
        "\0",
    ]
)
NOW_MS = int(datetime.fromisoformat(VECTORS["now"]).timestamp() * 1000)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["note"][:40])
def test_the_vectors_are_satisfied(case: dict[str, Any]) -> None:
    expected = case.get("tolerated_s", case["expected_s"])
    assert parse_retry_after_ms(case["value"], NOW_MS) == (None if expected is None else expected * 1000)


def test_without_the_header_there_is_no_delay() -> None:
    assert parse_retry_after_ms(None, NOW_MS) is None


@given(st.text(max_size=60) | st.lists(DATE_PARTS, max_size=9).map("".join))
def test_no_value_makes_it_raise(value: str) -> None:
    found = parse_retry_after_ms(value, NOW_MS)
    assert found is None or found >= 0


@pytest.mark.parametrize("value", ["Sat, 31 Feb 2024 12:02:00 GMT", "Mon, 15 Jan 2024 99:02:00 GMT"])
def test_a_date_or_time_that_does_not_exist_is_ignored(value: str) -> None:
    assert parse_retry_after_ms(value, NOW_MS) is None


def test_a_two_digit_year_is_never_far_in_the_future() -> None:
    assert parse_retry_after_ms("Friday, 31-Dec-99 23:59:59 GMT", NOW_MS) == 0
    assert parse_retry_after_ms("Wednesday, 15-Jan-25 12:00:00 GMT", NOW_MS) == 366 * 86_400_000
