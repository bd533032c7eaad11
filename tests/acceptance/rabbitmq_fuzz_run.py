"""Sends malformed messages to `homing bridge rabbitmq`: all must reach the quarantine with a reason.

python tests/acceptance/rabbitmq_fuzz_run.py --messages 10000
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.malformed_messages import malformed_messages
from support.rabbitmq_server import PrivateRabbitMQ, rabbit_queues
from support.retry_messages import write_retry
from support.retry_scheduler import RetryScheduler

RETRY, ORDERS, REVIEW = "retry.scheduled", "orders", "manual-review.pending"
QUARANTINE = f"{RETRY}.quarantine"
GOOD_EVERY = 100
BATCH = 250


class FuzzReport(Struct, frozen=True, kw_only=True):
    """What became of the messages."""

    malformed: int
    quarantined: int
    with_reason: int
    good: int
    good_published: int
    left: int
    """Messages that still wait in the retry queue."""


async def run_fuzz(folder: Path, broker: PrivateRabbitMQ, number: int, seed: int, large: int) -> FuzzReport:
    """Publishes malformed messages with good ones in between, and takes what arrives in quarantine."""
    async with rabbit_queues(broker.url) as queues:
        await queues.declare(RETRY, QUARANTINE, ORDERS, REVIEW, x_queue_type="classic")
        env = {"RABBITMQ_URL": broker.url, "HOMING_STORE": "fuzz.db", "BASE_DELAY_MS": "1"}
        service = await asyncio.to_thread(RetryScheduler, folder, env)
        sent: set[bytes] = set()
        seen: set[bytes] = set()
        reasons = good = 0
        with service:
            await asyncio.to_thread(service.until_ready)
            waiting = 0
            for place, body in enumerate(malformed_messages(number, seed, large), 1):
                sent.add(sha256(body).digest())
                await queues.put(RETRY, body)
                waiting += 1
                if place % GOOD_EVERY == 0:
                    good += 1
                    await queues.put(RETRY, write_retry(message_id=f"good {place}", original_queue=ORDERS))
                if waiting == BATCH or place == number:
                    for one in await queues.collect(QUARANTINE, waiting):
                        seen.add(sha256(one.body).digest())
                        reasons += bool(one.headers.get("x-homing-reason"))
                    waiting = 0
            published = await queues.collect(ORDERS, good) if good else []
            left = await queues.count(RETRY)
        await queues.delete(RETRY, QUARANTINE, ORDERS, REVIEW)
    return FuzzReport(
        malformed=len(sent),
        quarantined=len(seen & sent),
        with_reason=reasons,
        good=good,
        good_published=len({one.headers["x-homing-message-id"] for one in published}),
        left=left,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="homing-fuzz-") as folder, PrivateRabbitMQ() as broker:
        made = run_fuzz(Path(folder), broker, arguments.messages, arguments.seed, 500)
        report = asyncio.run(asyncio.wait_for(made, 1_200))
    print(report, f"{time.monotonic() - began:.0f} s")
    whole = report.quarantined == report.malformed == report.with_reason
    sys.exit(0 if whole and report.good == report.good_published and not report.left else 1)


if __name__ == "__main__":
    main()
