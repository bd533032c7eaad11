"""Checks at which millisecond a store removes old data. The caller's clock stands still between two calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from homing.core.notifications import Status
from homing.core.ports.stores import Backend, Retention
from homing.testing.builders import (
    DAY_MS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_settlement,
    a_submission,
    an_attempt,
)

RETENTION = Retention(delivered_ms=DAY_MS, keys_ms=2 * DAY_MS)


async def check_retention(store: Backend, set_clock: Callable[[int], Awaitable[None]], now: int) -> None:
    """Fails unless all data is removed in the millisecond in which it has its age, and not before."""
    new = a_notification(dedup_key="d", dedup_window_ms=DAY_MS)
    await store.accept([a_submission(new, key="k")])
    [claim] = (await store.claim(a_claim_request())).claims
    await store.settle([a_settlement(claim, Status.DELIVERED, attempt=an_attempt(claim))])
    await store.receipt([a_receipt("unknown")])
    removed = []
    for time in (now + DAY_MS - 1, now + DAY_MS, now + 2 * DAY_MS - 1, now + 2 * DAY_MS):
        await set_clock(time)
        counts = await store.prune(RETENTION, 10)
        removed.append({kind: counts[kind] for kind in ("notifications", "keys", "receipts")})
    none = {"notifications": 0, "keys": 0, "receipts": 0}
    assert removed == [none, {**none, "notifications": 1}, none, {**none, "keys": 2, "receipts": 1}]
