"""Routes for the queue: its state, its statistics and retry delays. None of them changes anything.

Some routes accept hypothetical retry settings in the query and compute with these instead of the policy.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from homing.api.http.routing import Routes
from homing.api.intake.notifications import to_timedelta
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.notifications import Notification
from homing.core.overview import OpenAlert, Overview
from homing.core.request_decoding import to_camel_case
from homing.core.retry.policy import MatchKeys
from homing.core.send_request import priority_of
from homing.core.statistics import (
    AttemptStatistics,
    AttemptSuccess,
    ErrorGroup,
    QueueHealth,
    RollUp,
    WaitingGroups,
)
from homing.core.system_status import SystemStatus, find_sink
from homing.wire.common import ItemList
from homing.wire.queue import (
    DelayQuery,
    ErrorsQuery,
    HistogramQuery,
    PendingQuery,
    RetryDelay,
    RollUpsQuery,
    SinkRetryResponse,
    WaitingQuery,
)

routes = Routes("Queue")


_READ = Scope.READ

SinkName = Annotated[str, Meta(min_length=1, max_length=100, examples=["webhook"])]


@routes.get("/overview", scope=_READ)
async def get_overview(call: ApiCall) -> Overview:
    """Retrieve the state of deliveries right now.

    `verdict` says in one sentence what is wrong. Each channel has its rate, success, lateness and backlog,
    with one point per minute for the last hour and one per quarter of an hour for the last day.
    """
    return await call.tenant_api.overview()


@routes.get("/queue/histogram", scope=_READ)
async def get_waiting_histogram(call: ApiCall, query: HistogramQuery) -> WaitingGroups:
    """Count what waits by due time, lane, provider and reason.

    Shows a wave of retries before it comes. At most 200,000 notifications are counted; if more wait,
    `complete` is false.
    """
    return await call.tenant_api.waiting_histogram(
        timedelta(milliseconds=query.step_ms), timedelta(milliseconds=query.span_ms)
    )


@routes.get("/alerts", scope=Scope.ADMIN)
async def list_open_alerts(call: ApiCall) -> ItemList[OpenAlert]:
    """List the alerts whose cause still exists, newest first. They are about all tenants."""
    return ItemList(await call.service.engine.open_alerts())


@routes.get("/system", scope=_READ)
async def get_system(call: ApiCall) -> SystemStatus:
    """Retrieve the workers, sinks, bridges and timers of all processes, with what waits for each.

    A process reports its bridges and timers every ten seconds.
    """
    return await call.service.engine.system()


@routes.post("/sinks/{name}/retry", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def retry_sink_events(call: ApiCall, name: SinkName) -> SinkRetryResponse:
    """Publish the parked events of a sink again. The sink refused them before, so fix the sink first."""
    find_sink(await call.service.engine.sinks(), name)
    await call.note("sink.retry", name)
    return SinkRetryResponse(name=name, released_events=await call.service.engine.release_sink_events(name))


@routes.get("/queue/counts", scope=_READ)
async def get_queue_counts(call: ApiCall) -> dict[str, int]:
    """Count notifications by status."""
    return await call.tenant_api.queue_counts()


@routes.get("/queue/pending", scope=_READ)
async def list_pending(call: ApiCall, query: PendingQuery) -> ItemList[Notification]:
    """List notifications that are due now, according to their policies or to the given settings."""
    found = await call.tenant_api.select_pending(
        query.limit, query.max_attempts, to_timedelta(query.delay_ms)
    )
    return ItemList(found)


@routes.get("/queue/waiting", scope=_READ)
async def list_waiting(call: ApiCall, query: WaitingQuery) -> ItemList[Notification]:
    """List notifications that wait for a retry, soonest first or by their last attempt.

    `nextRetryAt` is the time of the next attempt.
    """
    delay = to_timedelta(query.delay_ms)
    return ItemList(await call.tenant_api.waiting(delay, limit=query.limit, by=query.by))


@routes.get("/queue/statistics", scope=_READ)
async def get_retry_statistics(call: ApiCall) -> ItemList[AttemptStatistics]:
    """Count waiting notifications and dead letters by the number of attempts."""
    return ItemList(await call.tenant_api.retry_statistics())


@routes.get("/queue/success-by-attempt", scope=_READ)
async def get_success_by_attempt(call: ApiCall) -> ItemList[AttemptSuccess]:
    """Calculate the success rate by number of attempts, including purged notifications."""
    return ItemList(await call.tenant_api.success_by_attempt())


@routes.get("/queue/health", scope=_READ)
async def get_queue_health(call: ApiCall) -> QueueHealth:
    """Retrieve thirteen metrics about the health of retries, and compare the thresholds."""
    health = await call.tenant_api.health()
    named = (replace(check, metric=to_camel_case(check.metric)) for check in health.thresholds)
    return replace(health, thresholds=tuple(named))


@routes.get("/queue/errors", scope=_READ)
async def list_error_groups(call: ApiCall, query: ErrorsQuery) -> ItemList[ErrorGroup]:
    """Group dead letters, or what waits for a retry, by error, largest group first."""
    return ItemList(await call.tenant_api.error_groups(query.limit, status=query.status))


@routes.get("/queue/roll-ups", scope=_READ)
async def list_roll_ups(call: ApiCall, query: RollUpsQuery) -> ItemList[RollUp]:
    """List hourly totals by channel and provider. They include purged notifications."""
    return ItemList(await call.tenant_api.roll_ups(timedelta(milliseconds=query.since_ms)))


@routes.get("/queue/delay", scope=_READ)
async def calculate_delay(call: ApiCall, query: DelayQuery) -> RetryDelay:
    """Calculate the delay after a failed attempt, and whether another attempt follows."""
    tenant_api = call.tenant_api
    await tenant_api.policies.refresh()
    keys = MatchKeys(tenant_api.tenant, query.type, query.origin, query.channel, priority_of(query.priority))
    delay = tenant_api.calculate_delay(
        query.attempt, to_timedelta(query.delay_ms), keys=keys, jitter=query.jitter
    )
    ms = delay // timedelta(milliseconds=1)
    return RetryDelay(
        attempt=query.attempt,
        delay_ms=ms,
        delay_minutes=ms / 60_000,
        should_retry=tenant_api.should_retry(query.attempt, keys=keys),
    )
