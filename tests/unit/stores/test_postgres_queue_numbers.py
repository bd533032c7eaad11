"""The cached numbers of queues in PostgreSQL."""

from __future__ import annotations

import pytest

from homing.stores.postgres import queues
from homing.stores.postgres.queues import QueueNumbers

MAIL, TEXT, PUSH = ("bulk.email", "acme", "ses"), ("bulk.sms", "acme", "sns"), ("bulk.push", "acme", "fcm")


@pytest.mark.parametrize(("number", "queue"), [(1, TEXT), (3, MAIL)], ids=["number", "queue"])
def test_a_number_or_queue_that_is_known_otherwise_empties_the_cache(
    number: int, queue: tuple[str, str, str]
) -> None:
    """The database's history has gone back, so no cached number can be trusted."""
    numbers = QueueNumbers()
    numbers.learn(1, MAIL)
    numbers.learn(2, PUSH)
    numbers.learn(2, PUSH)
    assert numbers.unknown([MAIL, PUSH]) == []
    numbers.learn(number, queue)
    assert numbers.unknown([MAIL, PUSH, TEXT]) == sorted({MAIL, PUSH, TEXT} - {queue})
    assert (numbers.number(queue), numbers.name(number)) == (number, queue)


def test_an_emptied_cache_knows_neither_numbers_nor_names() -> None:
    numbers = QueueNumbers()
    numbers.learn(1, MAIL)
    numbers.clear()
    assert numbers.unknown([MAIL]) == [MAIL]
    with pytest.raises(KeyError):
        numbers.number(MAIL)
    with pytest.raises(KeyError):
        numbers.name(1)


def test_a_full_cache_is_emptied_before_another_queue_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_MAX_CACHED_QUEUES", 2)
    numbers = QueueNumbers()
    for number, queue in enumerate((MAIL, TEXT, TEXT), 1):
        numbers.learn(min(number, 2), queue)
    assert numbers.unknown([MAIL, TEXT]) == []
    numbers.learn(3, PUSH)
    assert numbers.unknown([MAIL, TEXT, PUSH]) == [MAIL, TEXT]
