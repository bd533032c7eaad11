"""What the record of a job says about its end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.jobs import Job, JobStatus, current_job, is_resumable, why_unfinished
from homing.core.notifications import Filter
from homing.core.times import moment

JOB = Job(
    id="018d0c7e-5a00-7000-8000-000000000001",
    command=CommandName.RESEND,
    filter=Filter(),
    who="ada",
    created_at=moment(0),
    updated_at=moment(0),
    worker="w",
)


@pytest.mark.parametrize(
    ("status", "stopped", "why"),
    [
        (JobStatus.DONE, None, None),
        (JobStatus.STOPPED, "stopped by bob", "stopped by bob"),
        (JobStatus.FAILED, "the store failed; see the log", "the store failed; see the log"),
        (JobStatus.RUNNING, None, "running"),
    ],
)
def test_a_job_that_is_not_complete_says_why(status: JobStatus, stopped: str | None, why: str | None) -> None:
    assert why_unfinished(replace(JOB, status=status, stopped=stopped)) == why


def test_a_job_whose_process_died_is_not_complete_although_no_reason_is_recorded() -> None:
    lost = current_job(JOB, moment(0), moment(0) + timedelta(minutes=1))
    assert (lost.status, lost.stopped) == (JobStatus.INTERRUPTED, None)
    assert why_unfinished(lost) == "interrupted"


def test_a_job_that_ended_early_can_be_resumed() -> None:
    resumable = {status for status in JobStatus if is_resumable(replace(JOB, status=status))}
    assert resumable == {JobStatus.STOPPED, JobStatus.FAILED, JobStatus.INTERRUPTED}


def test_a_job_counts_on_from_its_earlier_run() -> None:
    before = replace(JOB, matched=5, done=3, refused=2)
    further = replace(JOB, who="bob").further(before, 10, 20, 30)
    assert (further.matched, further.done, further.refused, further.who) == (15, 23, 32, "bob")
