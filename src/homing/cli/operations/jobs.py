"""`homing jobs`: lists background jobs, and stops and resumes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, Who, command, open_engine, record_audit
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_relative_time
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.lifecycle.jobs import Job
    from homing.library import Homing

jobs = add_command_group("jobs", "List background jobs, stop and resume them.")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of the job.")]

_POLL_S = 0.2


@command(jobs, "list")
async def list_(options: Options, json: Json = False) -> int:
    """List the jobs of the tenant, newest first. The newest hundred are kept."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.jobs.list(homing.tenant)
    if json:
        print_json({"items": found})
        return ExitCode.OK
    if not found:
        options.notes.line("no jobs")
        return ExitCode.OK
    options.screen.table(
        ("JOB", "COMMAND", "STATUS", "DONE>", "STARTED", "WHO~"),
        [
            (
                job.id,
                job.command.value,
                styled(job.status.value),
                _done(job),
                format_relative_time(job.created_at),
                job.who,
            )
            for job in found
        ],
    )
    return ExitCode.OK


@command(jobs, "stop")
async def stop(options: Options, id: JobId, who: Who = None, json: Json = False) -> int:
    """Stop a running job at its next step, in whatever process it runs."""
    async with open_engine(options, existing=True) as homing:
        await homing.jobs.get(homing.tenant, id)
        by = await record_audit(homing, "job.stop", id, who=who)
        job = await homing.jobs.stop(homing.tenant, id, who=by)
    if json:
        print_json(job)
    elif job.stop_requested_by and job.status.value == "running":
        options.screen.line("requested", id, "it stops at its next step")
    else:
        options.screen.line(styled(job.status.value), id, _done(job))
    return ExitCode.OK


@command(jobs, "resume")
async def resume(options: Options, id: JobId, who: Who = None, json: Json = False) -> int:
    """Continue a job that ended early, in this process, until it ends. Nothing is changed twice."""
    from homing.core.lifecycle.jobs import JobStatus

    async with open_engine(options, existing=True) as homing:
        await homing.jobs.get(homing.tenant, id)
        by = await record_audit(homing, "job.resume", id, who=who)
        job = await _wait(options, homing, await homing.jobs.resume(homing.tenant, id, who=by))
    if json:
        print_json(job)
    else:
        options.screen.line(styled(job.status.value), id, _done(job), job.stopped or "")
    return ExitCode.OK if job.status is JobStatus.DONE else ExitCode.PARTIAL


async def _wait(options: Options, homing: Homing, job: Job) -> Job:
    """Shows the progress of a job until it has ended."""
    from homing.core.lifecycle.jobs import JobStatus

    with ProgressBar(options, job.command.value, job.expected) as bar:
        while job.status is JobStatus.RUNNING:
            await asyncio.sleep(_POLL_S)
            job = await homing.jobs.get(homing.tenant, job.id)
            bar.at(job.done, f"{job.done:,} done")
    return job


def _done(job: Job) -> str:
    """Returns how much a job has done, such as `120 of 4,210`."""
    return f"{job.done:,}" if job.expected is None else f"{job.done:,} of {job.expected:,}"
