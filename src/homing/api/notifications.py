"""Sending, and what became of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.api.answers import Answer, ApiError
from homing.api.filters import Chosen, Cursor, Limit
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.locale import MOST_CHARACTERS
from homing.core.model import Attempt, Cause, Notification, Page, Status
from homing.core.request import SendRequest
from homing.core.retry_numbers import RetryInfo
from homing.engine.explaining import ExplanationView, explanation_view
from homing.engine.sending import SendResult

routes = Routes("Notifications")

IdempotencyKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        pattern="^[ -~]+$",
        description="The same key with the same body gets the same answer; with another, 409.",
    ),
]
AcceptLanguage = Annotated[
    str,
    Meta(
        max_length=MOST_CHARACTERS,
        pattern="^[ -~]*$",
        description="For a recipient without a locale, where the body has no acceptLanguage.",
    ),
]
_ANY = (Scope.READ, Scope.SEND, Scope.OPERATE)
_EXAMPLES = (
    {
        "recipient": {"email": "ada@example.org"},
        "channel": "email",
        "type": "order_confirmed",
        "content": {"subject": "Your order", "body": "It is on its way."},
    },
    {
        "recipient": {"id": "user-789"},
        "channel": "push",
        "templateKey": "driver_assigned",
        "data": {"driver": "Grace"},
        "priority": "high",
        "synchronous": True,
    },
)

DelayMs = Annotated[int, Meta(ge=0, le=100 * 365 * 86_400_000, examples=[300_000])]
Why = Annotated[str, Meta(max_length=1000, pattern="^[^\\x00]*$", examples=["asked by the customer"])]


class Sent(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of a request. One for several recipients or channels has several notifications."""

    notification_id: str | None = None
    """Where there is exactly one."""
    notification_ids: tuple[str, ...]
    batch_id: str
    status: Annotated[str, Meta(examples=["queued", "delivered"])]
    """`queued`, or what a synchronous send ended in: `sent`, `delivered`; `purged` where it is long ago."""
    queue_name: Annotated[str | None, Meta(examples=["homing-standard"])] = None
    duplicate: bool = False
    """Accepted before: by its idempotency key, or all of it inside a dedup window."""
    provider_message_id: str | None = None
    delivered_at: datetime | None = None


class NotificationQuery(Chosen, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which notifications: every field that is given must match."""

    statuses: tuple[Status, ...] = ()
    acknowledged: bool | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class RetryInfoQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Other settings to compute with; they change nothing."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    delay_ms: DelayMs | None = None
    """The base delay, doubling with each attempt."""


class Attempts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that happened to one notification."""

    notification_id: str
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]
    """What changed it besides attempts: commands, receipts, the guard."""


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Why it is called off."""

    why: Why = ""


class Cancelled(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of a cancel."""

    notification_id: str
    cancelled: bool
    requested: bool
    """An attempt is under way; there will be no further one."""


class RescheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """When to try next."""

    delay_ms: DelayMs
    """From now."""
    why: Why = ""


class ResolveBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What became of one in doubt."""

    status: Literal["sent", "failed"]
    why: Why = ""


@routes.post(
    "/notifications/send",
    scope=Scope.SEND,
    status=202,
    answers={200: Sent},
    errors=(
        "IDEMPOTENCY_CONFLICT",
        "TEMPLATE_NOT_FOUND",
        "TEMPLATE_FAILED",
        "DELIVERY_FAILED",
        "DELIVERY_TIMEOUT",
    ),
    headers={"Idempotency-Key": IdempotencyKey, "Accept-Language": AcceptLanguage},
    examples=_EXAMPLES,
)
async def send_notification(call: Call, body: SendRequest) -> Answer[Sent]:
    """Accept a notification.

    202 means that it is on disk and will be tried until it lands. A synchronous one is sent before this
    answers: 200, 502 or 504, and it is never sent later.
    """
    if "idempotency-key" in call.headers or "accept-language" in call.headers:
        key = header(call, "Idempotency-Key", IdempotencyKey)
        body = with_headers(body, key, header(call, "Accept-Language", AcceptLanguage))
    result = await call.front.submit(body)
    return Answer(sent(result), 202 if result.status == "queued" else 200)


@routes.get("/notifications", scope=Scope.READ)
async def list_notifications(call: Call, query: NotificationQuery) -> Page:
    """Notifications, newest first.

    The answer's `cursor` asks for what follows; none is the end.
    """
    chosen = query.filter(query.statuses, query.acknowledged)
    return await call.front.list(chosen, limit=query.limit, cursor=query.cursor)


@routes.get("/notifications/{id}", scope=_ANY, errors=("NOT_FOUND",))
async def get_notification(call: Call, id: str) -> Notification:
    """One notification, as it is now."""
    return await call.front.get(id)


@routes.get("/notifications/{id}/attempts", scope=_ANY, errors=("NOT_FOUND",))
async def get_attempts(call: Call, id: str) -> Attempts:
    """Every attempt, and everything else that changed it."""
    history = await call.front.history(id)
    return Attempts(notification_id=id, attempts=history.attempts, causes=history.causes)


@routes.get("/notifications/{id}/explain", scope=_ANY, errors=("NOT_FOUND",))
async def explain_notification(call: Call, id: str) -> ExplanationView:
    """What happened, by which policy and why that one, and what comes next."""
    return explanation_view(await call.front.explain(id))


@routes.get("/notifications/{id}/retry-info", scope=_ANY, errors=("NOT_FOUND",))
async def get_retry_info(call: Call, id: str, query: RetryInfoQuery) -> RetryInfo:
    """Where it stands in its retries, by its policy or by the settings given."""
    return await call.front.retry_info(id, query.max_attempts, delay_of(query.delay_ms))


@routes.post(
    "/notifications/{id}/cancel",
    scope=(Scope.SEND, Scope.OPERATE),
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
    body_optional=True,
)
async def cancel_notification(call: Call, id: str, body: CancelBody) -> Cancelled:
    """Cancel one that has not been sent.

    `requested`: an attempt is under way; it may still be sent by that one, and there will be no further one.
    """
    await call.note("notification.cancel", id)
    done = await call.front.cancel(id, who=call.caller.who, why=body.why)
    return Cancelled(notification_id=id, cancelled=done, requested=not done)


@routes.post("/notifications/{id}/reschedule", scope=Scope.OPERATE, errors=("NOT_FOUND", "COMMAND_REFUSED"))
async def reschedule_notification(call: Call, id: str, body: RescheduleBody) -> Notification:
    """Have one that waits tried later, or sooner."""
    await call.note("notification.reschedule", id, delayMs=body.delay_ms)
    delay = timedelta(milliseconds=body.delay_ms)
    await call.front.reschedule(id, delay, who=call.caller.who, why=body.why)
    return await call.front.get(id)


@routes.post("/notifications/{id}/resolve", scope=Scope.OPERATE, errors=("NOT_FOUND", "COMMAND_REFUSED"))
async def resolve_notification(call: Call, id: str, body: ResolveBody) -> Notification:
    """Say what became of one in doubt."""
    await call.note("notification.resolve", id, status=body.status)
    await call.front.resolve(id, Status(body.status), who=call.caller.who, why=body.why)
    return await call.front.get(id)


def header(call: Call, name: str, kind: Any) -> str | None:
    """A header of the request, where there is one; it must be as it is described."""
    given = call.headers.get(name.lower())
    if given is None:
        return None
    try:
        return str(msgspec.convert(given, kind))
    except msgspec.ValidationError as error:
        raise ApiError("MALFORMED_REQUEST", f"{name}: {error}", field=name) from None


def with_headers(request: SendRequest, key: str | None, language: str | None) -> SendRequest:
    """What the headers add; a key in both places must be the same."""
    if key is not None and request.idempotency_key not in (None, key):
        raise ApiError(
            "INVALID_REQUEST",
            "idempotencyKey: differs from the header Idempotency-Key; give one of them",
            field="idempotencyKey",
        )
    return replace(
        request,
        idempotency_key=request.idempotency_key if key is None else key,
        accept_language=language if request.accept_language is None else request.accept_language,
    )


def delay_of(delay_ms: int | None) -> timedelta | None:
    return None if delay_ms is None else timedelta(milliseconds=delay_ms)


def sent(result: SendResult) -> Sent:
    """The engine's answer as the wire has it."""
    ids = result.notification_ids
    return Sent(
        notification_id=ids[0] if len(ids) == 1 else None,
        notification_ids=ids,
        batch_id=result.batch_id,
        status=result.status,
        queue_name=result.queue_name or None,
        duplicate=result.duplicate,
        provider_message_id=result.provider_message_id,
        delivered_at=result.delivered_at,
    )
