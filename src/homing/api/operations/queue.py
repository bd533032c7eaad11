"""Routes for the queue: its state, its statistics and retry delays. None of them changes anything.

Some routes accept hypothetical retry settings in the query and compute with these instead of the policy.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.api.http.bodies import ItemList
from homing.api.http.routing import Routes
from homing.api.intake.notifications import DelayMs, to_timedelta
from homing.api.operations.filters import Limit, Text
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.notifications import Channel, Notification, Priority
from homing.core.retry.policy import MatchKeys
from homing.core.statistics import AttemptStatistics, AttemptSuccess, ErrorGroup, HealthMetrics, RollUp

routes = Routes("Queue")


_READ = Scope.READ

_HOUR_MS = 3_600_000


class PendingQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Hypothetical retry settings to compute with. Nothing is changed."""

    limit: Limit = 50
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Maximum number of attempts. If omitted, that of each notification's policy is used."""
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the delays of each notification's policy are used.
    """


class WaitingQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Hypothetical retry delay to compute with. Nothing is changed."""

    limit: Limit = 50
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the delays of each notification's policy are used.
    """


class ErrorsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Limits the number of groups that are returned."""

    limit: Limit = 50


class RollUpsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Time range of the hourly totals."""

    since_ms: Annotated[int, Meta(ge=0, le=366 * 24 * _HOUR_MS)] = 24 * _HOUR_MS
    """Length of the time range that ends now, in milliseconds."""


class DelayQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """An attempt and its retry settings: a base delay, or the properties that select a policy."""

    attempt: Annotated[int, Meta(ge=0, le=1000, examples=[2])]
    """Number of the failed attempt, counted from 1. For 0, the delay is 0."""
    delay_ms: DelayMs | None = None
    """Delay after the first attempt, in milliseconds. It doubles with each further attempt.

    If omitted, the policy that matches the other fields is used.
    """
    type: Text = "message"
    """Type of the notification."""
    origin: Annotated[str, Meta(max_length=100)] = ""
    """Origin of the notification."""
    channel: Channel = Channel.EMAIL
    """Channel of the notification."""
    priority: Priority = Priority.MEDIUM
    """Priority of the notification."""


class RetryDelay(Struct, frozen=True, kw_only=True, rename="camel"):
    """Delay after an attempt, before jitter."""

    attempt: int
    """Number of the failed attempt."""
    delay_ms: int
    """Delay in milliseconds."""
    delay_minutes: float
    """The same delay in minutes."""


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
    """List notifications that wait for a retry, soonest first.

    `nextRetryAt` is the time of the next attempt.
    """
    tenant_api, delay = call.tenant_api, to_timedelta(query.delay_ms)
    found = await tenant_api.waiting(delay, limit=query.limit)
    if delay is None:
        return ItemList(found)
    return ItemList(tuple(replace(n, next_retry_at=tenant_api.next_retry_time(n, delay)) for n in found))


@routes.get("/queue/statistics", scope=_READ)
async def get_retry_statistics(call: ApiCall) -> ItemList[AttemptStatistics]:
    """Count notifications by the number of attempts."""
    return ItemList(await call.tenant_api.retry_statistics())


@routes.get("/queue/success-by-attempt", scope=_READ)
async def get_success_by_attempt(call: ApiCall) -> ItemList[AttemptSuccess]:
    """Calculate the success rate by number of attempts, including purged notifications."""
    return ItemList(await call.tenant_api.success_by_attempt())


@routes.get("/queue/health", scope=_READ)
async def get_queue_health(call: ApiCall) -> HealthMetrics:
    """Retrieve thirteen metrics about the health of retries."""
    return await call.tenant_api.health_metrics()


@routes.get("/queue/errors", scope=_READ)
async def list_error_groups(call: ApiCall, query: ErrorsQuery) -> ItemList[ErrorGroup]:
    """Group dead letters by error, largest group first."""
    return ItemList(await call.tenant_api.error_groups(query.limit))


@routes.get("/queue/roll-ups", scope=_READ)
async def list_roll_ups(call: ApiCall, query: RollUpsQuery) -> ItemList[RollUp]:
    """List hourly totals by channel and provider. They include purged notifications."""
    return ItemList(await call.tenant_api.roll_ups(timedelta(milliseconds=query.since_ms)))


@routes.get("/queue/delay", scope=_READ)
async def calculate_delay(call: ApiCall, query: DelayQuery) -> RetryDelay:
    """Calculate the delay after a failed attempt, before jitter."""
    tenant_api = call.tenant_api
    await tenant_api.policies.refresh()
    keys = MatchKeys(tenant_api.tenant, query.type, query.origin, query.channel, query.priority)
    delay = tenant_api.calculate_delay(query.attempt, to_timedelta(query.delay_ms), keys=keys)
    ms = delay // timedelta(milliseconds=1)
    return RetryDelay(attempt=query.attempt, delay_ms=ms, delay_minutes=ms / 60_000)
