"""Routes for notifications: send, list, read, explain, cancel, reschedule and resolve."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from homing.api.http.bodies import ApiError, ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.content.locales import MAX_HEADER_CHARACTERS
from homing.core.notifications import Notification, Page, Status
from homing.core.request_decoding import explain_error
from homing.core.retry.policy_views import ExplanationView
from homing.core.search import BatchView
from homing.core.send_request import SendRequest
from homing.core.statistics import RetryInfo
from homing.engine.intake.accept import SendResult
from homing.engine.operations.explain import explanation_view
from homing.wire.common import ItemList
from homing.wire.notifications import (
    AttemptHistory,
    CancelBody,
    CancelResponse,
    NotificationQuery,
    RescheduleBody,
    ResolveBody,
    RetryInfoQuery,
    SendResponse,
)

routes = Routes("Notifications")


IdempotencyKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        pattern="^[ -~]+$",
        description="Repeating a request with the same key and body accepts nothing new and returns the "
        "same ids. The same key with a different body returns 409.",
    ),
]

AcceptLanguage = Annotated[
    str,
    Meta(
        max_length=MAX_HEADER_CHARACTERS,
        pattern="^[ -~]*$",
        description="Preferred languages of recipients without a locale. "
        "Ignored if the body has `acceptLanguage`.",
    ),
]

_MAY_READ = (Scope.READ, Scope.SEND, Scope.OPERATE)

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


@routes.post(
    "/notifications/send",
    scope=Scope.SEND,
    status=202,
    answers={200: SendResponse},
    errors=(
        "IDEMPOTENCY_CONFLICT",
        "TEMPLATE_NOT_FOUND",
        "TEMPLATE_FAILED",
        "DELIVERY_FAILED",
        "DELIVERY_SKIPPED",
        "DELIVERY_TIMEOUT",
    ),
    headers={"Idempotency-Key": IdempotencyKey, "Accept-Language": AcceptLanguage},
    examples=_EXAMPLES,
)
async def send_notification(call: ApiCall, body: SendRequest) -> ApiResponse[SendResponse]:
    """Send a notification.

    A response of 202 means that the notification is on disk and will be attempted until it is sent or its
    policy ends it. A synchronous notification is sent before the response, which is 200, 502 or 504. It is
    never retried.
    """
    if "idempotency-key" in call.headers or "accept-language" in call.headers:
        key = read_header(call, "Idempotency-Key", IdempotencyKey)
        body = merge_headers(body, key, read_header(call, "Accept-Language", AcceptLanguage))
    result = await call.tenant_api.submit(body)
    return ApiResponse(build_send_response(result), 202 if result.status == "queued" else 200)


@routes.get("/notifications", scope=Scope.READ)
async def list_notifications(call: ApiCall, query: NotificationQuery) -> Page:
    """List notifications, newest first, or search for them with `q`.

    Pass the response's `cursor` to get the next page. The last page has no cursor. A search compares a
    limited number of notifications per request: if `complete` is false, older ones were not compared yet, and
    the next page continues with them.
    """
    chosen = query.filter(dict.fromkeys((*query.status, *query.statuses)), query.acknowledged)
    if query.q.strip():
        found = await call.tenant_api.find(query.q, chosen, limit=query.limit, cursor=query.cursor)
        return Page(items=found.items, cursor=found.cursor, complete=found.complete)
    return await call.tenant_api.list(chosen, limit=query.limit, cursor=query.cursor)


@routes.get("/batches", scope=Scope.READ)
async def list_batches(call: ApiCall) -> ItemList[BatchView]:
    """List the batches of the newest 1,000 notifications, newest first, with counts by status."""
    return ItemList(await call.tenant_api.batches())


@routes.get("/batches/{id}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_batch(call: ApiCall, id: str) -> BatchView:
    """Retrieve a batch: its notifications counted by status and channel, at most 5,000 of them."""
    return await call.tenant_api.batch(id)


@routes.get("/notifications/{id}", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_notification(call: ApiCall, id: str) -> Notification:
    """Retrieve a notification."""
    return await call.tenant_api.get(id)


@routes.get("/notifications/{id}/attempts", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_attempts(call: ApiCall, id: str) -> AttemptHistory:
    """Retrieve a notification's history: its attempts and all other changes."""
    history = await call.tenant_api.history(id)
    return AttemptHistory(notification_id=id, attempts=history.attempts, causes=history.causes)


