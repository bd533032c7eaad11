"""Routes for the background jobs of bulk commands: list, read, stop and resume."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.lifecycle.jobs import Job
from homing.wire.common import ItemList
from homing.wire.dead_letters import JobQuery

routes = Routes("Jobs")


JobId = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        examples=["018d0c7e-5a00-7000-8000-000000000001"],
    ),
]


_MAY_READ = (Scope.READ, Scope.OPERATE)


@routes.get("/jobs", scope=_MAY_READ)
async def list_jobs(call: ApiCall, query: JobQuery) -> ItemList[Job]:
    """List the tenant's jobs, newest first. The newest hundred jobs are kept."""
    return ItemList(await call.service.engine.jobs.list(call.caller.tenant, limit=query.limit))


@routes.get("/jobs/{id}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_job(call: ApiCall, id: JobId) -> Job:
    """Retrieve a job and its progress. If the job's process has ended unexpectedly, its status is
    `interrupted`.
    """
    return await call.service.engine.jobs.get(call.caller.tenant, id)


@routes.post("/jobs/{id}/stop", scope=Scope.OPERATE, errors=("NOT_FOUND",))
async def stop_job(call: ApiCall, id: JobId) -> Job:
    """Stop a job at its next step, in whichever process it runs. A job that has ended does not change."""
    await call.service.engine.jobs.get(call.caller.tenant, id)
    await call.note("job.stop", id)
    return await call.service.engine.jobs.stop(call.caller.tenant, id, who=call.caller.who)


@routes.post("/jobs/{id}/resume", scope=Scope.OPERATE, errors=("NOT_FOUND", "COMMAND_REFUSED"))
async def resume_job(call: ApiCall, id: JobId) -> Job:
    """Resume a job that was stopped, failed or interrupted. No notification is processed twice."""
    await call.service.engine.jobs.get(call.caller.tenant, id)
    await call.note("job.resume", id)
    return await call.service.engine.jobs.resume(call.caller.tenant, id, who=call.caller.who)
