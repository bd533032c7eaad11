"""The ledger of the runs that kill workers: which sends the recorded attempts explain."""

from __future__ import annotations

import pytest

from homing import OutcomeKind as Kind
from support.worker_fleet import compare_sends


@pytest.mark.parametrize(
    ("attempts", "sends"),
    [
        ({1: Kind.ACCEPTED}, {1: 1}),
        ({1: Kind.LOST, 2: Kind.ACCEPTED}, {1: 1, 2: 1}),  # the worker died between send and settlement
        ({1: Kind.LOST, 2: Kind.ACCEPTED}, {2: 1}),  # the worker died before it sent
        ({1: Kind.AMBIGUOUS, 2: Kind.ACCEPTED}, {1: 1, 2: 1}),  # the send was slower than its timeout
        ({1: Kind.TRANSIENT, 2: Kind.ACCEPTED}, {2: 1}),
    ],
)
def test_sends_that_follow_from_the_attempts_are_in_order(
    attempts: dict[int, Kind], sends: dict[int, int]
) -> None:
    assert compare_sends(attempts, sends) == ""


@pytest.mark.parametrize(
    ("attempts", "sends", "wrong"),
    [
        ({1: Kind.ACCEPTED}, {1: 2}, "attempt 1 was sent 2 times"),
        ({1: Kind.LOST, 2: Kind.ACCEPTED}, {1: 2, 2: 1}, "attempt 1 was sent 2 times"),
        ({1: Kind.ACCEPTED}, {1: 1, 2: 1}, "attempt 2 was sent, and no such attempt is on record"),
        ({1: Kind.ACCEPTED, 2: Kind.ACCEPTED}, {1: 1, 2: 1}, "attempts [1, 2] were all accepted"),
        ({1: Kind.TRANSIENT}, {1: 1}, "attempt 1 was sent, and its outcome is transient"),
        ({1: Kind.ACCEPTED}, {}, "attempt 1 was accepted, and never sent"),
    ],
)
def test_sends_that_the_attempts_do_not_explain_are_reported(
    attempts: dict[int, Kind], sends: dict[int, int], wrong: str
) -> None:
    assert compare_sends(attempts, sends) == wrong
