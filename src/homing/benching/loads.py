"""What is sent: webhooks of about 350 bytes, each with a number that the sink counts by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from homing.benching import Unsound
from homing.benching.arena import Arena
from homing.core.model import Content, Recipient
from homing.core.request import SendRequest
from homing.engine.sending import SendResult
from homing.library import Homing

TEXT = "Your order is on its way and should be with you on Thursday. " * 4


def request(number: int, url: str, *, send_at: datetime | None = None) -> SendRequest:
    """One notification with its content ready."""
    return SendRequest(
        recipient=Recipient(url=f"{url}/{number}"),
        channel="webhook",
        type="order_shipped",
        content=Content(data={"n": number, "text": TEXT}),
        send_at=send_at,
    )


def requests(count: int, url: str) -> Iterator[SendRequest]:
    """So many, with numbers of their own."""
    return (request(number, url) for number in range(count))


def payload(number: int) -> str:
    """What a bare queue holds instead: the same bytes that the webhook provider would post."""
    told: dict[str, Any] = {
        "type": "order_shipped",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"n": number, "text": TEXT},
    }
    return msgspec.json.encode(told).decode()


async def accept(homing: Homing, wanted: Iterable[SendRequest | Mapping[str, Any]]) -> int:
    """By `send_many`; every one must be accepted. How many."""
    accepted = 0
    async for result in homing.send_many(wanted):
        if not isinstance(result, SendResult):
            raise Unsound(f"a good request was refused: {result}")
        accepted += 1
    return accepted


async def holds(homing: Homing, place: Arena, **expected: int) -> None:
    """The store accounts for what was accepted, status by status, and has a row for each."""
    counts = {status: count for status, count in (await homing.queue_counts()).items() if count}
    if counts != {status: count for status, count in expected.items() if count}:
        raise Unsound(f"expected {expected}, but the store accounts for {counts}")
    if (rows := await place.rows()) != sum(expected.values()):
        raise Unsound(f"expected {expected}, but the store has {rows:,} rows")
