"""Measures the bridge from RabbitMQ: messages of a quorum queue, stored in PostgreSQL and acknowledged.

    python bench/rabbitmq_intake.py --rounds 3

Each round has both figures: a bare loop that consumes with aio-pika, parses, inserts batches into a table
with a unique key (one commit per batch) and acknowledges them together, and Homing's bridge. Both have the
same prefetch, batch size, messages and durability, in one process. PostgreSQL and RabbitMQ are started like
those of the tests, unless BENCH_POSTGRES and BENCH_AMQP name others.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

import aio_pika
import asyncpg
from aio_pika.abc import AbstractIncomingMessage

from homing import Homing
from homing.benching.scratch_store import open_scratch_store
from homing.benching.worker_processes import run_async
from homing.bridges.rabbitmq import RabbitMqBridge
from homing.brokers.retry_message import RetryMessage, decode_retry_message, encode_retry_message
from with_servers import running

QUEUE = "homing.bench.intake"
BATCH = 500
TABLE = """
CREATE TABLE IF NOT EXISTS bench_retry_queue (
    id bigserial PRIMARY KEY, message_id text NOT NULL, retry_count int NOT NULL,
    original_payload bytea NOT NULL, original_queue text NOT NULL, error_reason text,
    max_retries int NOT NULL, next_retry_at timestamptz NOT NULL,
    created_at timestamptz DEFAULT now(), status text DEFAULT 'pending', UNIQUE (message_id, retry_count))
"""
INSERT = """
INSERT INTO bench_retry_queue (message_id, retry_count, original_payload, original_queue, error_reason,
    max_retries, next_retry_at)
SELECT m, r, p, q, e, x, now() + interval '2 s'
FROM unnest($1::text[], $2::int[], $3::bytea[], $4::text[], $5::text[], $6::int[]) AS t (m, r, p, q, e, x)
ON CONFLICT DO NOTHING
"""


async def fill(url: str, messages: int) -> None:
    """Empties the queues and publishes messages."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        for name in (QUEUE, f"{QUEUE}.quarantine"):
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            await queue.purge()
        numbers = iter(range(messages))

        async def publish() -> None:
            for number in numbers:
                body = encode_retry_message(
                    RetryMessage(
                        message_id=f"{time.time_ns()}-{number}",
                        original_payload=b"x" * 300,
                        original_queue="orders",
                        error_reason="timeout",
                        max_retries=3,
                    )
                )
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, QUEUE, timeout=60)

        await asyncio.gather(*(publish() for _ in range(200)))


async def measure_bare(server: str, url: str, messages: int) -> float:
    """Returns the rate of a loop that consumes, inserts and acknowledges."""
    await fill(url, messages)
    database = await asyncpg.connect(server)
    await database.execute(TABLE)
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=BATCH)
        received: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        queue = await channel.get_queue(QUEUE, ensure=False)
        began = time.perf_counter()
        await queue.consume(received.put)
        stored = 0
        while stored < messages:
            batch = [await received.get()]
            while len(batch) < BATCH and not received.empty():
                batch.append(received.get_nowait())
            found = [decode_retry_message(one.body) for one in batch]
            await database.execute(
                INSERT,
                [one.message_id for one in found],
                [one.retry_count for one in found],
                [one.original_payload for one in found],
                [one.original_queue for one in found],
                [one.error_reason for one in found],
                [one.max_retries for one in found],
            )
            await batch[-1].ack(multiple=True)
            stored += len(batch)
        rate = messages / (time.perf_counter() - began)
    await database.execute("DROP TABLE bench_retry_queue")
    await database.close()
    return rate


async def measure_homing(server: str, url: str, messages: int) -> float:
    """Returns the rate at which the bridge stores and acknowledges."""
    await fill(url, messages)
    async with open_scratch_store(server) as place:
        bridge = RabbitMqBridge(url=url, queue=QUEUE, manual_review_queue="", prefetch=BATCH)
        async with Homing(place.store, preset="broker", bridges={"rabbitmq": bridge}) as homing:
            await place.rested()
            began = time.perf_counter()
            homing.bridges.start()
            async with asyncio.timeout(300):
                while homing.snapshot().bridges["rabbitmq"].accepted < messages:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return messages / (time.perf_counter() - began)


async def measure(options: argparse.Namespace, urls: dict[str, str]) -> int:
    ratios = []
    for number in range(options.rounds):
        bare = await measure_bare(urls["postgres"], urls["rabbitmq"], options.messages)
        ours = await measure_homing(urls["postgres"], urls["rabbitmq"], options.messages)
        ratios.append(ours / bare)
        print(
            f"round {number + 1}: bare {bare:,.0f}/s, Homing {ours:,.0f}/s, ratio {ours / bare:.2f}",
            flush=True,
        )
    met = "met" if statistics.median(ratios) >= 0.5 else "MISSED"
    print(f"median ratio {statistics.median(ratios):.2f} (target 0.5: {met}), batches of at most {BATCH}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with running(("postgres", "rabbitmq")) as urls:
        return int(run_async(measure(options, urls)))


if __name__ == "__main__":
    sys.exit(main())
