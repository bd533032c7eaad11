"""The cached numbers of queues in PostgreSQL."""

from __future__ import annotations

import pytest

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
