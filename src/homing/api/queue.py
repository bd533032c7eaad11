"""The queue operations: reading the queue's state, and retry arithmetic over it.

Given other settings in the query they compute with them and change nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.api.answers import Items
from homing.api.filters import Limit, Text
from homing.api.notifications import DelayMs, delay_of
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.model import Channel, ErrorGroup, Notification, Priority, RollUp
from homing.core.policy import Keys
from homing.core.retry_numbers import AttemptStatistics, AttemptSuccess, HealthMetrics

routes = Routes("Queue")

_READ = Scope.READ
_HOUR_MS = 3_600_000


class PendingQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Other settings to compute with; they change nothing."""

    limit: Limit = 50
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    delay_ms: DelayMs | None = None
    """The base delay, doubling with each attempt."""


class WaitingQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Another base delay to compute with; it changes nothing."""

    limit: Limit = 50
    delay_ms: DelayMs | None = None


class ErrorsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How many groups."""

    limit: Limit = 50


class RollUpsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How far back."""

    since_ms: Annotated[int, Meta(ge=0, le=366 * 24 * _HOUR_MS)] = 24 * _HOUR_MS


class DelayQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """After which attempt, and by a base delay or by the policy of such a notification."""

    attempt: Annotated[int, Meta(ge=0, le=1000, examples=[2])]
    delay_ms: DelayMs | None = None
    """The base delay, doubling with each attempt; without it, the policy that matches the rest."""
    type: Text = "message"
    origin: Annotated[str, Meta(max_length=100)] = ""
    channel: Channel = Channel.EMAIL
    priority: Priority = Priority.MEDIUM


class RetryDelay(Struct, frozen=True, kw_only=True, rename="camel"):
    """How long to wait after an attempt, before jitter."""

    attempt: int
    delay_ms: int
    delay_minutes: float


@routes.get("/queue/counts", scope=_READ)
async def get_queue_counts(call: Call) -> dict[str, int]:
    """How many notifications have each status."""
    return await call.front.queue_counts()


@routes.get("/queue/pending", scope=_READ)
async def list_pending(call: Call, query: PendingQuery) -> Items[Notification]:
    """What is ready to be attempted now, by its policy or by the settings given."""
    found = await call.front.select_pending(query.limit, query.max_attempts, delay_of(query.delay_ms))
    return Items(found)


@routes.get("/queue/waiting", scope=_READ)
async def list_waiting(call: Call, query: WaitingQuery) -> Items[Notification]:
    """What waits for its next attempt after one that failed, soonest first; `nextRetryAt` says until when."""
    front, delay = call.front, delay_of(query.delay_ms)
    found = await front.waiting(delay, limit=query.limit)
    if delay is None:
        return Items(found)
    return Items(tuple(replace(n, next_retry_at=front.next_retry_time(n, delay)) for n in found))


@routes.get("/queue/statistics", scope=_READ)
async def get_retry_statistics(call: Call) -> Items[AttemptStatistics]:
    """Notifications by the number of attempts made."""
    return Items(await call.front.retry_statistics())


@routes.get("/queue/success-by-attempt", scope=_READ)
async def get_success_by_attempt(call: Call) -> Items[AttemptSuccess]:
    """Of those that ended after n attempts, how many were sent. Purged ones count."""
    return Items(await call.front.success_by_attempt())


@routes.get("/queue/health", scope=_READ)
async def get_queue_health(call: Call) -> HealthMetrics:
    """Thirteen numbers that say how retrying goes."""
    return await call.front.health_metrics()


@routes.get("/queue/errors", scope=_READ)
async def list_error_groups(call: Call, query: ErrorsQuery) -> Items[ErrorGroup]:
    """Dead letters by what they died of, most first."""
    return Items(await call.front.error_groups(query.limit))


@routes.get("/queue/roll-ups", scope=_READ)
async def list_roll_ups(call: Call, query: RollUpsQuery) -> Items[RollUp]:
    """Hourly sums by channel and provider. A purge does not touch them."""
    return Items(await call.front.roll_ups(timedelta(milliseconds=query.since_ms)))


@routes.get("/queue/delay", scope=_READ)
async def calculate_delay(call: Call, query: DelayQuery) -> RetryDelay:
    """How long the wait after an attempt is, before jitter."""
    front = call.front
    await front.policies.refresh()
    keys = Keys(front.tenant, query.type, query.origin, query.channel, query.priority)
    delay = front.calculate_delay(query.attempt, delay_of(query.delay_ms), keys=keys)
    ms = delay // timedelta(milliseconds=1)
    return RetryDelay(attempt=query.attempt, delay_ms=ms, delay_minutes=ms / 60_000)
