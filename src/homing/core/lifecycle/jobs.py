"""Background jobs for bulk commands: the stored record and its rules, such as when a job can be resumed."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.ids import id_time_ms
from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import Filter
from homing.core.ports.stores import Entry

BULK_COMMANDS = (CommandName.ACKNOWLEDGE, CommandName.RESEND, CommandName.RETRY, CommandName.CANCEL)
"""Commands that can be applied to many notifications without reviewing each one."""


SLOWEST_PER_SECOND = 0.1
"""Lowest rate of a job, in notifications per second. A slower job would react to a stop request too late."""


JOB_LEASE_MS = 30_000
"""Time without an update after which a job's process is considered dead."""


JOB_KIND = "job"
"""Kind of the jobs' entries in the registry."""


_MAX_TIME_MS = (1 << 48) - 1


class JobStatus(StrEnum):
    """Stage in the life of a job."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """The job was stopped by an operator or because a breaker opened (see `stopped`). It can be resumed."""
    FAILED = "failed"
    """The job was ended by an error of Homing or of the store, which is in the log. It can be resumed."""
    INTERRUPTED = "interrupted"
    """The process of the job seems to have died. The job can be resumed and changes nothing twice."""


class Job(Struct, frozen=True, kw_only=True, rename="camel"):
    """One bulk command with its progress. It is stored, so that every process can read it."""

    id: str
    command: CommandName
    filter: Filter
    who: str
    why: str = ""
    rate_per_second: float | None = None
    """Maximum number of notifications to change per second. None if unlimited."""
    status: JobStatus = JobStatus.RUNNING
    matched: int = 0
    """Number of notifications found so far whose status permits the command."""
    expected: int | None = None
    """Number of notifications that matched when the job was started. None if counting them would have taken
    too long."""
    done: int = 0
    """Number of notifications changed so far."""
    refused: int = 0
    """Number of notifications skipped because their status changed in the meantime."""
    stopped: str | None = None
    """Why the job ended early. None if no reason is recorded."""
    stop_requested_by: str | None = None
    """Operator who requested a stop, which takes effect at the next step. None if no stop was requested."""
    created_at: datetime
    """Start of the job. Notifications changed after it are skipped, so that none is changed twice."""
    updated_at: datetime
    ended_at: datetime | None = None
    worker: str
    """Process that runs the job."""

    def further(self, before: Job, matched: int, done: int, refused: int) -> Job:
        """Returns the job with the counts of the current run added to those of `before`."""
        return replace(
            self,
            matched=before.matched + matched,
            done=before.done + done,
            refused=before.refused + refused,
        )


def job_key(id: str) -> str:
    """Returns the registry key of a job. The newest job sorts first."""
    return f"{_MAX_TIME_MS - id_time_ms(id):012x}-{id}"


def current_job(job: Job, updated_at: datetime, now: datetime) -> Job:
    """Returns the job with its current status: `interrupted` if its process seems to be dead."""
    silent_ms = (now - updated_at).total_seconds() * 1000
    lost = job.status is JobStatus.RUNNING and silent_ms > JOB_LEASE_MS
    return replace(job, status=JobStatus.INTERRUPTED if lost else job.status, updated_at=updated_at)


def is_resumable(job: Job) -> bool:
    """Returns True if the job ended early and can be resumed."""
    return job.status in (JobStatus.STOPPED, JobStatus.FAILED, JobStatus.INTERRUPTED)


def why_unfinished(job: Job) -> str | None:
    """Returns why a job is not complete, or None if it is. If no reason is recorded, returns its status."""
    return None if job.status is JobStatus.DONE else job.stopped or job.status.value


def job_entry(tenant: str, job: Job, version: int) -> Entry:
    """Encodes a job as a registry entry."""
    return Entry(
        tenant=tenant, kind=JOB_KIND, key=job_key(job.id), value=msgspec.to_builtins(job), version=version
    )


def decode_job(entry: Entry) -> Job:
    """Decodes a job from its registry entry."""
    return msgspec.convert(entry.value, Job)
