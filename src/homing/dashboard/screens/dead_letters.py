"""Dead letters, grouped by error, and the paced jobs that act on all that match. A job survives restarts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from msgspec.structs import replace
from starlette.responses import Response

from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.jobs import Job, JobStatus, is_resumable
from homing.core.lifecycle.states import WAITING
from homing.core.notifications import Channel, Filter, Page, Reason, Status
from homing.core.plain_values import enum_member
from homing.core.request_decoding import read_filter
from homing.dashboard.visits import Screens, Visit
from homing.engine.operations.dead_letters import fetch_dead_letters

screens = Screens()

DEFAULT_RATE = 10.0
"""Notifications per second of a job, unless the form says otherwise."""

_DRY_RUN = timedelta(milliseconds=50)
"""Time in which a dry run counts. If there are more, the page says so."""

_LISTED = timedelta(milliseconds=100)
"""Time in which the list must be complete. After it, a bounded number of notifications is compared."""

_UNFINISHED = 5
"""Number of the newest jobs of which the unfinished ones are named above the groups."""

_FILTER_FIELDS = ("channel", "type", "provider", "reason", "error_code", "batch_id", "address")

_COMMANDS = {
    "failed": (CommandName.RESEND, CommandName.ACKNOWLEDGE),
    "waiting": (CommandName.RETRY, CommandName.CANCEL),
}
"""What a job acts on → commands that make sense for it, the usual one first."""


@screens.get("dead-letters")
async def show_dead_letters(visit: Visit) -> Response:
    """Shows the groups of dead letters and, below them, single ones."""
    chosen = _filter({name: visit.query.get(name, "") for name in _FILTER_FIELDS})
    seen = {"yes": True, "no": False}.get(visit.query.get("acknowledged", "no"))
    cursor = visit.query.get("cursor") or None
    page = await fetch_dead_letters(
        visit.api, chosen, acknowledged=seen, limit=50, cursor=cursor, within=_LISTED
    )
    if "hx-request" in visit.request.headers and cursor:
        return visit.page("rows_more.html", page=page, next_page=_next(visit, page.cursor))
    return visit.page(
        "dead_letters.html",
        part=await read_groups(visit),
        page=page,
        next_page=_next(visit, page.cursor),
        chosen={name: visit.query.get(name, "") for name in (*_FILTER_FIELDS, "acknowledged")},
        channels=list(Channel),
        reasons=list(Reason),
        filtered=any(visit.query.get(name) for name in _FILTER_FIELDS),
    )


@screens.live("dead-letters")
async def read_groups(visit: Visit) -> str:
    """Returns the groups and the jobs that run."""
    found = await visit.api.dead_letter_groups(30)
    jobs = await visit.engine.jobs.list(visit.caller.tenant)
    return visit.html(
        "dead_groups.html",
        groups=found.items,
        found=found,
        jobs=[
            job
            for place, job in enumerate(jobs)
            if job.status is JobStatus.RUNNING or (place < _UNFINISHED and is_resumable(job))
        ],
    )


@screens.get("dead-letters/plan", Scope.OPERATE)
@screens.get("find/plan", Scope.OPERATE)
async def plan_job(visit: Visit) -> Response:
    """Shows what a command would do to all that match: their number, and how long it takes."""
    kind = _kind(visit.query)
    command, rate = _command(visit.query, kind), _rate(visit.query.get("rate", ""))
    chosen = _filter(visit.query)
    found = await visit.api.dry_run(command, chosen, rate_per_second=rate, within=_DRY_RUN)
    examples = Page(items=())
    if found.matched and kind == "failed":
        examples = await fetch_dead_letters(visit.api, chosen, acknowledged=False, limit=5, within=_LISTED)
    elif found.matched:
        shown = await visit.api.find("", chosen, limit=5)
        examples = Page(items=shown.items)
    return visit.page(
        "job_plan.html",
        dead=kind == "failed",
        command=command,
        commands=_COMMANDS[kind],
        rate=rate,
        matched=found.matched,
        complete=found.complete,
        takes_ms=found.takes_ms,
        given={
            name: visit.query.get(name, "") for name in ("status", *_FILTER_FIELDS) if visit.query.get(name)
        },
        examples=examples.items,
        stopped=await visit.api.why_stopped(command, {one.channel for one in examples.items}),
        unfinished=await visit.engine.jobs.to_continue(visit.caller.tenant, command, chosen),
    )


@screens.post("dead-letters/start", Scope.OPERATE)
@screens.post("find/start", Scope.OPERATE)
async def start_job(visit: Visit, form: dict[str, str]) -> Response:
    """Starts a job, or continues the one with the same command and filter that ended early."""
    command = _command(form, _kind(form))
    chosen, jobs, tenant = _filter(form), visit.engine.jobs, visit.caller.tenant
    if not form.get("why"):
        raise InvalidRequest("why", "is missing; say why, for the audit trail")
    rate = _rate(form.get("rate", ""))
    continued = await jobs.to_continue(tenant, command, chosen)
    await visit.note(
        "job.start" if continued is None else "job.resume",
        command.value if continued is None else continued.id,
        why=form["why"],
    )
    job = await jobs.start_or_resume(
        tenant, command, chosen, who=visit.caller.who, why=form["why"], rate_per_second=rate
    )
    return visit.go(f"jobs/{job.id}")


# Jobs ---------------------------------------------------------------------------------------------


@screens.get("jobs")
async def show_jobs(visit: Visit) -> Response:
    """Shows the tenant's jobs, newest first."""
    return visit.page("jobs.html", jobs=await visit.engine.jobs.list(visit.caller.tenant))


