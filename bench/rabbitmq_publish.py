"""Measures the RabbitMQ provider: notifications in PostgreSQL that a worker publishes to a quorum queue.

    python bench/rabbitmq_publish.py --rounds 3

Each round has both figures: a bare loop of confirmed publishes with aio-pika, and Homing with one worker.
Both have the same number of messages in flight, persistent, mandatory, with the same body and headers, in one
process. Homing's rate is that from its first confirmed message to its last. All of them must be `sent`, and
all of them must be in the queue. PostgreSQL and RabbitMQ are started like those of the tests, unless
BENCH_POSTGRES and BENCH_AMQP name others.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import aio_pika

from homing import Homing, Status
from homing.benching.scratch_store import open_scratch_store
from homing.benching.worker_processes import run_async
from homing.brokers.rabbitmq_publisher import RabbitMqPublisher
from with_servers import running

QUEUE = "homing.bench"
BODY = {"data": {"orderId": 4711, "text": "x" * 300}}
CONFIG = """
store = "{store}"
[slots]
standard = {slots}
[providers.rabbitmq]
url = "{url}"
max_in_flight = {in_flight}
"""


class Measured(NamedTuple):
    """Messages per second, and the CPU time of this process per message in microseconds."""

    per_second: float
    cpu_us: float


async def prepare(url: str) -> aio_pika.abc.AbstractChannel:
    """Declares the queue, empties it, and returns a channel with confirms."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    queue = await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    await queue.purge()
    return channel


async def count(url: str) -> int:
    channel = await (await aio_pika.connect(url)).channel()
    found = await channel.declare_queue(QUEUE, passive=True)
    return found.declaration_result.message_count or 0


async def measure_bare(url: str, messages: int, in_flight: int) -> Measured:
    """Returns the rate of a loop that publishes and waits for the confirmation, with many in flight."""
    channel = await prepare(url)
    body, numbers = b'{"orderId":4711,"text":"' + b"x" * 300 + b'"}', iter(range(messages))

    async def publish() -> None:
        for number in numbers:
            message = aio_pika.Message(
                body,
                headers={"x-homing-message-id": f"{number}", "x-homing-notification-id": f"{number}"},
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                content_type="application/json",
                message_id=uuid4().hex,
            )
            await channel.default_exchange.publish(message, QUEUE, mandatory=True, timeout=60)

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(publish() for _ in range(in_flight)))
    spent = time.process_time() - spent
    return Measured(messages / (time.perf_counter() - began), 1e6 * spent / messages)


async def measure_homing(server: str, url: str, messages: int, in_flight: int) -> Measured:
    """Returns the rate at which one worker publishes what was accepted before."""
    await prepare(url)
    async with open_scratch_store(server) as place:
        path = place.folder / "rabbitmq.toml"
        path.write_text(CONFIG.format(store=place.store, url=url, in_flight=in_flight, slots=2 * in_flight))
        async with Homing(config_file=path) as homing:
            requests = [{"recipient": {"url": QUEUE}, "channel": "queue", "content": BODY}] * 500
            for start in range(0, messages, 500):
                async for _ in homing.send_many(requests[: min(500, messages - start)]):
                    continue
        await place.rested()
        times: list[float] = []
        spent = time.process_time()
        with noted_publishes(times):
            async with Homing(config_file=path, worker=True) as homing, asyncio.timeout(300):
                while (await homing.queue_counts()).get(Status.SENT, 0) < messages:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        spent = time.process_time() - spent
    if (there := await count(url)) != messages:
        raise SystemExit(f"invalid: {there} of {messages} messages are in the queue")
    return Measured((len(times) - 1) / (times[-1] - times[0]), 1e6 * spent / messages)


@contextmanager
def noted_publishes(times: list[float]) -> Iterator[None]:
    """Notes when each publish ends."""
    real = RabbitMqPublisher.publish

    async def publish(self: RabbitMqPublisher, message: Any, timeout_ms: int) -> Any:
        result = await real(self, message, timeout_ms)
        times.append(time.perf_counter())
        return result

    RabbitMqPublisher.publish = publish  # type: ignore[method-assign]
    try:
        yield
    finally:
        RabbitMqPublisher.publish = real  # type: ignore[method-assign]


async def measure(options: argparse.Namespace, urls: dict[str, str]) -> int:
    ratios = []
    for number in range(options.rounds):
        bare = await measure_bare(urls["rabbitmq"], options.messages, options.in_flight)
        ours = await measure_homing(urls["postgres"], urls["rabbitmq"], options.messages, options.in_flight)
        ratios.append(ours.per_second / bare.per_second)
        print(
            f"round {number + 1}: bare {bare.per_second:,.0f}/s, Homing {ours.per_second:,.0f}/s, "
            f"ratio {ratios[-1]:.2f}; CPU per message {bare.cpu_us:.0f} and {ours.cpu_us:.0f} µs",
            flush=True,
        )
    met = "met" if statistics.median(ratios) >= 0.5 else "MISSED"
    print(f"median ratio {statistics.median(ratios):.2f} (target 0.5: {met}), {options.in_flight} in flight")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--in-flight", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with running(("postgres", "rabbitmq")) as urls:
        return run_async(measure(options, urls))


if __name__ == "__main__":
    sys.exit(main())
