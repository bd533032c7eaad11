"""`Retry-After`, on the contract's vectors."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.providers.retry_after import retry_after_ms

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/retry_after.json").read_text())
NOW_MS = int(datetime.fromisoformat(VECTORS["now"]).timestamp() * 1000)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["note"][:40])
def test_the_vectors_hold(case: dict[str, Any]) -> None:
    expected = case["expected_s"]
    assert retry_after_ms(case["value"], NOW_MS) == (None if expected is None else expected * 1000)


def test_no_header_is_no_delay() -> None:
    assert retry_after_ms(None, NOW_MS) is None


@given(st.text(max_size=60))
def test_no_value_makes_it_raise(value: str) -> None:
    found = retry_after_ms(value, NOW_MS)
    assert found is None or found >= 0