@routes.get("/notifications/{id}/explain", scope=_MAY_READ, errors=("NOT_FOUND",))
async def explain_notification(call: ApiCall, id: str) -> ExplanationView:
    """Explain a notification: what has happened, which policy applies and why, and what comes next."""
    return explanation_view(await call.tenant_api.explain(id))


@routes.get("/notifications/{id}/retry-info", scope=_MAY_READ, errors=("NOT_FOUND",))
async def get_retry_info(call: ApiCall, id: str, query: RetryInfoQuery) -> RetryInfo:
    """Retrieve a notification's retry state, computed with its policy or with the given settings."""
    return await call.tenant_api.retry_info(id, query.max_attempts, to_timedelta(query.delay_ms))


@routes.post(
    "/notifications/{id}/cancel",
    scope=(Scope.SEND, Scope.OPERATE),
    errors=("NOT_FOUND", "COMMAND_REFUSED"),
    body_optional=True,
)
async def cancel_notification(call: ApiCall, id: str, body: CancelBody) -> CancelResponse:
    """Cancel a notification that has not been sent.

    If an attempt is in progress, the response has `requested: true`. That attempt may still send the
    notification, but no further attempt will follow.
    """
    await call.tenant_api.get(id)
    await call.note("notification.cancel", id)
    done = await call.tenant_api.cancel(id, who=call.caller.who, why=body.why)
    return CancelResponse(notification_id=id, cancelled=done, requested=not done)


@routes.post("/notifications/{id}/reschedule", scope=Scope.OPERATE, errors=("NOT_FOUND", "COMMAND_REFUSED"))
async def reschedule_notification(call: ApiCall, id: str, body: RescheduleBody) -> Notification:
    """Reschedule a waiting notification."""
    await call.tenant_api.get(id)
    await call.note("notification.reschedule", id, delayMs=body.delay_ms)
    delay = timedelta(milliseconds=body.delay_ms)
    await call.tenant_api.reschedule(id, delay, who=call.caller.who, why=body.why)
    return await call.tenant_api.get(id)


@routes.post("/notifications/{id}/resolve", scope=Scope.OPERATE, errors=("NOT_FOUND", "COMMAND_REFUSED"))
async def resolve_notification(call: ApiCall, id: str, body: ResolveBody) -> Notification:
    """Resolve a notification whose outcome is unknown, by setting its final status."""
    await call.tenant_api.get(id)
    await call.note("notification.resolve", id, status=body.status)
    await call.tenant_api.resolve(id, Status(body.status), who=call.caller.who, why=body.why)
    return await call.tenant_api.get(id)


def read_header(call: ApiCall, name: str, kind: Any) -> str | None:
    """Returns a request header, or None if it is missing. Raises `ApiError` if it does not match `kind`."""
    given = call.headers.get(name.lower())
    if given is None:
        return None
    try:
        return str(msgspec.convert(given, kind))
    except msgspec.ValidationError as error:
        _, problem = explain_error(error, ())
        raise ApiError("MALFORMED_REQUEST", f"{name}: {problem}", field=name) from None


def merge_headers(request: SendRequest, key: str | None, language: str | None) -> SendRequest:
    """Adds a key and languages from the headers to a request. Raises `ApiError` if its own key differs."""
    if key is not None and request.idempotency_key not in (None, key):
        raise ApiError(
            "INVALID_REQUEST",
            "idempotencyKey: differs from the Idempotency-Key header; send only one of them",
            field="idempotencyKey",
        )
    return replace(
        request,
        idempotency_key=request.idempotency_key if key is None else key,
        accept_language=language if request.accept_language is None else request.accept_language,
    )


def to_timedelta(delay_ms: int | None) -> timedelta | None:
    """Converts milliseconds to a timedelta. None stays None."""
    return None if delay_ms is None else timedelta(milliseconds=delay_ms)


def build_send_response(result: SendResult) -> SendResponse:
    """Returns the response body for the engine's result."""
    ids = result.notification_ids
    return SendResponse(
        notification_id=ids[0] if len(ids) == 1 else None,
        notification_ids=ids,
        batch_id=result.batch_id,
        status=result.status,
        queue_name=result.queue_name or None,
        duplicate=result.duplicate,
        provider_message_id=result.provider_message_id,
        provider=result.provider,
        sent_at=result.sent_at,
        delivered_at=result.delivered_at,
    )
