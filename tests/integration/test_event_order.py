"""Two workers, each with a relay of the same sink: the events of a notification arrive once and in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from homing import Delivery, Homing, Outcome, SendResult
from homing.compose import list_provider
from homing.core.lifecycle.events import STATUS_CHANGED, Event
from homing.core.notifications import OutcomeKind
from homing.core.routing.breaker import BreakerPolicy

NOTIFICATIONS = 40

QUICK = {"name": "quick", "base_ms": 5, "factor": 1.0, "cap_ms": 0, "jitter": "none", "max_attempts": 4}


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "homing.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


async def test_two_relays_keep_the_events_of_a_notification_in_order(address: str) -> None:
    seen: list[Event] = []
    tries: Counter[str] = Counter()
    complete = asyncio.Event()

    async def flaky(delivery: Delivery) -> Outcome:
        tries[delivery.notification_id] += 1
        return Outcome(OutcomeKind.ACCEPTED if tries[delivery.notification_id] > 2 else OutcomeKind.TRANSIENT)

    async def slowly(event: Event) -> None:
        seen.append(event)
        await asyncio.sleep(0.0002 * (len(seen) % 7))
        if sum(one.payload["status"] == "sent" for one in seen) == NOTIFICATIONS:
            complete.set()

    settings: dict[str, Any] = {
        "providers": {
            "mail": list_provider("mail", flaky, ("email",), breaker=BreakerPolicy(failures=10**6))
        },
        "rules": [QUICK],
        "on_event": slowly,
        "events": [STATUS_CHANGED],
    }
    first = Homing(address, worker_name="w1", **settings)
    second = Homing(address, worker_name="w2", **settings)
    async with first, second:
        requests = [
            {"recipient": f"u{n}@example.org", "channel": "email", "content": {"body": "x"}}
            for n in range(NOTIFICATIONS)
        ]
        sent = [one async for one in first.send_many(requests)]
        ids = {one.id for one in sent if isinstance(one, SendResult)}
        first.start_worker()
        second.start_worker()
        async with asyncio.timeout(60):
            await complete.wait()
            while any(sink.waiting for sink in await first.sinks()):  # noqa: ASYNC110  # until all are removed
                await asyncio.sleep(0.01)
    changes: dict[str, list[int]] = {id: [] for id in ids}
    for event in seen:
        id, number, _ = event.id.split(":")
        changes[id].append(int(number))
    for id in ids:
        assert len(changes[id]) == 4, "accepted, retrying, retrying, sent"
        assert changes[id] == sorted(set(changes[id])), "each change once, in order"
