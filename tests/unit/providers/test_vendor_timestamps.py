"""Timestamps in vendors' events are read in every format, and replaced if invalid."""

from __future__ import annotations

from typing import Any

import pytest

from homing.providers.common.response_parsing import parse_past_time_ms

NOW_MS = 1_705_320_000_000


@pytest.mark.parametrize(
    ("told", "at"),
    [
        ("2024-01-15T11:59:59Z", NOW_MS - 1_000),
        ("2024-01-15T12:59:59.500+01:00", NOW_MS - 500),
        ("2024-01-15 11:59:59", NOW_MS - 1_000),
        ("2024-01-15T11:59:59.1234567+00:00", NOW_MS - 877),
        (1_705_319_999, NOW_MS - 1_000),
        (1_705_319_999.5, NOW_MS - 500),
        (1_705_319_999_000, NOW_MS - 1_000),
    ],
)
def test_a_timestamp_is_read_in_every_format_that_vendors_use(told: Any, at: int) -> None:
    assert parse_past_time_ms(told, NOW_MS) == at


@pytest.mark.parametrize(
    "told",
    [
        None, True, [], {}, "", "soon", -1, 0, 7, float("inf"), float("nan"), 10**400, NOW_MS + 1,
        "2024-01-15T12:00:01Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "\ud800",
    ],
)  # fmt: skip
def test_an_invalid_or_future_timestamp_becomes_the_current_time(told: Any) -> None:
    assert parse_past_time_ms(told, NOW_MS) == NOW_MS
