"""Due times that a commit has written: which notifications wait, and from when on they are due."""

from __future__ import annotations

from msgspec.structs import replace

from homing.core.lifecycle.claims import Acceptance
from homing.core.lifecycle.due_times import DueTime, accepted_due_times, settled_due_times
from homing.core.notifications import Priority
from homing.testing.builders import a_notification, a_submission, dead, postponed, retry_in, sent
from support.core_builders import make_claim

NOW = 1_000_000


def test_an_accepted_notification_is_due_at_once_at_its_time_or_after_its_delay() -> None:
    now, later, delayed = (
        replace(a_notification(), priority=Priority.HIGH),
        replace(a_notification(), send_at=NOW + 500),
        replace(a_notification(), delay_ms=70, send_at=NOW - 5),
    )
    submission = a_submission(now, later, delayed)
    answer = Acceptance(submission.batch_id, (now.id, later.id, delayed.id))
    assert list(accepted_due_times([submission], [answer], NOW)) == [
        DueTime(now.id, NOW, Priority.HIGH),
        DueTime(later.id, NOW + 500, later.priority),
        DueTime(delayed.id, NOW + 70, delayed.priority),
    ]


def test_duplicates_conflicts_leased_and_rejected_notifications_are_not_scheduled() -> None:
    new = a_notification()
    submission = a_submission(new)
    answer = Acceptance(submission.batch_id, (new.id,))
    refused = a_submission(replace(new, refused=True))
    leased = replace(submission, lease_to="w", lease_ms=1_000)
    assert list(accepted_due_times([submission], [answer], NOW))
    assert not list(accepted_due_times([submission], [replace(answer, duplicates=frozenset({new.id}))], NOW))
    assert not list(accepted_due_times([submission], [Acceptance("", (), conflict=True)], NOW))
    fewer, more = replace(submission, notifications=()), replace(submission, notifications=(new, new))
    repeated = replace(answer, duplicates=frozenset({new.id}))
    other_number = accepted_due_times([fewer, more], [repeated, repeated], NOW)
    assert not list(other_number), "it made another number then"
    assert not list(accepted_due_times([refused], [answer], NOW))
    assert not list(accepted_due_times([leased], [answer], NOW))


def test_only_applied_settlements_that_wait_are_scheduled() -> None:
    waiting, late, moved, ended, failed = (make_claim(id=id_) for id_ in "abcde")
    batch = [
        (retry_in(waiting, 30), waiting),
        (retry_in(late, 30), late),
        (postponed(moved, 40), moved),
        (sent(ended), ended),
        (dead(failed), failed),
    ]
    assert settled_due_times(batch, {late.id}, NOW) == [
        DueTime("a", NOW + 30, waiting.priority),
        DueTime("c", NOW + 40, moved.priority),
    ]
