"""Looks up a message at Twilio, even if its id is not known. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from homing.core.ids import made_at
from homing.core.model import Receipt
from homing.core.ports import Delivery
from homing.providers.reading import as_object, text_of
from homing.providers.twilio_callbacks import StatusReport, reported
from homing.providers.twilio_message import recipient, words

PAGE_SIZE = 20
"""Twenty messages fit into the largest response that is read."""

_MAX_CLOCK_DIFFERENCE = timedelta(minutes=1)
_LATEST_MS = 253_402_300_799_000  # the last second of the year 9999


def receipt_of(answer: dict[str, Any], delivery: Delivery, now_ms: int) -> Receipt | None:
    """Returns the receipt for Twilio's description of a message, or None if it has no usable status."""
    sid, status = text_of(answer.get("sid")), text_of(answer.get("status"))
    if sid is None or status is None:
        return None
    code = answer.get("error_code")
    report = StatusReport(
        sid=sid,
        status=status,
        error_code=str(code) if isinstance(code, (int, str)) and code else None,
        notification_id=delivery.notification_id,
        attempt=delivery.attempt,
    )
    # The first receipt of a status is the one that changes the notification.
    return next(iter(reported(report, now_ms)), None)


def list_query(delivery: Delivery) -> str:
    """Returns the query for all messages to the recipient since the day the notification was created.

    Raises `Unsendable` if the recipient's address is not usable.
    """
    since = _made_at(delivery) - _MAX_CLOCK_DIFFERENCE
    return urlencode(
        {"To": recipient(delivery), "DateSent>": since.date().isoformat(), "PageSize": PAGE_SIZE}
    )


def found_among(answer: dict[str, Any], delivery: Delivery) -> dict[str, Any] | None:
    """Returns the only message with this text that was created since the notification was.

    Returns None if several messages match, or if there are more pages of messages: then it is unclear which
    is ours.
    """
    listed = answer.get("messages")
    if not isinstance(listed, list) or answer.get("next_page_uri") is not None:
        return None
    text, since = words(delivery.content), _made_at(delivery) - _MAX_CLOCK_DIFFERENCE
    same = [one for one in map(as_object, listed) if text and _is_same(one, text, since)]
    return same[0] if len(same) == 1 else None


def _is_same(message: dict[str, Any], text: str, since: datetime) -> bool:
    made = message.get("date_created")
    try:
        made_at = parsedate_to_datetime(made) if isinstance(made, str) else None
    except ValueError:
        made_at = None
    if made_at is None or made_at.tzinfo is None or made_at < since:
        return False
    return message.get("body") == text and str(message.get("direction")).startswith("outbound")


def _made_at(delivery: Delivery) -> datetime:
    made_ms = min(made_at(delivery.notification_id), _LATEST_MS)
    return datetime.fromtimestamp(made_ms / 1000, UTC)
