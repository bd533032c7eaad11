"""Rows that a claim on MongoDB reads before it knows which queues have due rows."""

from __future__ import annotations

from homing.core.routing.fair_share import DueQueue
from homing.stores.mongo.documents import Document, queue_key
from homing.stores.mongo.due_rows import RowsAhead, RowsToReadAhead

QUEUE = DueQueue("standard.email", "default", "smtp", 0)
KEY = queue_key(QUEUE.lane, QUEUE.tenant, QUEUE.outlet)


def ahead(*due_times: int, limit: int = 10, until: int = 100) -> RowsAhead:
    rows: list[Document] = [
        {"_id": f"row-{due_at}", "queue": KEY, "due_at": due_at} for due_at in reversed(due_times)
    ]
    return RowsAhead(RowsToReadAhead([QUEUE], limit, until), rows)


def first(rows: RowsAhead, *, limit: int = 10, now: int = 50, earliest: int = 1) -> list[int] | None:
    found = rows.first(KEY, limit, now, earliest)
    return None if found is None else [one["due_at"] for one in found]


def test_the_rows_of_a_queue_come_in_the_order_of_their_due_times() -> None:
    assert first(ahead(1, 2, 3)) == [1, 2, 3]
    assert first(ahead(1, 2, 3), limit=2) == [1, 2]


def test_rows_that_are_not_due_yet_are_left_out() -> None:
    assert first(ahead(1, 2, 51, limit=3)) == [1, 2]


def test_a_full_answer_says_nothing_about_further_rows() -> None:
    assert first(ahead(1, 2, limit=2), limit=3) is None
    assert first(ahead(1, 2, limit=2), limit=2) == [1, 2]


def test_rows_that_became_due_after_the_last_one_that_was_read_may_be_missing() -> None:
    assert first(ahead(1, 2, until=49), limit=3) is None
    assert first(ahead(1, 2, until=49), limit=2) == [1, 2]


def test_an_earlier_row_that_was_not_read_makes_the_others_useless() -> None:
    assert first(ahead(2, 3), earliest=1) is None
    assert first(ahead(), earliest=1) is None


def test_nothing_is_known_about_other_queues() -> None:
    assert ahead(1).first("another", 10, 50, 1) is None
