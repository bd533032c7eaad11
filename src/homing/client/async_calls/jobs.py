"""Jobs, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.asking import part
from homing.client.calling import AsyncCalling
from homing.client.structs.jobs import JobQuery
from homing.client.structs.queue import Items
from homing.core.jobs import Job


class AsyncJobs(AsyncCalling):
    """The operations on jobs."""

    async def list_jobs(self, *, limit: int = 50) -> Items[Job]:
        """The tenant's jobs, newest first; the last hundred are kept."""
        return await self._ask(Items[Job], "GET", "/api/v1/jobs", query=JobQuery(limit=limit))

    async def get_job(self, id: str) -> Job:
        """How far a job is. One whose process has ended is `interrupted`."""
        return await self._ask(Job, "GET", f"/api/v1/jobs/{part(id)}")

    async def stop_job(self, id: str) -> Job:
        """Stop a job at its next step, whichever process does it. One that has ended stays as it is."""
        return await self._ask(Job, "POST", f"/api/v1/jobs/{part(id)}/stop")

    async def resume_job(self, id: str) -> Job:
        """Go on with a job that was stopped, failed or interrupted. Nothing is done twice."""
        return await self._ask(Job, "POST", f"/api/v1/jobs/{part(id)}/resume")
