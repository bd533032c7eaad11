"""A bulk command that goes on after it was asked for: what is kept of it, and what that means. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.ids import made_at
from homing.core.model import CommandName, Entry, Filter

BULK_COMMANDS = (CommandName.ACKNOWLEDGE, CommandName.RESEND, CommandName.RETRY, CommandName.CANCEL)
"""What can be done to many at once and without a look at each."""

SLOWEST_PER_SECOND = 0.1
"""A step of a slower job would be longer than an operator waits for it to stop."""

LEASE_MS = 30_000
"""A job that nothing was heard of for so long has lost its process."""

KIND = "job"
"""What it is filed under in the Registry."""

_END = (1 << 48) - 1


class JobStatus(StrEnum):
    """Where a job is in its life."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """By an operator, or because a breaker opened; `stopped` says why. It can be resumed."""
    FAILED = "failed"
    """By a defect, or because the store cannot do it; the log has it. It can be resumed."""
    INTERRUPTED = "interrupted"
    """Its process ended. It can be resumed, and does nothing twice."""


class Job(Struct, frozen=True, kw_only=True, rename="camel"):
    """One bulk command with its progress, as any process of the tenant reads it."""

    id: str
    command: CommandName
    filter: Filter
    who: str
    why: str = ""
    rate_per_second: float | None = None
    status: JobStatus = JobStatus.RUNNING
    matched: int = 0
    """Found so far: those for which the command was possible."""
    done: int = 0
    refused: int = 0
    """Changed by somebody else just before."""
    stopped: str | None = None
    """Why it ended early, if it did."""
    stop_requested_by: str | None = None
    """Takes effect at its next step."""
    created_at: datetime
    """What has changed since then is left alone: no notification is touched twice."""
    updated_at: datetime
    ended_at: datetime | None = None
    worker: str
    """The process that does it."""

    def further(self, before: Job, matched: int, done: int, refused: int) -> Job:
        """With what one run has done, on top of how it stood before."""
        return replace(
            self,
            matched=before.matched + matched,
            done=before.done + done,
            refused=before.refused + refused,
        )


def key_of(id: str) -> str:
    """Where a job is filed: the newest sorts first."""
    return f"{_END - made_at(id):012x}-{id}"


def as_read(job: Job, updated_at: datetime, now: datetime) -> Job:
    """As it stands now: one whose process went silent is interrupted."""
    silent_ms = (now - updated_at).total_seconds() * 1000
    lost = job.status is JobStatus.RUNNING and silent_ms > LEASE_MS
    return replace(job, status=JobStatus.INTERRUPTED if lost else job.status, updated_at=updated_at)


def resumable(job: Job) -> bool:
    return job.status in (JobStatus.STOPPED, JobStatus.FAILED, JobStatus.INTERRUPTED)


def entry_of(tenant: str, job: Job, version: int) -> Entry:
    """A job as it is filed."""
    return Entry(
        tenant=tenant, kind=KIND, key=key_of(job.id), value=msgspec.to_builtins(job), version=version
    )


def job_of(entry: Entry) -> Job:
    return msgspec.convert(entry.value, Job)
