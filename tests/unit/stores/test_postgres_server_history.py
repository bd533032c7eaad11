"""When the identity of a PostgreSQL server's history changes because rows are gone."""

from __future__ import annotations

from homing.stores.postgres.server_history import ServerHistory


class ManualClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_loss_changes_the_identity_at_once() -> None:
    history = ServerHistory(ManualClock())
    before = history.identity
    history.note_loss()
    assert history.identity != before


def test_a_second_loss_soon_after_the_first_changes_it_later_and_once() -> None:
    clock = ManualClock()
    history = ServerHistory(clock)
    history.note_loss()
    first = history.identity
    clock.seconds = 59
    history.note_loss()
    history.note_loss()
    assert history.identity == first
    clock.seconds = 60
    second = history.identity
    assert second != first
    clock.seconds = 1_000
    assert history.identity == second
