"""Reads SNS's delivery-status events, in the format in which SNS writes them to CloudWatch Logs. Pure.

SNS itself does not call back with the result of an SMS or push message. A subscription of the log group
publishes these events to a topic, and the topic posts them to us.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from homing.core.callbacks import Heard
from homing.core.model import Receipt, ReceiptEvent
from homing.providers.answers import error_table
from homing.providers.failures import failed
from homing.providers.reading import as_object, error_text, json_object, json_of, moment_ms, text_of

_MAX_EVENTS = 1000


def read_events(text: str, now_ms: int) -> Heard:
    """Reads the delivery-status events of a message, which holds one event or a list of them."""
    decoded = json_of(text)
    events = decoded if isinstance(decoded, list) else [decoded]
    receipts: list[Receipt] = []
    ignored = unreadable = 0
    for event in events[:_MAX_EVENTS]:
        status = as_object(event).get("status")
        message_id = text_of(as_object(as_object(event).get("notification")).get("messageId"))
        if not isinstance(status, str) or message_id is None:
            unreadable += 1
        elif status not in ("SUCCESS", "FAILURE"):
            ignored += 1
        else:
            receipts += _receipts(event, status, message_id, now_ms)
    return Heard(receipts=tuple(receipts), ignored=ignored, unreadable=unreadable)


def _receipts(event: dict[str, Any], status: str, message_id: str, now_ms: int) -> Iterator[Receipt]:
    delivery = as_object(event.get("delivery"))
    receipt = Receipt(
        provider="sns",
        provider_message_id=message_id,
        event=ReceiptEvent.DELIVERED,
        event_id=f"{message_id}:{status}",
        at=_at(event, now_ms),
    )
    if status == "FAILURE":
        yield from _failures(receipt, delivery.get("providerResponse"))
    elif str(delivery.get("destination")).startswith("arn:"):
        yield replace(receipt, event=ReceiptEvent.SENT)  # accepted by the platform; the device is unknown
    else:
        yield receipt


def _failures(receipt: Receipt, response: Any) -> Iterator[Receipt]:
    code = _failure_code(response)
    meaning = error_table("sns").codes.get(code) if code else None
    return failed(receipt, meaning, code or "FAILURE", error_text(response))


def _failure_code(response: Any) -> str | None:
    """Returns SNS's error text for an SMS, or the platform's error code for a push message."""
    if not isinstance(response, str):
        return None
    decoded = json_object(response)
    results = decoded.get("results")
    first = as_object(results[0]) if isinstance(results, list) and results else {}
    status = as_object(decoded.get("error")).get("status")
    for code in (response.strip().rstrip("."), decoded.get("reason"), first.get("error"), status):
        if isinstance(code, str) and code in error_table("sns").codes:
            return code
    return None


def _at(event: dict[str, Any], now_ms: int) -> int:
    """Returns when the message was published plus the delivery time, or `now_ms` if the event has neither."""
    published = moment_ms(as_object(event.get("notification")).get("timestamp"), now_ms)
    took_ms = as_object(event.get("delivery")).get("dwellTimeMs")
    return min(now_ms, published + (took_ms if isinstance(took_ms, int) and took_ms > 0 else 0))
