"""Dead letters: look, group, acknowledge, resend; one at a time, or many in the background."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homing.api.answers import Answer, Items
from homing.api.filters import Chosen, Cursor, Limit, Text
from homing.api.notifications import Why
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.jobs import SLOWEST_PER_SECOND, Job
from homing.core.model import CommandName, ErrorGroup, Filter, Notification, Page, Status
from homing.engine.dead_letters import dead_letters

routes = Routes("Dead letters")

_MAY_READ = (Scope.READ, Scope.OPERATE)


class DeadLetterQuery(Chosen, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which dead letters: every field that is given must match."""

    acknowledged: bool | None = None
    """Only those, or only the others; left out, the unacknowledged come first."""
    limit: Limit = 50
    cursor: Cursor | None = None


class GroupQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many groups."""

    limit: Limit = 50


class AcknowledgeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What somebody found out about it."""

    why: Why = ""


class ResendBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Why it is sent again, and by whom."""

    why: Why = ""
    provider: Annotated[Text, Meta(examples=["sns"])] | None = None
    """Forces where it goes: no failover."""


class Resent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A resend is a new notification with the same message; the original is acknowledged and linked."""

    notification_id: str
    """Of the new one."""
    resend_of: str
    status: Status


class BulkFilter(Chosen, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which notifications: every field that is given must match."""

    statuses: Annotated[tuple[Status, ...], Meta(min_length=1, max_length=10)] = (Status.FAILED,)
    """Dead letters, unless others are named."""
    acknowledged: bool | None = None
    """Left out: dead letters that nobody has acknowledged."""

    def chosen(self) -> Filter:
        """As the engine takes it."""
        dead = self.statuses == (Status.FAILED,)
        seen = False if dead and self.acknowledged is None else self.acknowledged
        return self.filter(self.statuses, seen)


class BulkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A command on all that a filter finds."""

    command: Literal["acknowledge", "resend", "retry", "cancel"]
    filter: BulkFilter = BulkFilter()
    why: Why = ""
    dry_run: bool = False
    """Only say how many it would be."""
    rate_per_second: Annotated[float, Meta(ge=SLOWEST_PER_SECOND, le=100_000)] | None = None
    """At most so many; left out, as fast as it goes."""


class BulkCount(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a dry run found: nothing was changed."""

    dry_run: bool
    matched: int
    """Those for which the command would be possible now."""


@routes.get("/dead-letters", scope=_MAY_READ)
async def list_dead_letters(call: Call, query: DeadLetterQuery) -> Page:
    """List dead letters, unacknowledged first, then newest first.

    The answer's `cursor` asks for what follows; none is the end.
    """
    return await dead_letters(
        call.front,
        query.filter(),
        acknowledged=query.acknowledged,
        limit=query.limit,
        cursor=query.cursor,
    )


@routes.get("/dead-letters/groups", scope=_MAY_READ)
async def group_dead_letters(call: Call, query: GroupQuery) -> Items[ErrorGroup]:
    """Dead letters by what they died of, most first; the newest of each as an example."""
    return Items(await call.front.error_groups(query.limit))


@routes.post(
    "/dead-letters/bulk",
    scope=Scope.OPERATE,
    status=202,
    answers={200: BulkCount},
    errors=("COMMAND_REFUSED",),
)
async def bulk_dead_letters(call: Call, body: BulkBody) -> Answer[Job]:
    """Acknowledge, resend, retry or cancel all that a filter finds.

    With `dryRun`, 200 and how many it would be. Else 202 and a job that goes on by itself: look at
    `/jobs/{id}`. A resend or retry stops when a breaker opens. Synchronous notifications are left alone.
    """
    command, chosen = CommandName(body.command), body.filter.chosen()
    if body.dry_run:
        answer: Answer[Any] = Answer(
            BulkCount(dry_run=True, matched=await _count(call, command, chosen)), 200
        )
        return answer
    await call.note("job.start", body.command, why=body.why)
    job = await call.service.engine.jobs.start(
        call.caller.tenant,
        command,
        chosen,
        who=call.caller.who,
        why=body.why,
        rate_per_second=body.rate_per_second,
    )
    return Answer(job, 202, {"Location": f"/api/v1/jobs/{job.id}"})


@routes.post(
    "/dead-letters/{id}/acknowledge",
    scope=Scope.OPERATE,
    body_optional=True,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
)
async def acknowledge_dead_letter(call: Call, id: str, body: AcknowledgeBody) -> Notification:
    """Say that somebody has looked at a dead letter."""
    await call.front.get(id)
    await call.note("dead_letter.acknowledge", id, why=body.why)
    await call.front.acknowledge(id, who=call.caller.who, why=body.why)
    return await call.front.get(id)


@routes.post(
    "/dead-letters/{id}/resend",
    scope=Scope.OPERATE,
    status=201,
    body_optional=True,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
)
async def resend_dead_letter(call: Call, id: str, body: ResendBody) -> Answer[Resent]:
    """Send it again: a new notification with the same message and all its attempts.

    The original is acknowledged and linked, and cannot be resent once more.
    """
    await call.front.get(id)
    await call.note("dead_letter.resend", id, why=body.why, provider=body.provider)
    new = await call.front.resend(id, who=call.caller.who, why=body.why, provider=body.provider)
    found = await call.front.get(new)
    resent = Resent(notification_id=new, resend_of=id, status=found.status)
    return Answer(resent, 201, {"Location": f"/api/v1/notifications/{new}"})


async def _count(call: Call, command: CommandName, chosen: Filter) -> int:
    last = 0
    async for progress in call.front.bulk(command, chosen, who=call.caller.who, dry_run=True):
        last = progress.done
    return last
