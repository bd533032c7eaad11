"""Background jobs for bulk commands. Any process can start, watch, stop and resume them.

A job is an entry in the Registry. The process that runs the job writes its progress there, at least every
five seconds, so that other processes see that it is alive. A request to stop the job is written into the same
entry. The entry's version prevents lost updates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from homing.core.errors import (
    CommandRefused,
    InvalidRequest,
    NotFound,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from homing.core.ids import uuid7
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.jobs import (
    BULK_COMMANDS,
    JOB_KIND,
    SLOWEST_PER_SECOND,
    Job,
    JobStatus,
    current_job,
    decode_job,
    is_resumable,
    job_entry,
    job_key,
)
from homing.core.notifications import Filter
from homing.core.plain_values import enum_member, is_storable, plain_text
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend, Entry
from homing.core.request_decoding import read_filter
from homing.core.times import moment
from homing.engine.operations.commands import BulkProgress
from homing.engine.tenant_api import TenantApi

log = logging.getLogger("homing.jobs")


_GATE = "job_gate"

_OWN_STATUSES = (JobStatus.RUNNING, JobStatus.INTERRUPTED)
"""Statuses of a job that this process may still be running.

A job whose progress is not written in time counts as interrupted, even if it still runs.
"""

_HEARTBEAT_MS = 5_000

_COUNT_WITHIN = timedelta(milliseconds=50)
"""Time in which a new job counts what it will change, so that its progress can be compared with that."""

_MAX_RUNNING_PER_TENANT = 5

_MAX_KEPT = 100

_MAX_TRIES = 20

_CONTINUE_WITHIN_MS = 3_600_000
"""Time after the last sign of life of an unfinished job in which the same command continues it."""


class _Run:
    """A job that runs in this process. The lock `writing` serializes the writes of its entry."""

    def __init__(self, tenant: str, job: Job, version: int) -> None:
        self.tenant = tenant
        self.job = job
        self.version = version
        self.writing = asyncio.Lock()
        self.lost = False
        """True if another process has taken over the job, or the job was deleted."""

    def must_stop(self) -> bool:
        """Returns True if the job is lost or a stop was requested."""
        return self.lost or self.job.stop_requested_by is not None


class Jobs:
    """Starts, lists, stops and resumes the jobs of all tenants. Each call names the tenant."""

    def __init__(
        self,
        *,
        backend: Backend,
        clock: Clock,
        random_source: RandomSource,
        worker: str,
        tenant_api: Callable[[str], TenantApi],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._random_source = random_source
        self._worker = worker
        self._tenant_api = tenant_api
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(
        self,
        tenant: str,
        command: CommandName | str,
        filter: Filter | Mapping[str, Any],
        *,
        who: str,
        why: str = "",
        rate_per_second: float | None = None,
    ) -> Job:
        """Creates a job and starts it in the background of this process."""
        command = enum_member(CommandName, command, "command")
        if command not in BULK_COMMANDS:
            allowed = ", ".join(one.value for one in BULK_COMMANDS)
            raise InvalidRequest("command", f"is {command.value}; bulk commands are {allowed}")
        _check_rate(rate_per_second)
        plain_text(who, "who")
        plain_text(why, "why")
        filter = read_filter(filter)
        expected = await self._count(tenant, command, filter)
        now = await self._backend.now_ms()
        job = Job(
            id=uuid7(now, self._random_source.getrandbits(74)),
            command=command,
            filter=filter,
            who=who,
            why=why,
            rate_per_second=rate_per_second,
            expected=expected,
            created_at=moment(now),
            updated_at=moment(now),
            worker=self._worker,
        )
        await self._clock.sleep_ms(1)  # so that what the job changes is newer than the job itself
        started = await self._admit(tenant, job, 0)
        await self._delete_oldest(tenant)
        return started

    async def start_or_resume(
        self,
        tenant: str,
        command: CommandName | str,
        filter: Filter | Mapping[str, Any],
        *,
        who: str,
        why: str = "",
        rate_per_second: float | None = None,
    ) -> Job:
        """Continues the unfinished job that `to_continue` returns, or starts a new job if there is none.

        A continued job skips what changed after its own start, such as the notifications that it has created
        itself, and what became a dead letter later. Its author, reason and rate become the given ones.
        """
        found = await self.to_continue(tenant, command, filter)
        if found is None:
            return await self.start(
                tenant, command, filter, who=who, why=why, rate_per_second=rate_per_second
            )
        _check_rate(rate_per_second)
        plain_text(who, "who")
        plain_text(why, "why")
        job, version = await self._resumable(tenant, found.id)
        job = replace(job, who=who, why=why, rate_per_second=rate_per_second)
        return await self._run_again(tenant, job, version, who)

    async def to_continue(
        self, tenant: str, command: CommandName | str, filter: Filter | Mapping[str, Any]
    ) -> Job | None:
        """Returns the newest job with this command and filter if it ended early within the last hour.

        Returns None if that job runs, is complete or is older. A new job then does what it has left undone.
        """
        command, filter = enum_member(CommandName, command, "command"), read_filter(filter)
        now = moment(await self._backend.now_ms())
        for job in await self.list(tenant):
            if job.command is command and job.filter == filter:
                recent = (now - job.updated_at).total_seconds() * 1000 <= _CONTINUE_WITHIN_MS
                return job if recent and is_resumable(job) else None
        return None

    async def get(self, tenant: str, id: str) -> Job:
        """Returns one job. Raises `NotFound` if this tenant has no job with that id."""
        return (await self._read(tenant, id))[0]

    async def list(self, tenant: str, *, limit: int = _MAX_KEPT) -> tuple[Job, ...]:
        """Returns the jobs of a tenant, newest first. The newest hundred of each tenant are kept."""
        now = moment(await self._backend.now_ms())
        entries = await self._backend.list_entries(tenant, JOB_KIND, limit=limit)
        return tuple(current_job(decode_job(entry), moment(entry.updated_at), now) for entry in entries)

    async def stop(self, tenant: str, id: str, *, who: str) -> Job:
        """Requests that a running job stops at its next step. Marks an interrupted job as stopped at once.

        Has no effect on a job that has ended.
        """
        for _ in range(_MAX_TRIES):
            job, version = await self._read(tenant, id)
            if job.status is JobStatus.INTERRUPTED:
                job = replace(job, status=JobStatus.STOPPED, stopped=f"stopped by {who}")
            elif job.status is JobStatus.RUNNING:
                job = replace(job, stop_requested_by=who)
            else:
                return job
            if await self._put(tenant, job, version, who) is not None:
                return job
        raise StoreBusy

    async def resume(self, tenant: str, id: str, *, who: str, rate_per_second: float | None = None) -> Job:
        """Continues a stopped, failed or interrupted job in this process.

        No notification is changed twice. If `rate_per_second` is None, the job keeps its rate.
        """
        _check_rate(rate_per_second)
        job, version = await self._resumable(tenant, id)
        if rate_per_second is not None:
            job = replace(job, rate_per_second=rate_per_second)
        return await self._run_again(tenant, job, version, who)

    async def close(self) -> None:
        """Aborts the jobs that run in this process. They can be resumed elsewhere."""
        await self._abort(self._running.values())

    async def _abort(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        running = tuple(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # Starting a job -------------------------------------------------------------------------------

    async def _count(self, tenant: str, command: CommandName, filter: Filter) -> int | None:
        """Returns how many notifications a new job will change, or None if that cannot be counted quickly."""
        try:
            found = await self._tenant_api(tenant).dry_run(command, filter, within=_COUNT_WITHIN)
        except StoreError as error:
            log.info("a new job starts without a count of what it will change: %s", error)
            return None
        return found.matched if found.complete else None

    async def _resumable(self, tenant: str, id: str) -> tuple[Job, int]:
        """Returns a job that can be resumed, and its version. Aborts it if it still runs in this process."""
        job, version = await self._read(tenant, id)
        if is_resumable(job) and id in self._running:  # still runs, but wrote no progress in time
            await self._abort([self._running[id]])
            job, version = await self._read(tenant, id)
        if not is_resumable(job):
            raise CommandRefused(f"resume is not possible: job {id} is {job.status.value}")
        return job, version

    async def _run_again(self, tenant: str, job: Job, version: int, who: str) -> Job:
        log.info("job %s is resumed by %s", job.id, who)
        again = replace(
            job,
            status=JobStatus.RUNNING,
            worker=self._worker,
            stopped=None,
            stop_requested_by=None,
            ended_at=None,
        )
        return await self._admit(tenant, again, version)

    async def _admit(self, tenant: str, job: Job, version: int) -> Job:
        """Stores and starts a job. Raises `CommandRefused` if too many jobs of the tenant are running.

        The gate entry is written together with the job, so that two processes cannot exceed the limit by
        starting jobs at the same time.
        """
        for _ in range(_MAX_TRIES):
            gate = (await self._backend.get_many(tenant, _GATE, ["gate"])).get("gate")
            running = [one for one in await self.list(tenant) if one.status is JobStatus.RUNNING]
            if len(running) >= _MAX_RUNNING_PER_TENANT:
                raise CommandRefused(
                    f"{len(running)} jobs are running; wait until one has ended, or stop one"
                )
            passed = Entry(
                tenant=tenant,
                kind=_GATE,
                key="gate",
                value={"last": job.id},
                version=gate.version if gate else 0,
            )
            put = await self._backend.put([job_entry(tenant, job, version), passed], who=job.who)
            if put is not None:
                self._begin(_Run(tenant, job, put[0].version))
                return job
            if version and (await self._read(tenant, job.id))[1] != version:
                raise CommandRefused(
                    f"resume is not possible: job {job.id} was changed at the same time; try again"
                )
        raise StoreBusy

    def _begin(self, run: _Run) -> None:
        id = run.job.id
        task = asyncio.create_task(self._execute(run), name=f"homing-job-{id}")
        self._running[id] = task
        task.add_done_callback(lambda _: self._running.pop(id, None))

    async def _delete_oldest(self, tenant: str) -> None:
        """Deletes old jobs of a tenant. Keeps the newest hundred, and jobs that are running."""
        entries = await self._backend.list_entries(tenant, JOB_KIND, limit=_MAX_KEPT + 100)
        old = [
            entry.key for entry in entries[_MAX_KEPT:] if decode_job(entry).status is not JobStatus.RUNNING
        ]
        if old:
            await self._backend.delete(tenant, JOB_KIND, old)

    # Running a job --------------------------------------------------------------------------------

    async def _execute(self, run: _Run) -> None:
        heartbeat = asyncio.create_task(self._heartbeat(run))
        try:
            status, why = await self._steps(run)
        except asyncio.CancelledError:
            with suppress(StoreError):
                await self._end(run, JobStatus.INTERRUPTED, "its process ended")
            raise
        except Exception as error:
            log.error("job %s failed: %s", run.job.id, type(error).__name__, exc_info=error)
            what = "the store failed" if isinstance(error, StoreError) else "an unexpected error"
            status, why = JobStatus.FAILED, f"{what}; see the log"
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
        with suppress(StoreError):  # if the write fails, the job counts as interrupted and can be resumed
            await self._end(run, status, why)

    async def _steps(self, run: _Run) -> tuple[JobStatus, str | None]:
        """Runs the bulk command until it is complete or must stop. Waits while the store is unavailable."""
        while not run.must_stop():
            before = run.job
            try:
                async with aclosing(self._bulk(run)) as steps:
                    async for progress in steps:
                        run.job = run.job.further(before, progress.matched, progress.done, progress.refused)
                        if progress.stopped:
                            return JobStatus.STOPPED, progress.stopped
                        await self._save(run)
                        if run.must_stop():
                            break
                    else:
                        return JobStatus.DONE, None
            except StoreUnavailable as error:
                log.warning(
                    "job %s cannot continue, the store is unavailable; trying again: %s", run.job.id, error
                )
                await self._clock.sleep_ms(_HEARTBEAT_MS)
        return JobStatus.STOPPED, f"stopped by {run.job.stop_requested_by}"

    def _bulk(self, run: _Run) -> AsyncGenerator[BulkProgress, None]:
        job = run.job
        return self._tenant_api(run.tenant).bulk(
            job.command,
            job.filter,
            who=job.who,
            why=job.why,
            rate_per_second=job.rate_per_second,
            as_of=job.created_at,
        )

    async def _heartbeat(self, run: _Run) -> None:
        while True:
            await self._clock.sleep_ms(_HEARTBEAT_MS)
            with suppress(StoreError):
                await self._save(run)

    async def _end(self, run: _Run, status: JobStatus, why: str | None) -> None:
        if not run.lost:
            now = moment(await self._backend.now_ms())
            run.job = replace(run.job, status=status, stopped=why, ended_at=now)
            await self._save(run)

    async def _save(self, run: _Run) -> None:
        """Writes the progress of a job. If its entry has changed, reads whether the job must stop."""
        async with run.writing:
            for _ in range(_MAX_TRIES):
                version = await self._put(run.tenant, run.job, run.version, run.job.who)
                if version is not None:
                    run.version = version
                    return
                try:
                    theirs, run.version = await self._read(run.tenant, run.job.id)
                except NotFound:
                    run.lost = True
                    return
                if theirs.worker != self._worker or theirs.status not in _OWN_STATUSES:
                    run.lost = True
                    return
                run.job = replace(run.job, stop_requested_by=theirs.stop_requested_by)

    async def _put(self, tenant: str, job: Job, version: int, who: str) -> int | None:
        put = await self._backend.put([job_entry(tenant, job, version)], who=who)
        return put[0].version if put else None

    async def _read(self, tenant: str, id: str) -> tuple[Job, int]:
        if not is_storable(id) or not is_storable(tenant):
            raise NotFound(f"there is no job {id} for tenant {tenant!r}")
        key = job_key(id)
        entry = (await self._backend.get_many(tenant, JOB_KIND, [key])).get(key)
        if entry is None:
            raise NotFound(f"there is no job {id} for tenant {tenant!r}")
        now = moment(await self._backend.now_ms())
        return current_job(decode_job(entry), moment(entry.updated_at), now), entry.version


def _check_rate(rate_per_second: float | None) -> None:
    if rate_per_second is not None and not SLOWEST_PER_SECOND <= rate_per_second < float("inf"):
        raise InvalidRequest(
            "ratePerSecond", f"is {rate_per_second}; it must be at least {SLOWEST_PER_SECOND}"
        )
