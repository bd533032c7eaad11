"""Every error code and its status: the one table that answers, OpenAPI and reference come from."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct

from homing.api.answers import Answer, ApiError, ErrorBody, ErrorDetail
from homing.core.errors import HomingError, StoreError

log = logging.getLogger("homing.api")


class Code(Struct, frozen=True):
    """One error code."""

    status: int
    meaning: str


CODES: Mapping[str, Code] = {
    "MALFORMED_REQUEST": Code(400, "The request cannot be read: not JSON, a wrong type, an unknown field."),
    "UNREADABLE_CALLBACK": Code(400, "A provider's callback cannot be read; it is to be sent again."),
    "UNAUTHORIZED": Code(401, "No valid key or token: send Authorization: Bearer …"),
    "INVALID_SIGNATURE": Code(401, "A callback that was not signed by who it claims to be from."),
    "FORBIDDEN": Code(403, "The key is valid and may not do this: it lacks the scope, or the override."),
    "NOT_FOUND": Code(404, "There is no such thing for this tenant, or no such address."),
    "INVALID_LINK": Code(404, "An unsubscribe link that is not complete, or was not made here."),
    "METHOD_NOT_ALLOWED": Code(405, "The address has no such method; Allow says which it has."),
    "REQUEST_TIMEOUT": Code(408, "The request took too long to arrive."),
    "COMMAND_REFUSED": Code(409, "Not possible in the status that it is in."),
    "IDEMPOTENCY_CONFLICT": Code(409, "The idempotency key was used with another request."),
    "VERSION_CONFLICT": Code(409, "Somebody else has changed it meanwhile; read it again."),
    "PAYLOAD_TOO_LARGE": Code(413, "The body is larger than allowed, counted after decompression."),
    "UNSUPPORTED_MEDIA_TYPE": Code(415, "The body's Content-Type or Content-Encoding is not understood."),
    "INVALID_REQUEST": Code(422, "A field is not acceptable; `field` says which. Nothing was changed."),
    "TEMPLATE_NOT_FOUND": Code(422, "No such template in that locale; there is no fallback to another."),
    "TEMPLATE_FAILED": Code(422, "The template does not render with this data."),
    "CONFIG_ERROR": Code(422, "A setting, rule or provider that is not acceptable."),
    "RATE_LIMITED": Code(429, "The key has used up its rate; Retry-After says when to come again."),
    "INTERNAL_ERROR": Code(500, "A defect of Homing; the log has it under the answer's X-Request-Id."),
    "DELIVERY_FAILED": Code(502, "A synchronous send failed. It is not queued."),
    "OVERLOADED": Code(503, "Too much is under way here; Retry-After says when to come again."),
    "TIMEOUT": Code(503, "It took too long and was given up; repeat it with the same Idempotency-Key."),
    "STORE_UNAVAILABLE": Code(503, "The store is away; nothing was changed. Try again."),
    "STORE_BUSY": Code(503, "The store is locked for too long; nothing was changed. Try again."),
    "STORE_FULL": Code(503, "The store's disk is full; nothing was changed."),
    "STORE_READ_ONLY": Code(503, "The store cannot be written; nothing was changed."),
    "STORE_ERROR": Code(503, "The store could not do it; nothing was changed."),
    "SCHEMA_ERROR": Code(503, "This program and the store's schema do not fit."),
    "DELIVERY_TIMEOUT": Code(504, "A synchronous send timed out. It is not queued."),
}

_RETRY_AFTER = {"Retry-After": "1"}


def answer_to(error: Exception, request_id: str = "") -> Answer[ErrorBody]:
    """How an exception is told: the engine's errors and ours by their code, anything else as a defect."""
    if isinstance(error, ApiError):
        return refusal(error.code, error.message, field=error.field, headers=error.headers)
    if isinstance(error, StoreError) and error.code in CODES:
        log.warning("request %s: %s", request_id, error, extra={"request_id": request_id})
        return refusal(error.code, store_problem(error))
    if isinstance(error, HomingError) and error.code in CODES:
        return refusal(
            error.code,
            error.message,
            field=getattr(error, "field", None),
            notification_id=getattr(error, "notification_id", None) or None,
        )
    log.error(
        "request %s failed: %s",
        request_id,
        type(error).__name__,
        exc_info=error,
        extra={"request_id": request_id},
    )
    return refusal("INTERNAL_ERROR", "Something went wrong here; the log has it under this answer's id.")


def store_problem(error: StoreError) -> str:
    """What a caller is told of it: its own words may name hosts, files and users."""
    return CODES.get(error.code, CODES["STORE_ERROR"]).meaning


def refusal(
    code: str,
    message: str,
    *,
    field: str | None = None,
    notification_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer[ErrorBody]:
    """An error in the one shape that all of them have."""
    known = CODES[code]
    detail = ErrorDetail(code=code, message=message, field=field, notification_id=notification_id)
    extra = {**(_RETRY_AFTER if known.status == 503 else {}), **(headers or {})}
    return Answer(ErrorBody(error=detail), known.status, extra)