@screens.get("jobs/{id}")
async def show_job(visit: Visit, id: str) -> Response:
    """Shows one job and its progress."""
    return visit.page("job.html", id=id, part=await _job_part(visit, id))


@screens.live("job")
async def read_job(visit: Visit) -> str:
    """Returns the progress of one job."""
    return await _job_part(visit, visit.query.get("id", ""))


@screens.post("jobs/{id}/stop", Scope.OPERATE)
async def stop_job(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Stops a job at its next step."""
    await visit.engine.jobs.get(visit.caller.tenant, id)
    await visit.note("job.stop", id)
    await visit.engine.jobs.stop(visit.caller.tenant, id, who=visit.caller.who)
    return visit.go(f"jobs/{id}", done="stopping")


@screens.post("jobs/{id}/resume", Scope.OPERATE)
async def resume_job(visit: Visit, id: str, form: dict[str, str]) -> Response:
    """Continues a job that ended early."""
    await visit.engine.jobs.get(visit.caller.tenant, id)
    await visit.note("job.resume", id)
    rate = _rate(form["rate"]) if form.get("rate") else None
    await visit.engine.jobs.resume(visit.caller.tenant, id, who=visit.caller.who, rate_per_second=rate)
    return visit.go(f"jobs/{id}", done="resumed")


async def _job_part(visit: Visit, id: str) -> str:
    job = await visit.engine.jobs.get(visit.caller.tenant, id)
    return visit.html("job_part.html", job=job, resumable=is_resumable(job), left_ms=_left_ms(job))


def _left_ms(job: Job) -> float | None:
    """Returns how long a running job still takes at its rate, in milliseconds. None if that is not known."""
    if job.status is not JobStatus.RUNNING or job.expected is None or not job.rate_per_second:
        return None
    return 1000 * max(0, job.expected - job.done - job.refused) / job.rate_per_second


def _kind(given: Mapping[str, str]) -> str:
    """Returns what a job acts on: dead letters, unless the status is one of those that wait."""
    status = given.get("status") or "failed"
    if status not in ("failed", "waiting", *WAITING):
        raise InvalidRequest("status", f"is {status}; jobs act on dead letters and on what waits")
    return "failed" if status == "failed" else "waiting"


def _command(given: Mapping[str, str], kind: str) -> CommandName:
    usual, *_ = allowed = _COMMANDS[kind]
    command = enum_member(CommandName, given.get("command") or usual, "command")
    if command not in allowed:
        names = " or ".join(one.value for one in allowed)
        raise InvalidRequest("command", f"is {command.value}; here, it must be {names}")
    return command


def _filter(given: Mapping[str, str]) -> Filter:
    """Returns the filter of the fields in an address or a form.

    It selects unacknowledged dead letters, unless the status is one of those that wait.
    """
    names = {"error_code": "errorCode", "batch_id": "batchId"}
    fields = {names.get(name, name): given[name] for name in _FILTER_FIELDS if given.get(name)}
    if _kind(given) == "failed":
        return replace(read_filter(fields), statuses=(Status.FAILED,), acknowledged=False)
    both = (Status.PENDING, Status.RETRYING)
    statuses = both if given["status"] == "waiting" else (Status(given["status"]),)
    return replace(read_filter(fields), statuses=statuses)


def _rate(text: str) -> float:
    try:
        rate = float(text) if text else DEFAULT_RATE
    except ValueError:
        raise InvalidRequest("rate", "is not a number; give notifications per second") from None
    if not 0.1 <= rate <= 10_000:
        raise InvalidRequest("rate", "must be from 0.1 to 10,000 notifications per second")
    return rate


def _next(visit: Visit, cursor: str | None) -> str | None:
    """Returns the address of the next page, with the same filter. None on the last page."""
    if cursor is None:
        return None
    kept = {name: value for name, value in visit.query.items() if name not in ("cursor", "done")}
    return visit.to("dead-letters", **kept, cursor=cursor)
