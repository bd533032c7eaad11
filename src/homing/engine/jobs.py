"""Bulk commands that go on in the background: started, watched, stopped and resumed from any process.

A job is an entry in the Registry. The process that took it writes its progress there, and at least every
few seconds that it is alive; whoever wants it to stop writes that into the same entry, by its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress

from msgspec.structs import replace

from homing.core.errors import (
    CommandRefused,
    InvalidRequest,
    NotFound,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from homing.core.events import moment
from homing.core.ids import uuid7
from homing.core.jobs import (
    BULK_COMMANDS,
    KIND,
    SLOWEST_PER_SECOND,
    Job,
    JobStatus,
    as_read,
    entry_of,
    job_of,
    key_of,
    resumable,
)
from homing.core.model import CommandName, Entry, Filter
from homing.core.ports import Backend, Chance, Clock
from homing.core.reading import check_filter
from homing.engine.commands import BulkProgress, Commands

log = logging.getLogger("homing.jobs")

_GATE = "job_gate"
_OURS = (JobStatus.RUNNING, JobStatus.INTERRUPTED)
"""As another process may see one of ours that was held up."""
_BEAT_MS = 5_000
_PER_TENANT = 5
_KEPT = 100
_TRIES = 20


class _Run:
    """A job that this process does. Its entry is written by one at a time."""

    def __init__(self, tenant: str, job: Job, version: int) -> None:
        self.tenant = tenant
        self.job = job
        self.version = version
        self.writing = asyncio.Lock()
        self.lost = False
        """Another process has taken it, or it was removed."""

    def must_stop(self) -> bool:
        return self.lost or self.job.stop_requested_by is not None


class Jobs:
    """The jobs of all tenants; every call is by one of them."""

    def __init__(
        self,
        *,
        backend: Backend,
        clock: Clock,
        chance: Chance,
        worker: str,
        front: Callable[[str], Commands],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._chance = chance
        self._worker = worker
        self._front = front
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(
        self,
        tenant: str,
        command: CommandName,
        filter: Filter,
        *,
        who: str,
        why: str = "",
        rate_per_second: float | None = None,
    ) -> Job:
        """Takes a job and begins; it goes on here when this has returned."""
        if command not in BULK_COMMANDS:
            allowed = ", ".join(one.value for one in BULK_COMMANDS)
            raise InvalidRequest("command", f"is {command.value}; in bulk there are {allowed}")
        if rate_per_second is not None and not SLOWEST_PER_SECOND <= rate_per_second < float("inf"):
            raise InvalidRequest(
                "ratePerSecond", f"is {rate_per_second}; it must be at least {SLOWEST_PER_SECOND}"
            )
        check_filter(filter)
        now = await self._backend.now_ms()
        job = Job(
            id=uuid7(now, self._chance.getrandbits(74)),
            command=command,
            filter=filter,
            who=who,
            why=why,
            rate_per_second=rate_per_second,
            created_at=moment(now),
            updated_at=moment(now),
            worker=self._worker,
        )
        started = await self._admit(tenant, job, 0)
        await self._forget_oldest(tenant)
        return started

    async def get(self, tenant: str, id: str) -> Job:
        """One job as it stands; `NotFound` if this tenant has none of that id."""
        return (await self._read(tenant, id))[0]

    async def list(self, tenant: str, *, limit: int = 50) -> tuple[Job, ...]:
        """Newest first. The last hundred are kept."""
        now = moment(await self._backend.now_ms())
        entries = await self._backend.list_entries(tenant, KIND, limit=limit)
        return tuple(as_read(job_of(entry), moment(entry.updated_at), now) for entry in entries)

    async def stop(self, tenant: str, id: str, *, who: str) -> Job:
        """Asks a job to stop: it does so at its next step. One that has ended stays as it is."""
        for _ in range(_TRIES):
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

    async def resume(self, tenant: str, id: str, *, who: str) -> Job:
        """Goes on here with a job that was stopped, failed or interrupted. Nothing is done twice."""
        job, version = await self._read(tenant, id)
        if resumable(job) and id in self._running:  # held up for so long that it counts as interrupted
            await self._break_off([self._running[id]])
            job, version = await self._read(tenant, id)
        if not resumable(job):
            raise CommandRefused(f"resume is not possible: job {id} is {job.status.value}")
        log.info("job %s is resumed by %s", id, who)
        again = replace(
            job,
            status=JobStatus.RUNNING,
            worker=self._worker,
            stopped=None,
            stop_requested_by=None,
            ended_at=None,
        )
        return await self._admit(tenant, again, version)

    async def close(self) -> None:
        """Breaks off what is under way here; it can be resumed elsewhere."""
        await self._break_off(self._running.values())

    async def _break_off(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        running = tuple(tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # Taking a job ---------------------------------------------------------------------------------

    async def _admit(self, tenant: str, job: Job, version: int) -> Job:
        """Counts, and writes the job with the gate: two processes cannot take the last place both."""
        for _ in range(_TRIES):
            gate = (await self._backend.get_many(tenant, _GATE, ["gate"])).get("gate")
            under_way = [
                one for one in await self.list(tenant, limit=_KEPT) if one.status is JobStatus.RUNNING
            ]
            if len(under_way) >= _PER_TENANT:
                raise CommandRefused(
                    f"{len(under_way)} jobs are under way; wait until one has ended, or stop one"
                )
            passed = Entry(
                tenant=tenant,
                kind=_GATE,
                key="gate",
                value={"last": job.id},
                version=gate.version if gate else 0,
            )
            put = await self._backend.put([entry_of(tenant, job, version), passed], who=job.who)
            if put is not None:
                self._begin(_Run(tenant, job, put[0].version))
                return job
            if version and (await self._read(tenant, job.id))[1] != version:
                raise CommandRefused(
                    f"resume is not possible: somebody else has changed job {job.id} just now"
                )
        raise StoreBusy

    def _begin(self, run: _Run) -> None:
        id = run.job.id
        task = asyncio.create_task(self._do(run), name=f"homing-job-{id}")
        self._running[id] = task
        task.add_done_callback(lambda _: self._running.pop(id, None))

    async def _forget_oldest(self, tenant: str) -> None:
        """The newest hundred are kept, and those that are under way."""
        entries = await self._backend.list_entries(tenant, KIND, limit=_KEPT + 100)
        old = [entry.key for entry in entries[_KEPT:] if job_of(entry).status is not JobStatus.RUNNING]
        if old:
            await self._backend.delete(tenant, KIND, old)

    # Doing it -------------------------------------------------------------------------------------

    async def _do(self, run: _Run) -> None:
        beat = asyncio.create_task(self._beat(run))
        try:
            status, why = await self._steps(run)
        except asyncio.CancelledError:
            with suppress(StoreError):
                await self._end(run, JobStatus.INTERRUPTED, "its process ended")
            raise
        except Exception as error:
            log.error("job %s failed: %s", run.job.id, type(error).__name__, exc_info=error)
            what = "the store cannot do it" if isinstance(error, StoreError) else "a defect"
            status, why = JobStatus.FAILED, f"{what}; the log has it"
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
        with suppress(StoreError):  # it is interrupted then, and can be resumed
            await self._end(run, status, why)

    async def _steps(self, run: _Run) -> tuple[JobStatus, str | None]:
        """Until there is nothing left, or it is to stop. A store that is away is waited for."""
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
                log.warning("job %s waits for the store: %s", run.job.id, error)
                await self._clock.sleep_ms(_BEAT_MS)
        return JobStatus.STOPPED, f"stopped by {run.job.stop_requested_by}"

    def _bulk(self, run: _Run) -> AsyncGenerator[BulkProgress, None]:
        job = run.job
        return self._front(run.tenant).bulk(
            job.command,
            job.filter,
            who=job.who,
            why=job.why,
            rate_per_second=job.rate_per_second,
            as_of=job.created_at,
        )

    async def _beat(self, run: _Run) -> None:
        while True:
            await self._clock.sleep_ms(_BEAT_MS)
            with suppress(StoreError):
                await self._save(run)

    async def _end(self, run: _Run, status: JobStatus, why: str | None) -> None:
        if not run.lost:
            now = moment(await self._backend.now_ms())
            run.job = replace(run.job, status=status, stopped=why, ended_at=now)
            await self._save(run)

    async def _save(self, run: _Run) -> None:
        """Writes how far it is; hears whether it is to stop, or is somebody else's by now."""
        async with run.writing:
            for _ in range(_TRIES):
                version = await self._put(run.tenant, run.job, run.version, run.job.who)
                if version is not None:
                    run.version = version
                    return
                try:
                    theirs, run.version = await self._read(run.tenant, run.job.id)
                except NotFound:
                    run.lost = True
                    return
                if theirs.worker != self._worker or theirs.status not in _OURS:
                    run.lost = True
                    return
                run.job = replace(run.job, stop_requested_by=theirs.stop_requested_by)

    async def _put(self, tenant: str, job: Job, version: int, who: str) -> int | None:
        put = await self._backend.put([entry_of(tenant, job, version)], who=who)
        return put[0].version if put else None

    async def _read(self, tenant: str, id: str) -> tuple[Job, int]:
        key = key_of(id)
        entry = (await self._backend.get_many(tenant, KIND, [key])).get(key)
        if entry is None:
            raise NotFound(f"there is no job {id} for tenant {tenant!r}")
        now = moment(await self._backend.now_ms())
        return as_read(job_of(entry), moment(entry.updated_at), now), entry.version
