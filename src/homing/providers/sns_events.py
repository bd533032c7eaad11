"""Delivery-status events of SNS, in the form in which it writes them to CloudWatch Logs. Pure.

SNS tells nobody directly what became of an SMS or a push: a subscription of the log group publishes these
events to a topic, and the topic posts them to us.
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

_MOST_EVENTS = 1000


def read_events(text: str, now_ms: int) -> Heard:
    """The delivery-status events in a message: one, or a list of them."""
    said = json_of(text)
    events = said if isinstance(said, list) else [said]
    receipts: list[Receipt] = []
    ignored = unreadable = 0
    for event in events[:_MOST_EVENTS]:
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
        yield replace(receipt, event=ReceiptEvent.SENT)  # the platform took it; the device is not heard of
    else:
        yield receipt


def _failures(receipt: Receipt, response: Any) -> Iterator[Receipt]:
    code = _failure_code(response)
    meaning = error_table("sns").codes.get(code) if code else None
    return failed(receipt, meaning, code or "FAILURE", error_text(response))


def _failure_code(response: Any) -> str | None:
    """SNS's words for an SMS; for a push, the platform's own code inside its answer."""
    if not isinstance(response, str):
        return None
    said = json_object(response)
    results = said.get("results")
    first = as_object(results[0]) if isinstance(results, list) and results else {}
    status = as_object(said.get("error")).get("status")
    for code in (response.strip().rstrip("."), said.get("reason"), first.get("error"), status):
        if isinstance(code, str) and code in error_table("sns").codes:
            return code
    return None


def _at(event: dict[str, Any], now_ms: int) -> int:
    """When it was published and how long it took, where the event says so; else now."""
    published = moment_ms(as_object(event.get("notification")).get("timestamp"), now_ms)
    took_ms = as_object(event.get("delivery")).get("dwellTimeMs")
    return min(now_ms, published + (took_ms if isinstance(took_ms, int) and took_ms > 0 else 0))
