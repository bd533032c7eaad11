"""Measures how punctual workers are with a Kafka timer and with the store alone, in one run.

    python bench/kafka_timer.py [STORE ...]

STORE is an URL of PostgreSQL, or sqlite: (the default) for a file in a temporary folder. A private Kafka
broker is started. In each round, one engine accepts 2,000 notifications of priority low, and another with a
worker delivers them. Both ways are measured in turn, three times:

- planned: all are accepted in advance and due at random times within 20 s;
- at once: they are accepted one by one during 20 s, and due as soon as they are accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homing import Delivery, Homing, Outcome, OutcomeKind, SendResult
from homing.settings import load_settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.kafka_broker import KafkaBroker

_STARTING_S = 4
"""Time for the worker to join the consumer group."""

_LEAD_S = 3
_WITHIN_S = 120


class Arrivals:
    """A provider that records when each notification was attempted."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    async def __call__(self, delivery: Delivery) -> Outcome:
        self.at[delivery.notification_id] = time.time()
        return Outcome(OutcomeKind.ACCEPTED)


async def measure(
    store: str, timers: Mapping[str, Any], due: int, seconds: float, planned: bool
) -> list[float]:
    """Returns the lateness of each notification in milliseconds."""
    arrivals, expected = Arrivals(), dict[str, float]()
    settings = load_settings(flags={"store": store, "timers": dict(timers)})
    sender = Homing(providers={"p": arrivals}, loaded_settings=settings)
    worker = Homing(providers={"p": arrivals}, loaded_settings=settings, worker=True)
    rng = random.Random(7)
    async with sender, worker:
        await asyncio.sleep(_STARTING_S)
        began = time.time() + _LEAD_S
        times = sorted(began + rng.random() * seconds for _ in range(due))

        mail: dict[str, Any] = {"channel": "email", "priority": "low"}

        async def accept(number: int) -> None:
            await asyncio.sleep(max(0.0, times[number] - time.time()))
            sent = await sender.send(f"user{number}@example.org", body="Hi", **mail)
            expected[sent.id] = time.time()

        if planned:
            at = [datetime.fromtimestamp(one, UTC) for one in times]
            requests = (
                {"recipient": f"user{number}@example.org", "content": {"body": "Hi"}, "send_at": one, **mail}
                for number, one in enumerate(at)
            )
            async for result in sender.send_many(requests):
                assert isinstance(result, SendResult), result
                expected[result.id] = times[len(expected)]
        else:
            await asyncio.gather(*map(accept, range(due)))
        async with asyncio.timeout(_WITHIN_S):
            while len(arrivals.at) < due:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    return [1000 * (arrivals.at[id] - at) for id, at in expected.items()]


async def run(stores: list[str], due: int, seconds: float, rounds: int) -> None:
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        kafka = {"bootstrap_servers": broker.address, "create_topics": True}
        ways = {"store alone": {}, "Kafka timer": {"medium": "kafka", "low": "kafka", "kafka": kafka}}
        print(f"{'store':<12} {'load':<9} {'way':<12} {'median':>8} {'p99':>8} {'max':>8}  ms late")
        for store in stores:
            for planned in (True, False):
                found: dict[str, list[float]] = {name: [] for name in ways}
                for number in range(rounds):
                    for name, timers in ways.items():
                        url = f"{folder}/{number}-{planned}-{name[0]}.db" if store == "sqlite:" else store
                        found[name] += await measure(url, timers, due, seconds, planned)
                for name, late in found.items():
                    cut = statistics.quantiles(late, n=100)
                    load = "planned" if planned else "at once"
                    print(
                        f"{store.partition(':')[0]:<12} {load:<9} {name:<12} {cut[49]:>8.1f} {cut[98]:>8.1f} "
                        f"{max(late):>8.1f}",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stores", metavar="STORE", nargs="*", default=["sqlite:"])
    parser.add_argument("--due", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    os.environ.pop("HOMING_STORE", None)
    asyncio.run(run(asked.stores, asked.due, asked.seconds, asked.rounds))


if __name__ == "__main__":
    main()
