"""The workload: webhooks of about 350 bytes, each with a number by which the sink counts."""

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
    """Builds a webhook request with content, so that no template is rendered."""
    return SendRequest(
        recipient=Recipient(url=f"{url}/{number}"),
        channel="webhook",
        type="order_shipped",
        content=Content(data={"n": number, "text": TEXT}),
        send_at=send_at,
    )


def requests(count: int, url: str) -> Iterator[SendRequest]:
    """Yields `count` requests, numbered from 0."""
    return (request(number, url) for number in range(count))


def payload(number: int) -> str:
    """Returns the payload for the bare queue: the same bytes that the webhook provider would post."""
    body: dict[str, Any] = {
        "type": "order_shipped",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"n": number, "text": TEXT},
    }
    return msgspec.json.encode(body).decode()


async def accept(homing: Homing, wanted: Iterable[SendRequest | Mapping[str, Any]]) -> int:
    """Submits the requests with `send_many` and returns their number. Raises Unsound if one is rejected."""
    accepted = 0
    async for result in homing.send_many(wanted):
        if not isinstance(result, SendResult):
            raise Unsound(f"a valid request was rejected: {result}")
        accepted += 1
    return accepted


async def holds(homing: Homing, place: Arena, **expected: int) -> None:
    """Raises Unsound unless the store has the expected count per status, and one row per notification."""
    counts = {status: count for status, count in (await homing.queue_counts()).items() if count}
    if counts != {status: count for status, count in expected.items() if count}:
        raise Unsound(f"expected {expected}, but the store counts {counts}")
    if (rows := await place.rows()) != sum(expected.values()):
        raise Unsound(f"expected {expected}, but the store has {rows:,} rows")
