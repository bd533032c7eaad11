"""Routes for the providers' callbacks. They need no API key, because each callback carries a signature.

Some providers have a path of their own. All others use `/webhooks/ID`, where ID is the provider's id in
the settings. The names of the functions are operation ids of the REST API, so they stay as they are.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from homing.api.http.bodies import ApiError, ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.errors import InvalidRequest
from homing.core.lifecycle.receipts import Callback

routes = Routes("Provider callbacks")


ProviderId = Annotated[str, Meta(min_length=1, max_length=100, examples=["twilio"])]


_MAX_BYTES = 8 * 1024 * 1024

_ERRORS = ("UNREADABLE_CALLBACK", "INVALID_SIGNATURE", "NOT_FOUND", "PAYLOAD_TOO_LARGE", "REQUEST_TIMEOUT")

_OPTIONS: dict[str, Any] = {
    "raw": True,
    "max_bytes": _MAX_BYTES,
    "status": 204,
    "answers": {200: bytes},
    "errors": _ERRORS,
}


@routes.post("/webhooks/twilio/sms-status", **_OPTIONS)
async def hear_twilio(call: ApiCall) -> ApiResponse[None]:
    """Receive a status callback from Twilio, signed with `X-Twilio-Signature`."""
    return await _receive(call, "twilio")


@routes.post("/webhooks/sendgrid/events", **_OPTIONS)
async def hear_sendgrid(call: ApiCall) -> ApiResponse[None]:
    """Receive events from SendGrid's Event Webhook, signed with ECDSA."""
    return await _receive(call, "sendgrid")


@routes.post("/webhooks/fcm/delivery-status", **_OPTIONS)
async def hear_fcm(call: ApiCall) -> ApiResponse[None]:
    """Receive an app's report about an FCM message, signed as in Standard Webhooks.

    The body is `{messageId, event: delivered|failed, error?, deviceToken?, timestamp}`.
    """
    return await _receive(call, "fcm")


@routes.post("/webhooks/acs/events", **_OPTIONS)
async def hear_acs(call: ApiCall) -> ApiResponse[None]:
    """Receive email reports of Azure Communication Services from Event Grid.

    Accepts both the Event Grid schema and the CloudEvents schema, and answers the subscription handshake.
    """
    return await _receive(call, "acs")


@routes.options("/webhooks/acs/events", **_OPTIONS)
async def greet_acs(call: ApiCall) -> ApiResponse[None]:
    """Answer the CloudEvents handshake, by which Event Grid asks for permission to send events."""
    return await _receive(call, "acs")


@routes.post("/webhooks/sns/notifications", **_OPTIONS)
async def hear_sns(call: ApiCall) -> ApiResponse[None]:
    """Receive a message from an AWS SNS topic, signed with an AWS certificate.

    Subscriptions are confirmed automatically.
    """
    return await _receive(call, "sns")


@routes.post("/webhooks/{provider}", **_OPTIONS)
async def hear_provider(call: ApiCall, provider: ProviderId) -> ApiResponse[None]:
    """Receive a callback from any other provider, identified by the id in the path."""
    return await _receive(call, provider)


@routes.options("/webhooks/{provider}", **_OPTIONS)
async def greet_provider(call: ApiCall, provider: ProviderId) -> ApiResponse[None]:
    """Answer the handshake of a provider that asks for permission to send callbacks."""
    return await _receive(call, provider)


async def _receive(call: ApiCall, provider: str) -> ApiResponse[Any]:
    """Passes a callback to the engine.

    Responds with 2xx only after its receipts are stored. After any other response, the provider repeats it.
    """
    raw = Callback(url=call.url, headers=call.headers, body=call.raw, method=call.method)
    try:
        result = await call.service.engine.handle_callback(provider, raw)
    except InvalidRequest:  # the response must not reveal which providers are configured
        raise ApiError("NOT_FOUND", "no provider with this id accepts callbacks") from None
    if not result.reply:
        return ApiResponse(None, 204 if not result.reply_headers else 200, result.reply_headers)
    return ApiResponse(result.reply, 200, result.reply_headers, result.reply_type)
