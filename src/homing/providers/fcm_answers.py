"""Classifies FCM's responses by `details[].errorCode`, then `status`, then the HTTP status. Pure."""

from __future__ import annotations

from typing import Any

from homing.core.model import Outcome, OutcomeKind
from homing.providers.answers import error_table
from homing.providers.http import Answer
from homing.providers.reading import as_object, error_text, json_object, text_of
from homing.providers.retry_after import retry_after_ms

BAD_TOKEN = "INVALID_ARGUMENT.token"  # noqa: S105
"""Our code for an INVALID_ARGUMENT that concerns the address and not the message."""

_ADDRESS_FIELDS = ("message.token", "message.fid")


def classify(answer: Answer, now_ms: int) -> Outcome:
    """Returns the outcome of a response. Never raises, whatever the response contains."""
    body = json_object(answer.body)
    if 200 <= answer.status < 300:
        name = text_of(body.get("name"))
        if name is not None:
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=name)
        return error_table("fcm").outcome("unreadable", answer.status, None)
    error = as_object(body.get("error"))
    return error_table("fcm").outcome(
        _code(error),
        answer.status,
        error_text(error.get("message")),
        retry_after_ms=retry_after_ms(answer.headers.get("retry-after"), now_ms),
        other_code=error.get("status") is not None,
    )


def wants_a_new_token(answer: Answer) -> bool:
    """Returns True if FCM rejected our access token, not if Apple or a browser rejected FCM's credentials."""
    return answer.status == 401 and _code(as_object(json_object(answer.body).get("error"))) in (
        None,
        "UNAUTHENTICATED",
    )


def _code(error: dict[str, Any]) -> str | None:
    """Returns the first code that the table lists, or None."""
    known = error_table("fcm").codes
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
