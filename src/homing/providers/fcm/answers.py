"""Classifies FCM's responses by `details[].errorCode`, then `status`, then the HTTP status. Pure."""

from __future__ import annotations

from typing import Any

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.net.http_messages import HttpResponse
from homing.net.retry_after import parse_retry_after_ms
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.response_parsing import (
    as_object,
    decode_json_object,
    redacted_error_text,
    short_text_or_none,
)

BAD_TOKEN = "INVALID_ARGUMENT.token"  # noqa: S105
"""Our code for an INVALID_ARGUMENT that concerns the address and not the message."""


_ADDRESS_FIELDS = ("message.token", "message.fid")


def classify(answer: HttpResponse, now_ms: int) -> Outcome:
    """Returns the outcome of a response. Never raises, whatever the response contains."""
    body = decode_json_object(answer.body)
    if 200 <= answer.status < 300:
        name = short_text_or_none(body.get("name"))
        if name is not None:
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=name)
        return load_error_table("fcm").outcome("unreadable", answer.status, None)
    error = as_object(body.get("error"))
    return load_error_table("fcm").outcome(
        _code(error),
        answer.status,
        redacted_error_text(error.get("message")),
        retry_after_ms=parse_retry_after_ms(answer.headers.get("retry-after"), now_ms),
        other_code=error.get("status") is not None,
    )


def is_token_rejected(answer: HttpResponse) -> bool:
    """Returns True if FCM rejected our access token, and not the APNs or web push credentials."""
    return answer.status == 401 and _code(as_object(decode_json_object(answer.body).get("error"))) in (
        None,
        "UNAUTHENTICATED",
    )


def _code(error: dict[str, Any]) -> str | None:
    """Returns the first error code that the table lists, or None.

    An `INVALID_ARGUMENT` that concerns the address becomes `BAD_TOKEN`.
    """
    known = load_error_table("fcm").codes
    details = error.get("details")
    entries = [as_object(entry) for entry in details] if isinstance(details, list) else []
    for code in (*(entry.get("errorCode") for entry in entries), error.get("status")):
        if code == "INVALID_ARGUMENT" and _concerns_address(error, entries):
            return BAD_TOKEN
        if isinstance(code, str) and code in known:
            return code
    return None


def _concerns_address(error: dict[str, Any], entries: list[dict[str, Any]]) -> bool:
    found = [entry.get("fieldViolations") for entry in entries]
    violations = [as_object(one) for some in found if isinstance(some, list) for one in some]
    if violations:
        return all(one.get("field") in _ADDRESS_FIELDS for one in violations)
    return "not a valid FCM registration token" in str(error.get("message"))
