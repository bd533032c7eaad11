"""Dead letters of requests that were taken from a sender who gets no answer, but cannot be accepted.

Such a request comes from the SQL inbox or the spool. Its dead letter keeps the text of the request and the
error. When the cause is fixed, an operator can resend it, or send a corrected request instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.lifecycle.claims import NewNotification, Submission
from homing.core.notifications import (
    Channel,
    Content,
    Message,
    Mode,
    Notification,
    Priority,
    Recipient,
    lane_of,
)
from homing.core.request_decoding import read_request
from homing.core.send_request import SendRequest
from homing.engine.delivery.attempts import sanitize_text

MAX_REQUEST_CHARS = 100_000
"""Maximum number of characters of a request to keep in its dead letter, before some are escaped."""

UNREADABLE = "unreadable"
"""Type of a dead letter if the type of its request cannot be read or stored."""

REFUSED_BY_STORE = "the store refused the request; the log of the process says why"
"""Error of a dead letter. The store's own error may name hosts and paths, which tenants must not see."""

_MAX_TYPE_CHARS = 200

_UNUSUAL = re.compile(r"[^\t\n\r\x20-\x7e]")
"""Characters that some stores refuse. In JSON, they can be escaped."""


def dead_request(
    *, id: str, channel: Channel, type: str, request: str, why: str, max_age_ms: int
) -> NewNotification:
    """Returns a dead letter that contains the text of a request and the reason why it was not accepted."""
    usable = type if 0 < len(type) <= _MAX_TYPE_CHARS else UNREADABLE
    return NewNotification(
        id=id,
        channel=channel,
        mode=Mode.STANDARD,
        lane=lane_of(Mode.STANDARD, channel),
        type=usable,
        category=usable,
        priority=Priority.MEDIUM,
        origin="",
        provider="",
        outlet="",
        address="",
        message=Message(
            recipient=Recipient(), content=Content(data={"request": request[:MAX_REQUEST_CHARS]})
        ),
        max_age_ms=max_age_ms,
        last_error=sanitize_text(why),
        refused=True,
    )


def forms_of(dead: Submission) -> Iterator[Submission]:
    """Yields a submission of dead letters, and then one with less that the store may object to.

    The second form has no idempotency key, no type, and ASCII texts only. Other characters are escaped.
    """
    yield dead
    plain = [
        replace(
            one,
            type=UNREADABLE,
            category=UNREADABLE,
            last_error=_escaped(one.last_error or ""),
            message=Message(
                recipient=Recipient(), content=Content(data={"request": _escaped(_text_of(one))})
            ),
        )
        for one in dead.notifications
    ]
    yield replace(dead, idempotency_key=None, notifications=tuple(plain))


def is_dead_request(notification: Notification) -> bool:
    """Returns True for the dead letter of a request that was never accepted."""
    return notification.provider == ""


def request_of(dead: Notification) -> SendRequest | Submission:
    """Returns the request in a dead letter. From the spool, it is the submission of this notification alone.

    Raises `InvalidRequest` if the text is not a request, for example because it was too long to keep.
    """
    try:
        raw = msgspec.json.decode(str((dead.content.data or {}).get("request", "")))
        if isinstance(raw, dict) and "notifications" in raw and "batch_id" in raw:
            whole = msgspec.convert(raw, Submission)
            own = tuple(new for new in whole.notifications if new.id == dead.id)
            return replace(whole, notifications=own)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("request", f"cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise InvalidRequest("request", "is not a JSON object")
    return read_request(raw)


def _text_of(dead: NewNotification) -> str:
    return str((dead.message.content.data or {}).get("request", ""))


def _escaped(text: str) -> str:
    """Returns the text with ASCII characters only. A JSON text keeps its meaning."""
    return _UNUSUAL.sub(lambda found: json.dumps(found[0])[1:-1], text)
