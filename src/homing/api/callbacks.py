"""What providers report: open addresses, each believed only where the provider's signature is on it.

The addresses of source 002 have names of their own; any other provider in the roster has `/webhooks/ID`.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from homing.api.answers import Answer, ApiError
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.callbacks import Callback
from homing.core.errors import InvalidRequest

routes = Routes("Provider callbacks")

ProviderId = Annotated[str, Meta(min_length=1, max_length=100, examples=["twilio"])]

_MOST_BYTES = 8 * 1024 * 1024
_ERRORS = ("UNREADABLE_CALLBACK", "INVALID_SIGNATURE", "NOT_FOUND", "PAYLOAD_TOO_LARGE", "REQUEST_TIMEOUT")
_OPTIONS: dict[str, Any] = {
    "raw": True,
    "most_bytes": _MOST_BYTES,
    "status": 204,
    "answers": {200: bytes},
    "errors": _ERRORS,
}


@routes.post("/webhooks/twilio/sms-status", **_OPTIONS)
async def hear_twilio(call: Call) -> Answer[None]:
    """Twilio's status callbacks, signed with `X-Twilio-Signature`."""
    return await _heard(call, "twilio")


@routes.post("/webhooks/sendgrid/events", **_OPTIONS)
async def hear_sendgrid(call: Call) -> Answer[None]:
    """SendGrid's Event Webhook, signed by ECDSA."""
    return await _heard(call, "sendgrid")


@routes.post("/webhooks/fcm/delivery-status", **_OPTIONS)
async def hear_fcm(call: Call) -> Answer[None]:
    """What apps report of FCM messages, signed as Standard Webhooks.

    The body is `{messageId, event: delivered|failed, error?, deviceToken?, timestamp}`.
    """
    return await _heard(call, "fcm")


@routes.post("/webhooks/acs/events", **_OPTIONS)
async def hear_acs(call: Call) -> Answer[None]:
    """Event Grid's reports on mails of Azure Communication Services, in either schema; also its handshake."""
    return await _heard(call, "acs")


@routes.options("/webhooks/acs/events", **_OPTIONS)
async def greet_acs(call: Call) -> Answer[None]:
    """The handshake of CloudEvents, with which Event Grid asks whether it may send."""
    return await _heard(call, "acs")


@routes.post("/webhooks/sns/notifications", **_OPTIONS)
async def hear_sns(call: Call) -> Answer[None]:
    """What the topics of AWS SNS post, signed by its certificate; a subscription is confirmed by itself."""
    return await _heard(call, "sns")


@routes.post("/webhooks/{provider}", **_OPTIONS)
async def hear_provider(call: Call, provider: ProviderId) -> Answer[None]:
    """The callbacks of any other provider, by its id."""
    return await _heard(call, provider)


@routes.options("/webhooks/{provider}", **_OPTIONS)
async def greet_provider(call: Call, provider: ProviderId) -> Answer[None]:
    """The handshake of a provider that asks before it sends."""
    return await _heard(call, provider)


async def _heard(call: Call, provider: str) -> Answer[Any]:
    """An answer of 2xx means that it is in the store: a provider that gets anything else repeats it."""
    raw = Callback(url=call.url, headers=call.headers, body=call.raw, method=call.method)
    try:
        result = await call.service.engine.hear(provider, raw)
    except InvalidRequest:  # nobody who asks is told which providers there are
        raise ApiError("NOT_FOUND", "no provider of this name calls back here") from None
    if not result.reply:
        return Answer(None, 204 if not result.reply_headers else 200, result.reply_headers)
    return Answer(result.reply, 200, result.reply_headers, result.reply_type)
