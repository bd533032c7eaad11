"""Routes for dead letters: list, group, acknowledge, resend and move to, one at a time or in bulk."""

from __future__ import annotations

from typing import Any

from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.jobs import Job
from homing.core.notifications import Filter, Notification, Page
from homing.core.statistics import ErrorGroups
from homing.engine.operations.dead_letters import fetch_dead_letters
from homing.wire.dead_letters import (
    AcknowledgeBody,
    BulkBody,
    DeadLetterQuery,
    DryRunResponse,
    GroupQuery,
    MoveBody,
    ResendBody,
    ResendResponse,
)

routes = Routes("Dead letters")


_MAY_READ = (Scope.READ, Scope.OPERATE)


@routes.get("/dead-letters", scope=_MAY_READ)
async def list_dead_letters(call: ApiCall, query: DeadLetterQuery) -> Page:
    """List dead letters, unacknowledged first, then newest first.

    Pass the response's `cursor` to get the next page. The last page has no cursor.
    """
    return await fetch_dead_letters(
        call.tenant_api,
        query.filter(),
        acknowledged=query.acknowledged,
        limit=query.limit,
        cursor=query.cursor,
    )


@routes.get("/dead-letters/groups", scope=_MAY_READ)
async def group_dead_letters(call: ApiCall, query: GroupQuery) -> ErrorGroups:
    """Group dead letters by error, largest group first.

    Each group includes its newest dead letter as an example. The newest 10,000 dead letters are grouped; if
    there are more, `complete` is false.
    """
    return await call.tenant_api.dead_letter_groups(query.limit)


@routes.post(
    "/dead-letters/bulk",
    scope=Scope.OPERATE,
    status=202,
    answers={200: DryRunResponse},
    errors=("COMMAND_REFUSED",),
)
async def bulk_dead_letters(call: ApiCall, body: BulkBody) -> ApiResponse[Job]:
    """Acknowledge, resend, retry or cancel all notifications that match a filter.

    Responds with 202 and a background job, whose progress is at `/jobs/{id}`. If the newest job with the same
    command and filter ended early within the last hour, that job is continued with the new author, reason and
    rate. Its `createdAt` is then in the past, and notifications that changed after it are skipped; repeat the
    request when the job is done. With `dryRun`, responds with 200 and the number of matching notifications
    instead. A resend or retry stops when a breaker opens. Synchronous notifications are skipped.
    """
    command, chosen = CommandName(body.command), body.filter.chosen()
    if body.dry_run:
        answer: ApiResponse[Any] = ApiResponse(await _count(call, command, chosen, body.rate_per_second), 200)
        return answer
    jobs = call.service.engine.jobs
    continued = await jobs.to_continue(call.caller.tenant, command, chosen)
    if continued is None:
        await call.note("job.start", body.command, why=body.why)
    else:
        await call.note("job.resume", continued.id, why=body.why)
    job = await jobs.start_or_resume(
        call.caller.tenant,
        command,
        chosen,
        who=call.caller.who,
        why=body.why,
        rate_per_second=body.rate_per_second,
    )
    return ApiResponse(job, 202, {"Location": f"/api/v1/jobs/{job.id}"})


@routes.post(
    "/dead-letters/{id}/acknowledge",
    scope=Scope.OPERATE,
    body_optional=True,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
)
async def acknowledge_dead_letter(call: ApiCall, id: str, body: AcknowledgeBody) -> Notification:
    """Acknowledge a dead letter, to mark it as seen."""
    await call.tenant_api.get(id)
    await call.note("dead_letter.acknowledge", id, why=body.why)
    await call.tenant_api.acknowledge(id, who=call.caller.who, why=body.why)
    return await call.tenant_api.get(id)


@routes.post(
    "/dead-letters/{id}/resend",
    scope=Scope.OPERATE,
    status=201,
    body_optional=True,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
)
async def resend_dead_letter(call: ApiCall, id: str, body: ResendBody) -> ApiResponse[ResendResponse]:
    """Resend a dead letter.

    Creates a new notification with the same message and the full number of attempts. The original is
    acknowledged and linked to the new notification, and cannot be resent again.
    """
    await call.tenant_api.get(id)
    await call.note("dead_letter.resend", id, why=body.why, provider=body.provider)
    new = await call.tenant_api.resend(id, who=call.caller.who, why=body.why, provider=body.provider)
    found = await call.tenant_api.get(new)
    resent = ResendResponse(notification_id=new, resend_of=id, status=found.status)
    return ApiResponse(resent, 201, {"Location": f"/api/v1/notifications/{new}"})


@routes.post(
    "/notifications/{id}/move-to-dead-letter",
    scope=Scope.OPERATE,
    body_optional=True,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
)
async def move_to_dead_letter(call: ApiCall, id: str, body: MoveBody) -> Notification:
    """Move a notification that waits, or is in doubt, to the dead letters.

    It is not attempted any more, and can be resent like every dead letter. A notification with an attempt in
    flight cannot be moved; cancel it, or wait until the attempt has ended.
    """
    await call.tenant_api.get(id)
    await call.note("notification.fail", id, why=body.why)
    await call.tenant_api.move_to_dead_letter(id, who=call.caller.who, why=body.why)
    return await call.tenant_api.get(id)


async def _count(
    call: ApiCall, command: CommandName, chosen: Filter, rate_per_second: float | None
) -> DryRunResponse:
    found = await call.tenant_api.dry_run(command, chosen, rate_per_second=rate_per_second)
    return DryRunResponse(
        dry_run=True, matched=found.matched, complete=found.complete, takes_ms=found.takes_ms
    )
