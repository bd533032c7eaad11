"""Routes for administrators: retrying a notification by hand, and purging old records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta

from homing.api.http.bodies import ApiError
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest
from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import History, Notification, Status
from homing.core.ports.stores import Retention
from homing.core.routing.delivery_modes import MODE_INFO
from homing.wire.administration import AdminRetryBody, AdminRetryResponse, PurgeBody, PurgeResponse

routes = Routes("Administration")


_DAY_MS = 86_400_000

_PURGE_LIMIT_S = 20
"""Time limit of one purge request. The caller repeats the request to continue."""


AdminOverride = Annotated[
    Literal["true"], Meta(description="Must be `true`, to confirm that the policy's limits may be exceeded.")
]


@routes.post(
    "/admin/notifications/{id}/retry",
    scope=Scope.ADMIN,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
    headers={"X-Admin-Override": AdminOverride},
)
async def retry_notification(call: ApiCall, id: str, body: AdminRetryBody) -> AdminRetryResponse:
    """Retry a notification now.

    Grants one more attempt if none is left. Synchronous notifications and notifications that were already
    resent cannot be retried.
    """
    if call.headers.get("x-admin-override", "").strip().lower() != "true":
        raise ApiError(
            "FORBIDDEN",
            "X-Admin-Override: is missing; send X-Admin-Override: true to confirm the retry",
            field="X-Admin-Override",
        )
    await call.tenant_api.get(id)
    await call.note("notification.retry", id, why=body.reason, provider=body.force_provider)
    found = await _retry(call, id, body)
    goal = timedelta(milliseconds=MODE_INFO[found.mode].latency_goal_ms)
    begins_at, hold = found.next_retry_at or found.updated_at, await call.tenant_api.find_hold(found)
    if hold is not None and hold.until is not None:
        begins_at = max(begins_at, hold.until)
    return AdminRetryResponse(
        success=True,
        notification_id=id,
        retry_attempt_id=f"{id}:{attempt_after_retry(await call.tenant_api.history(id))}",
        status="queued",
        estimated_delivery_time=begins_at + goal,
    )


@routes.post("/admin/purge", scope=Scope.ADMIN, body_optional=True)
async def purge(call: ApiCall, body: PurgeBody) -> PurgeResponse:
    """Purge old records of all tenants.

    Removes ended notifications, idempotency keys and receipts that have reached the given or configured
    age. If `complete` is false in the response, the time limit of the request was reached; repeat
    the request to continue.
    """
    retention = _retention(body, call.service.engine.settings.upkeep.retention)
    time = asyncio.get_running_loop().time
    ends_at = time() + _PURGE_LIMIT_S
    out_of_time = False

    def is_out_of_time(so_far: Mapping[str, int]) -> bool:
        nonlocal out_of_time
        out_of_time = time() > ends_at
        return out_of_time

    if not body.dry_run:
        await call.note("purge.run", "", days=body.days)
    removed = await call.tenant_api.purge(retention, is_out_of_time, dry_run=body.dry_run)
    return PurgeResponse(removed=removed, dry_run=body.dry_run, complete=not out_of_time)


async def _retry(call: ApiCall, id: str, body: AdminRetryBody) -> Notification:
    try:
        return await call.tenant_api.retry(
            id, who=call.caller.who, why=body.reason, provider=body.force_provider
        )
    except InvalidRequest as error:
        if error.field != "provider":
            raise
        problem = error.message.removeprefix("provider: ")
        raise ApiError("INVALID_REQUEST", f"forceProvider: {problem}", field="forceProvider") from None


def attempt_after_retry(history: History) -> int:
    """Returns the number of the first attempt after the newest retry command.

    That attempt may be in flight or have ended already, because a worker is woken by the command.
    """
    retried_at = max(cause.at for cause in history.causes if cause.name == CommandName.RETRY)
    since = [attempt.number for attempt in history.attempts if attempt.started_at >= retried_at]
    if since:
        return min(since)
    found = history.notification
    return found.attempt_count + (found.status is not Status.SENDING)


def _retention(body: PurgeBody, configured: Retention) -> Retention:
    by_status = (body.delivered_days, body.sent_days, body.others_days, body.keys_days)
    if body.days is not None and any(days is not None for days in by_status):
        raise ApiError("INVALID_REQUEST", "days: set either days or the other ages, not both", field="days")

    def age_ms(days: float | None, configured_ms: int) -> int:
        requested = body.days if days is None else days
        return configured_ms if requested is None else int(requested * _DAY_MS)

    return Retention(
        delivered_ms=age_ms(body.delivered_days, configured.delivered_ms),
        sent_ms=age_ms(body.sent_days, configured.sent_ms),
        others_ms=age_ms(body.others_days, configured.others_ms),
        keys_ms=age_ms(body.keys_days, configured.keys_ms),
        outbox_ms=configured.outbox_ms,
    )
