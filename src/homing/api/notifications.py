"""Sending, and what became of it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from homing.api.answers import Answer, ApiError
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.model import Notification
from homing.core.request import SendRequest
from homing.engine.sending import SendResult

routes = Routes("Notifications")

_HEADERS = {
    "Idempotency-Key": "The same key with the same body gets the same answer; with another, 409.",
    "Accept-Language": "For a recipient without a locale, where the body has no acceptLanguage.",
}


class Sent(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of a request. One for several recipients or channels has several notifications."""

    notification_id: str | None = None
    """Where there is exactly one."""
    notification_ids: tuple[str, ...]
    batch_id: str
    status: str
    """`queued`, or the status that a synchronous send ended in."""
    queue_name: str | None = None
    duplicate: bool = False
    provider_message_id: str | None = None
    delivered_at: datetime | None = None


@routes.post(
    "/notifications/send",
    scope=Scope.SEND,
    status=202,
    answers={200: Sent},
    errors=("IDEMPOTENCY_CONFLICT", "TEMPLATE_NOT_FOUND", "DELIVERY_FAILED", "DELIVERY_TIMEOUT"),
    headers=_HEADERS,
)
async def send_notification(call: Call, body: SendRequest) -> Answer[Sent]:
    """Accept a notification.

    202 means that it is on disk and will be tried until it lands. A synchronous one is sent before this
    answers: 200, 502 or 504, and it is never sent later.
    """
    result = await call.front.submit(_with_headers(body, call))
    sent = _sent(result)
    return Answer(sent, 202 if result.status == "queued" else 200)


@routes.get("/notifications/{id}", scope=(Scope.READ, Scope.SEND), errors=("NOT_FOUND",))
async def get_notification(call: Call, id: str) -> Notification:
    """One notification, as it is now."""
    return await call.front.get(id)


def _with_headers(request: SendRequest, call: Call) -> SendRequest:
    """What the headers add; a key in both places must be the same."""
    key = call.headers.get("idempotency-key")
    if key is not None and key != request.idempotency_key:
        if request.idempotency_key is not None:
            raise ApiError(
                "INVALID_REQUEST",
                "idempotencyKey: differs from the header Idempotency-Key; give one of them",
                field="idempotencyKey",
            )
        request = replace(request, idempotency_key=key)
    language = call.headers.get("accept-language")
    if language is not None and request.accept_language is None:
        request = replace(request, accept_language=language)
    return request


def _sent(result: SendResult) -> Sent:
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
