"""Checks the ids of new rows, which PostgreSQL would otherwise accept in forms that no query finds."""

from __future__ import annotations

from random import Random

import pytest

from homing.core.ids import BITS_EACH, uuids7
from homing.stores.postgres.columns import find_invalid_id, is_id

MANY = 50


def some_ids(number: int) -> list[str]:
    return uuids7(1_800_000_000_000, Random(7).getrandbits(BITS_EACH * number), number)


@pytest.mark.parametrize("number", [0, 1, MANY])
def test_ids_in_lower_case_are_valid(number: int) -> None:
    assert find_invalid_id(some_ids(number) if number else []) is None


@pytest.mark.parametrize("number", [1, MANY])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize(
    "invalid",
    [
        "",
        "an id",
        "019b2a63-7c00-7abc-8def-0123456789AB",
        "019b2a637c007abc8def0123456789ab",
        "019b2a63-7c00-7abc-8def-0123456789ag",
        "019b2a63-7c00-7abc-8def0-123456789ab",
        "019b2a63-7c00-7abc-8def-0123456789a",
        "019b2a63-7c00-7abc-8def-0123456789ab0",
        "019b2a63-7c00-7abc-8def-0123456789a\n",
        "019b2a63-7c00-7abc-8def-0123456789a\u00e4",
        "{019b2a63-7c00-7abc-8def-0123456789ab}",
    ],
)
def test_an_id_in_another_form_is_found_wherever_it_is(number: int, place: int, invalid: str) -> None:
    ids = some_ids(number)
    ids[place] = invalid
    assert not is_id(invalid)
    assert find_invalid_id(ids) == invalid


def test_an_id_that_is_too_short_is_not_hidden_by_one_that_is_too_long() -> None:
    ids = some_ids(MANY)
    ids[3], ids[4] = ids[3][:-1], ids[4] + "0"
    assert find_invalid_id(ids) == ids[3]
