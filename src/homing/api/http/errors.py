"""Every error code with its HTTP status and meaning, and the error responses for exceptions.

The OpenAPI document and the reference list the same codes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct

from homing.api.http.bodies import ApiError, ApiResponse
from homing.core.errors import HomingError, StoreError
from homing.wire.common import ErrorBody, ErrorDetail

log = logging.getLogger("homing.api")


class ErrorCode(Struct, frozen=True):
    """HTTP status and meaning of an error code."""

    status: int
    meaning: str


ERROR_CODES: Mapping[str, ErrorCode] = {
    "MALFORMED_REQUEST": ErrorCode(
        400, "The request cannot be parsed: it is not JSON, or has a wrong type or an unknown field."
    ),
    "UNREADABLE_CALLBACK": ErrorCode(
        400, "A provider's callback cannot be parsed. The provider should send it again."
    ),
    "UNAUTHORIZED": ErrorCode(
        401, "The API key or token is missing or not valid. Send `Authorization: Bearer KEY`."
    ),
    "INVALID_SIGNATURE": ErrorCode(401, "The callback's signature is missing, wrong or too old."),
    "FORBIDDEN": ErrorCode(
        403, "The API key lacks the required scope, or the request lacks the required override header."
    ),
    "NOT_FOUND": ErrorCode(404, "The resource does not exist for this tenant, or the path does not exist."),
    "INVALID_LINK": ErrorCode(404, "The unsubscribe link is incomplete or was not created by this service."),
    "METHOD_NOT_ALLOWED": ErrorCode(
        405, "The path does not support this method. The `Allow` header lists the supported ones."
    ),
    "REQUEST_TIMEOUT": ErrorCode(408, "The request took too long to arrive."),
    "COMMAND_REFUSED": ErrorCode(409, "The command is not possible in the resource's current status."),
    "IDEMPOTENCY_CONFLICT": ErrorCode(409, "The idempotency key was already used with a different request."),
    "VERSION_CONFLICT": ErrorCode(
        409,
        "The resource already exists or was changed in the meantime. Read it before you try again.",
    ),
    "PAYLOAD_TOO_LARGE": ErrorCode(413, "The body is too large after decompression."),
    "UNSUPPORTED_MEDIA_TYPE": ErrorCode(415, "The body's Content-Type or Content-Encoding is not supported."),
    "INVALID_REQUEST": ErrorCode(422, "The field named in `field` is not valid. Nothing was changed."),
    "TEMPLATE_NOT_FOUND": ErrorCode(
        422, "The template does not exist in this locale. There is no fallback to another locale."
    ),
    "TEMPLATE_FAILED": ErrorCode(422, "The template cannot be rendered with this data."),
    "STORE_REJECTED": ErrorCode(
        422, "The store cannot store this data, for example because a text is too long. Nothing was changed."
    ),
    "CONFIG_ERROR": ErrorCode(422, "A setting, rule or provider is not valid."),
    "RATE_LIMITED": ErrorCode(
        429, "The API key has exceeded its rate limit. Retry after the time in `Retry-After`."
    ),
    "INTERNAL_ERROR": ErrorCode(
        500,
        "An unexpected error in Homing. The log has the details under the response's `X-Request-Id`.",
    ),
    "DELIVERY_SKIPPED": ErrorCode(
        422,
        "The synchronous send was skipped: the recipient is unsubscribed or suppressed, or the device is "
        "inactive. The notification is not queued.",
    ),
    "DELIVERY_FAILED": ErrorCode(502, "The synchronous send failed. The notification is not queued."),
    "OVERLOADED": ErrorCode(
        503, "The service has too many requests in progress. Retry after the time in `Retry-After`."
    ),
    "TIMEOUT": ErrorCode(
        503, "The request took too long and was aborted. Repeat it with the same `Idempotency-Key`."
    ),
    "STORE_UNAVAILABLE": ErrorCode(503, "The store is unavailable. Nothing was changed. Try again."),
    "STORE_BUSY": ErrorCode(503, "The store was locked for too long. Nothing was changed. Try again."),
    "STORE_FULL": ErrorCode(503, "The store's disk is full. Nothing was changed."),
    "STORE_READ_ONLY": ErrorCode(503, "The store is read-only. Nothing was changed."),
    "STORE_ERROR": ErrorCode(503, "The store reported an error. Nothing was changed."),
    "SCHEMA_ERROR": ErrorCode(503, "The store's schema does not match this version of Homing."),
    "DELIVERY_TIMEOUT": ErrorCode(504, "The synchronous send timed out. The notification is not queued."),
}


_RETRY_AFTER = {"Retry-After": "1"}


def error_response_for(error: Exception, request_id: str = "") -> ApiResponse[ErrorBody]:
    """Returns the error response for an exception.

    Unexpected exceptions are logged and become `INTERNAL_ERROR`.
    """
    if isinstance(error, ApiError):
        return build_error_response(error.code, error.message, field=error.field, headers=error.headers)
    if isinstance(error, StoreError) and error.code in ERROR_CODES:
        log.warning("request %s: %s", request_id, error, extra={"request_id": request_id})
        return build_error_response(error.code, describe_store_error(error))
    if isinstance(error, HomingError) and error.code in ERROR_CODES:
        return build_error_response(
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
    return build_error_response(
        "INTERNAL_ERROR",
        "an unexpected error occurred; the log has the details under this response's X-Request-Id",
    )


def describe_store_error(error: StoreError) -> str:
    """Returns the public message of a store error. Its own message may contain hosts, paths or users."""
    return ERROR_CODES.get(error.code, ERROR_CODES["STORE_ERROR"]).meaning


def build_error_response(
    code: str,
    message: str,
    *,
    field: str | None = None,
    notification_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ApiResponse[ErrorBody]:
    """Returns an error response. Responses with status 503 get a Retry-After header."""
    known = ERROR_CODES[code]
    detail = ErrorDetail(code=code, message=message, field=field, notification_id=notification_id)
    extra = {**(_RETRY_AFTER if known.status == 503 else {}), **(headers or {})}
    return ApiResponse(ErrorBody(error=detail), known.status, extra)
