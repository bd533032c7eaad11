"""How long a listener waits before it connects again, and what it logs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from homing.core.errors import StoreUnavailable
from homing.stores.postgres.listen_notify import Listener


@pytest.fixture
def listener() -> Listener:
    hosts: Any = SimpleNamespace(where="postgresql://db/app")
    unused: Any = None  # it does not connect here
    return Listener(hosts, "homing", unused, unused)


@pytest.mark.parametrize("error", [StoreUnavailable(), ConnectionResetError()], ids=["store", "connection"])
def test_while_the_server_is_away_the_pauses_do_not_grow(listener: Listener, error: Exception) -> None:
    first = listener._note_failure(error)
    assert [listener._note_failure(error) for _ in range(12)] == [first] * 12


def test_the_pauses_after_other_errors_double_up_to_a_limit(listener: Listener) -> None:
    error = asyncpg.InvalidPasswordError("no")
    pauses = [listener._note_failure(error) for _ in range(20)]
    assert pauses[:3] == [pauses[0], 2 * pauses[0], 4 * pauses[0]]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] < 2.0**19 * pauses[0]


def test_each_kind_of_error_is_logged_once_but_never_the_first_failure(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "homing"):
        for error in (
            StoreUnavailable(),
            StoreUnavailable("away"),
            StoreUnavailable(),
            ConnectionResetError(),
        ):
            listener._note_failure(error)
    assert len(caplog.records) == 2
    assert "away" in caplog.records[0].getMessage()
