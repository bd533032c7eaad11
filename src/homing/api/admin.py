"""What only an administrator does: one more attempt by hand, and purging."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.api.answers import ApiError
from homing.api.filters import Text
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.errors import InvalidRequest
from homing.core.model import Notification, Retention
from homing.core.modes import MODE_INFO

routes = Routes("Administration")

_DAY_MS = 86_400_000
_PURGE_S = 20
"""A purge that takes longer goes on with the next request: an answer has to come."""

Days = Annotated[float, Meta(ge=0, le=36_500)]
Override = Annotated[
    Literal["true"], Meta(description="Must be `true`: this goes beyond what the policy allows.")
]


class AdminRetryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Why it is tried again, and where."""

    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1000,
            pattern="^[^\\x00]*[^\\x00\\s][^\\x00]*$",
            examples=["Customer support request: the provider was away"],
        ),
    ]
    """Kept with the notification and in the audit trail."""
    force_provider: Annotated[Text, Meta(examples=["AWS_SNS"])] | None = None
    """It goes there and nowhere else."""


class AdminRetried(Struct, frozen=True, kw_only=True, rename="camel"):
    """The attempt is granted and due now."""

    success: bool
    notification_id: str
    retry_attempt_id: Annotated[str, Meta(examples=["018d0c7e-5a00-7000-8000-000000000001:4"])]
    """The notification's id and the number that the attempt will have."""
    status: Literal["queued"]
    estimated_delivery_time: datetime
    """By the latency goal of its mode."""


class PurgeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What is to go: older than `days` whatever its status, or by status; left out: as configured."""

    days: Days | None = None
    delivered_days: Days | None = None
    sent_days: Days | None = None
    others_days: Days | None = None
    keys_days: Days | None = None
    """Of idempotency keys."""
    dry_run: bool = False
    """Only say how many notifications it would be."""


class Purged(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was removed, of all tenants. Statistics keep counting it."""

    removed: Mapping[str, int]
    """By kind: `notifications`, `keys`, `receipts`; with `dryRun`, how many notifications it would be."""
    dry_run: bool
    complete: bool
    """False: there is more, and time was up. Ask again."""


@routes.post(
    "/admin/notifications/{id}/retry",
    scope=Scope.ADMIN,
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
    headers={"X-Admin-Override": Override},
)
async def retry_notification(call: Call, id: str, body: AdminRetryBody) -> AdminRetried:
    """Try one notification again now, with one attempt granted if none is left.

    A synchronous one is never tried again, and one that was resent lives on in its successor.
    """
    if call.headers.get("x-admin-override", "").strip().lower() != "true":
        raise ApiError(
            "FORBIDDEN", "X-Admin-Override: true is missing; say that this is meant", field="X-Admin-Override"
        )
    await call.front.get(id)
    await call.note("notification.retry", id, why=body.reason, provider=body.force_provider)
    found = await _retried(call, id, body)
    goal = timedelta(milliseconds=MODE_INFO[found.mode].latency_goal_ms)
    return AdminRetried(
        success=True,
        notification_id=id,
        retry_attempt_id=f"{id}:{found.attempt_count + 1}",
        status="queued",
        estimated_delivery_time=(found.next_retry_at or found.updated_at) + goal,
    )


@routes.post("/admin/purge", scope=Scope.ADMIN, body_optional=True)
async def purge(call: Call, body: PurgeBody) -> Purged:
    """Remove what has ended and is past its age, of all tenants, in small steps.

    `complete` is false where there is more than could be removed in the time of one request.
    """
    retention = _retention(body, call.service.engine.settings.upkeep.retention)
    time = asyncio.get_running_loop().time
    ends_at = time() + _PURGE_S
    late = False

    def is_late(so_far: Mapping[str, int]) -> bool:
        nonlocal late
        late = time() > ends_at
        return late

    if not body.dry_run:
        await call.note("purge.run", "", days=body.days)
    removed = await call.front.purge(retention, is_late, dry_run=body.dry_run)
    return Purged(removed=removed, dry_run=body.dry_run, complete=not late)


async def _retried(call: Call, id: str, body: AdminRetryBody) -> Notification:
    try:
        return await call.front.retry(id, who=call.caller.who, why=body.reason, provider=body.force_provider)
    except InvalidRequest as error:
        if error.field != "provider":
            raise
        told = error.message.removeprefix("provider: ")
        raise ApiError("INVALID_REQUEST", f"forceProvider: {told}", field="forceProvider") from None


def _retention(body: PurgeBody, usual: Retention) -> Retention:
    by_status = (body.delivered_days, body.sent_days, body.others_days, body.keys_days)
    if body.days is not None and any(days is not None for days in by_status):
        raise ApiError(
            "INVALID_REQUEST", "days: and an age by status are both given; give one of them", field="days"
        )

    def age_ms(days: float | None, otherwise_ms: int) -> int:
        asked = body.days if days is None else days
        return otherwise_ms if asked is None else int(asked * _DAY_MS)

    return Retention(
        delivered_ms=age_ms(body.delivered_days, usual.delivered_ms),
        sent_ms=age_ms(body.sent_days, usual.sent_ms),
        others_ms=age_ms(body.others_days, usual.others_ms),
        keys_ms=age_ms(body.keys_days, usual.keys_ms),
    )
