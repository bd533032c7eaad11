"""Kills the Kafka broker, bridges and workers with `kill -9`, and counts lost requests, which must be none.

    python tests/acceptance/kafka_run.py --restarts 50 --kills 100 --requests 5000

Two `homing bridge kafka` and two `homing worker` processes share one SQLite file. Requests come from a topic,
due times wait in topics, and status events go to a topic. Afterwards every request that Kafka has confirmed
must be one notification that was sent, and its events must be in the topic, in order. An event may be there
twice, because a confirmation that was lost makes its record ambiguous.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
from confluent_kafka import KafkaException, Producer

from homing import Homing
from homing.core.notifications import Notification

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.kafka_broker import KafkaBroker
from support.worker_fleet import DeliveryCount, Fleet, count, settled, show

SETTINGS = """
[bridges.kafka]
bootstrap_servers = "{address}"

[timers]
medium = "kafka"
low = "kafka"
[timers.kafka]
bootstrap_servers = "{address}"
steps = ["0s", "1m"]

[sinks.kafka]
bootstrap_servers = "{address}"
events = ["StatusChanged", "NotificationFailed"]
"""
TOPICS = ("homing.requests", "homing.events", "homing.timers.0s", "homing.timers.1m")
SINGLE_TOPICS = ("homing.requests-quarantine", "homing.dead-letters")
END_S = 600


class KafkaCount(msgspec.Struct, kw_only=True):
    """What became of the requests that Kafka has confirmed."""

    requests: int
    deliveries: DeliveryCount
    doubled: int
    """Requests that became more than one notification. Must be 0."""
    events: int
    missing_events: int
    """Notifications without an event of their end. Must be 0."""
    disordered: int
    """Notifications whose events are not in order. Must be 0."""
    repeated_events: int
    """Events that are more than once in the topic."""
    quarantined: int

    @property
    def good(self) -> bool:
        wrong = self.doubled + self.missing_events + self.disordered + self.quarantined
        return self.deliveries.good and wrong == 0 and self.requests == self.deliveries.accepted


async def run(
    broker: KafkaBroker,
    folder: Path,
    *,
    restarts: int,
    kills: int,
    requests: int,
    seed: int,
    progress: bool = False,
) -> KafkaCount:
    """Runs once, and ends at most ten minutes after the last kill."""
    rng = random.Random(seed)
    for topic in TOPICS:
        broker.create_topic(topic, 4)
    for topic in SINGLE_TOPICS:
        broker.create_topic(topic)
    settings = SETTINGS.format(address=broker.address)
    store = f"{folder}/homing.db"
    workers = Fleet(folder, store, workers=2, settings=settings)
    bridges = Fleet(folder, store, workers=2, settings=settings, command=("bridge", "kafka"))
    fleets = [workers, bridges]
    confirmed: set[int] = set()
    producer = _producer(broker)
    async with Homing(config_file=workers.config) as homing:
        for fleet in fleets:
            fleet.start()
        try:
            actions = ["restart"] * restarts + ["kill"] * kills
            rng.shuffle(actions)
            for number, action in enumerate(actions):
                first, end = (requests * place // len(actions) for place in (number, number + 1))
                await _produce(producer, range(first, end), confirmed)
                await asyncio.sleep(rng.uniform(0.0, 0.6))
                if action == "kill":
                    await asyncio.to_thread(rng.choice(fleets).kill_one, rng)
                else:
                    await asyncio.to_thread(broker.restart)
                if progress:
                    done = f"{number + 1}/{len(actions)}, confirmed {len(confirmed)}"
                    print(f"\r{done}", end="", file=sys.stderr)
            await asyncio.to_thread(producer.flush, 60)
            await _end(homing, broker, len(confirmed))
        finally:
            for fleet in fleets:
                await asyncio.to_thread(fleet.stop)
        return await _count(homing, folder, broker, confirmed)


def _producer(broker: KafkaBroker) -> Producer:
    options = {"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0}
    return Producer({**options, "message.timeout.ms": 60_000, "retry.backoff.ms": 50})


async def _produce(producer: Producer, numbers: range, confirmed: set[int]) -> None:
    """Writes requests. One counts once the broker has confirmed it."""
    for number in numbers:
        request = {
            "recipient": f"user{number}@example.org",
            "channel": "email",
            "priority": "low",
            "content": {"body": "hi"},
        }

        def report(error: object, _: object, number: int = number) -> None:
            if error is None:
                confirmed.add(number)

        key = str(number).encode()
        producer.produce("homing.requests", msgspec.json.encode(request), key, on_delivery=report)
        if number % 20 == 0:
            producer.poll(0)
            await asyncio.sleep(0.005)
    producer.poll(0)


async def _end(homing: Homing, broker: KafkaBroker, total: int) -> None:
    """Waits until everything was committed, sent and published, at most ten minutes."""
    await settled(homing, total, END_S)
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        try:
            committed = await asyncio.to_thread(broker.committed, "homing", "homing.requests")
        except KafkaException:
            committed = 0
        if committed >= total and not any(one.waiting for one in await homing.sinks() if one.name == "kafka"):
            return
        await asyncio.sleep(0.2)


async def _count(homing: Homing, folder: Path, broker: KafkaBroker, confirmed: set[int]) -> KafkaCount:
    found = list[Notification]()
    cursor = None
    while True:
        page = await homing.list(limit=1_000, cursor=cursor)
        found += page.items
        if (cursor := page.cursor) is None:
            break
    requested = Counter(one.recipient.email for one in found)
    changes: dict[str, list[tuple[str, str]]] = {}
    seen: Counter[str] = Counter()
    for record in broker.records("homing.events"):
        body = msgspec.json.decode(record.value() or b"{}")
        seen[body["eventId"]] += 1
        if seen[body["eventId"]] == 1 and body["eventType"] == "StatusChanged":
            change = f"{body['statusBefore']}>{body['status']}"
            changes.setdefault(body["notificationId"], []).append((change, body["at"]))
    return KafkaCount(
        requests=len(confirmed),
        deliveries=await count(homing, folder, [one.id for one in found]),
        doubled=sum(number > 1 for number in requested.values()),
        events=len(seen),
        missing_events=sum(
            not any(change.endswith(">sent") for change, _ in changes.get(one.id, ())) for one in found
        ),
        disordered=sum(not _in_order(own) for own in changes.values()),
        repeated_events=sum(number > 1 for number in seen.values()),
        quarantined=len(broker.records("homing.requests-quarantine")),
    )


def _in_order(changes: list[tuple[str, str]]) -> bool:
    """Returns True if the first change is the acceptance, and no change is older than the one before it."""
    times = [at for _, at in changes]
    return changes[0][0] == "None>pending" and times == sorted(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, KafkaBroker() as broker:
        work = run(
            broker,
            Path(folder),
            restarts=options.restarts,
            kills=options.kills,
            requests=options.requests,
            seed=options.seed,
            progress=True,
        )
        report = asyncio.run(work)
    print(f"\nseed {options.seed}, {time.monotonic() - began:.1f} s")
    show(report)
    print("nothing was lost or doubled" if report.good else "SOMETHING IS WRONG")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
