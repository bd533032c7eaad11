"""Runs `homing bridge rabbitmq` on PostgreSQL with a real broker: under load, and during many faults.

    python tests/acceptance/rabbitmq_run.py load
    python tests/acceptance/rabbitmq_run.py restart
    python tests/acceptance/rabbitmq_run.py faults --restarts 100 --kills 100

`load` publishes 50 messages per second for 60 s and 200 per second for 15 s, and measures how late they come
back. `restart` kills the broker once in between. `faults` kills the broker and the processes again and again,
suspends them, deletes and creates the retry queue, and fills an original queue. Every message that the broker
has confirmed must come back or be in manual review. What comes back twice must have an attempt that may have
been published although its confirmation was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import aio_pika
import psycopg
from aio_pika.abc import AbstractIncomingMessage
from msgspec import Struct, field
from msgspec.structs import asdict

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.private_postgres import PrivatePostgres
from support.rabbitmq_server import PrivateRabbitMQ, rabbit_queues
from support.retry_messages import read_retry, write_retry
from support.retry_scheduler import RetryScheduler

PATIENCE_S = 150.0
_END_S = 600.0
BASE_MS, JITTER_MS = 2_000, 1_000
"""The default delay of the first retry, and the most that is added to it."""
RETRY, ORDERS, REVIEW = "retry.scheduled", "orders", "manual-review.pending"
FULL = "full"
QUARANTINE = f"{RETRY}.quarantine"
TASK_COUNTS = "SELECT status, count(*) FROM homing.retry_queue GROUP BY status"
ATTEMPTS = """
SELECT m.message::json -> 'metadata' ->> 'message_id',
    count(*) FILTER (WHERE a.outcome = 'accepted'),
    count(*) FILTER (WHERE a.outcome IN ('ambiguous', 'lost'))
FROM homing.attempts AS a JOIN homing.messages AS m ON m.seq = a.seq GROUP BY 1
"""


class Report(Struct, kw_only=True):
    """The result of a run. `late_ms` has percentiles of the time from when messages were due."""

    published: int = 0
    returned: int = 0
    reviewed: int = 0
    lost: list[str] = field(default_factory=list)
    twice: int = 0
    twice_without_doubt: list[str] = field(default_factory=list)
    """Messages that came back more often than they were accepted, ambiguous or lost. Must be none."""
    accepted_twice: list[str] = field(default_factory=list)
    """Messages with more than one accepted attempt. Must be none."""
    confirmed_and_missing: list[str] = field(default_factory=list)
    """Messages whose publish was confirmed, and that did not come back. Must be none."""
    early: int = 0
    late_ms: dict[str, float] = field(default_factory=dict)
    late_after_return_ms: dict[str, float] = field(default_factory=dict)
    """Lateness of messages that were due at least 5 s after the broker had returned."""
    faults: dict[str, int] = field(default_factory=dict)
    cpu_ms: float = 0.0
    """Processor time of the service per message, if it was never restarted."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        wrong = (self.lost, self.twice_without_doubt, self.accepted_twice, self.confirmed_and_missing)
        return not any(wrong) and not self.early


class Scheduler:
    """Two servers, some processes, a publisher of failed messages and a consumer of what comes back."""

    def __init__(
        self,
        folder: Path,
        *,
        processes: int = 1,
        seed: int = 0,
        base_ms: int = BASE_MS,
        broker: PrivateRabbitMQ | None = None,
    ) -> None:
        """Without a running `broker`, one is started."""
        self._folder = folder
        self._size = processes
        self._base_ms = base_ms
        self._given = broker
        self._random = random.Random(seed)
        self.report = Report()
        self.processes: list[RetryScheduler] = []
        self.due_ms: dict[str, int] = {}
        self.latest_ms: dict[str, int] = {}
        self.arrived_ms: dict[str, int] = {}
        self.copies: dict[str, set[str]] = {}
        self.reviewed: set[str] = set()
        self.broker_back_ms = 0
        self._connecting = asyncio.Lock()
        self._publishing: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            self.postgres = stack.enter_context(PrivatePostgres())
            self.broker = self._given or stack.enter_context(PrivateRabbitMQ(PATIENCE_S))
            async with rabbit_queues(self.broker.url) as queues:
                await queues.declare(RETRY, QUARANTINE, ORDERS, REVIEW, survive_kill=True)
            env = {
                "RABBITMQ_URL": self.broker.url,
                "DATABASE_URL": self.postgres.url,
                "BASE_DELAY_MS": str(self._base_ms),
            }
            for number in range(self._size):
                made = await asyncio.to_thread(RetryScheduler, self._folder, env, number=number + 1)
                self.processes.append(stack.enter_context(made))
            for one in self.processes:
                await asyncio.to_thread(one.until_ready)
            self._consuming = [
                asyncio.create_task(self._consume(ORDERS, self._note_return)),
                asyncio.create_task(self._consume(REVIEW, self._note_review)),
            ]
            try:
                yield
            finally:
                if self._publishing is not None:
                    await self._publishing.close()
                for task in self._consuming:
                    task.cancel()
                await asyncio.gather(*self._consuming, return_exceptions=True)
                if self._given is not None:
                    await asyncio.gather(*(asyncio.to_thread(one.kill) for one in self.processes))
                    async with rabbit_queues(self.broker.url) as queues:
                        await queues.delete(RETRY, QUARANTINE, ORDERS, REVIEW, FULL)

    # What goes in and what comes out ---------------------------------------------------------------

    async def publish(self, rate: float, seconds: float, queue: str = ORDERS) -> None:
        """Publishes messages at a steady rate. Those that were not confirmed are published again."""
        began, number = time.monotonic(), 0
        waiting: set[asyncio.Task[None]] = set()
        while number < rate * seconds:
            await asyncio.sleep(max(0, began + number / rate - time.monotonic()))
            task = asyncio.create_task(self._publish_one(queue))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            number += 1
        await asyncio.gather(*waiting)

    async def _publish_one(self, queue: str) -> None:
        id = f"m{len(self.due_ms)}"
        now_ms = time.time_ns() // 1_000_000
        # Every other message names its time. The others are due after the base delay and up to 1 s.
        exact = len(self.due_ms) % 2 == 0
        self.due_ms[id] = now_ms + self._base_ms
        self.latest_ms[id] = self.due_ms[id] + (0 if exact else JITTER_MS)
        body = write_retry(
            message_id=id,
            original_payload=id.encode() * 20,
            original_queue=queue,
            error_reason="timeout",
            **({"next_retry_at_ms": self.due_ms[id]} if exact else {}),
        )
        while True:
            try:
                await self._put(body)
                self.report.published += 1
                return
            except (OSError, aio_pika.exceptions.AMQPError, TimeoutError, RuntimeError):
                await asyncio.sleep(0.2)
                # The broker may have the message already: the second one is recognized by its id and count.

    async def _put(self, body: bytes) -> None:
        async with self._connecting:
            if self._publishing is None or self._publishing.is_closed:
                connection = await aio_pika.connect(self.broker.url, timeout=3)
                self._publishing = await connection.channel(publisher_confirms=True, on_return_raises=True)
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        try:
            await self._publishing.default_exchange.publish(message, RETRY, mandatory=True, timeout=5)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionError("the connection broke") from None
        except (aio_pika.exceptions.AMQPConnectionError, aio_pika.exceptions.ChannelInvalidStateError):
            self._publishing = None
            raise

    async def _consume(self, queue: str, note: Callable[[AbstractIncomingMessage], None]) -> None:
        while True:
            with suppress(
                OSError, aio_pika.exceptions.AMQPError, TimeoutError, RuntimeError, ConnectionError
            ):
                connection = await aio_pika.connect(self.broker.url, timeout=3)
                lost = asyncio.Event()
                connection.close_callbacks.add(lambda *_, lost=lost: lost.set())
                async with connection:
                    channel = await connection.channel()
                    channel.close_callbacks.add(lambda *_, lost=lost: lost.set())
                    underlay = await channel.get_underlay_channel()
                    underlay.on_consumer_cancel_callbacks.add(lambda *_, lost=lost: lost.set())
                    await channel.set_qos(prefetch_count=200)

                    async def take(message: AbstractIncomingMessage) -> None:
                        note(message)
                        await message.ack()

                    await (await channel.get_queue(queue, ensure=False)).consume(take, timeout=3)
                    await lost.wait()
            await asyncio.sleep(0.05)

    def _note_return(self, message: AbstractIncomingMessage) -> None:
        id = str(message.headers["x-homing-message-id"])
        now_ms = time.time_ns() // 1_000_000
        if self.arrived_ms.setdefault(id, now_ms) == now_ms and now_ms < self.due_ms.get(id, 0):
            self.report.early += 1
        # A copy that the broker delivers again has the same id on the wire.
        self.copies.setdefault(id, set()).add(message.message_id or "")

    def _note_review(self, message: AbstractIncomingMessage) -> None:
        self.reviewed.add(read_retry(message.body).message_id)

    # Faults ----------------------------------------------------------------------------------------

    async def restart_broker(self) -> None:
        """Kills the broker and starts it again."""
        await asyncio.to_thread(self.broker.restart)
        self.broker_back_ms = time.time_ns() // 1_000_000

    async def freeze_broker(self, seconds: float) -> None:
        self.broker.freeze()
        await asyncio.sleep(seconds)
        self.broker.thaw()

    async def kill_process(self) -> None:
        one = self._random.choice(self.processes)
        await asyncio.to_thread(one.kill)
        await asyncio.to_thread(one.start)

    async def suspend_process(self, seconds: float) -> None:
        one = self._random.choice(self.processes)
        one.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        one.signal(signal.SIGCONT)

    async def replace_queue(self) -> None:
        """Deletes the retry queue while it is empty, and creates it again a little later."""
        async with rabbit_queues(self.broker.url) as queues:
            await _until(lambda: self._all_stored(), "the messages were not stored")
            await queues.delete(RETRY)
            await asyncio.sleep(0.5)
            await queues.declare(RETRY, survive_kill=True)

    async def fill_queue(self) -> None:
        """Sends messages back to a queue that rejects them, because it is full, and empties it later."""
        async with rabbit_queues(self.broker.url) as queues:
            await queues.declare(FULL, survive_kill=True, x_max_length=1, x_overflow="reject-publish")
            await self.publish(10, 1, FULL)
            await asyncio.sleep(2 * (self._base_ms / 1000))
        self._consuming.append(asyncio.create_task(self._consume(FULL, self._note_return)))

    async def _all_stored(self) -> bool:
        return sum((await self._counts()).values()) >= self.report.published

    async def _all_returned(self) -> bool:
        return len(self.arrived_ms.keys() | self.reviewed) >= self.report.published

    async def _counts(self) -> dict[str, int]:
        def ask() -> dict[str, int]:
            with psycopg.connect(self.postgres.url) as db:
                return dict(db.execute(TASK_COUNTS).fetchall())

        return await asyncio.to_thread(ask)

    # The result ------------------------------------------------------------------------------------

    async def finish(self) -> Report:
        """Waits until everything has come back or is in review, and returns the report."""
        report = self.report
        with suppress(AssertionError):  # the report says what is missing
            await _until(self._is_done, "")
        ids = set(self.due_ms)
        report.returned, report.reviewed = len(self.arrived_ms), len(self.reviewed)
        report.lost = sorted(ids - self.arrived_ms.keys() - self.reviewed)[:20]
        with psycopg.connect(self.postgres.url) as db:
            attempts = {id: (accepted, unsure) for id, accepted, unsure in db.execute(ATTEMPTS).fetchall()}
        report.twice = sum(len(copies) > 1 for copies in self.copies.values())
        report.twice_without_doubt = [
            id for id, copies in self.copies.items() if len(copies) > sum(attempts.get(id, (0, 0)))
        ][:20]
        report.accepted_twice = [id for id, (accepted, _) in attempts.items() if accepted > 1][:20]
        report.confirmed_and_missing = [
            id for id, (accepted, _) in attempts.items() if accepted and id not in self.copies
        ][:20]
        report.late_ms = _percentiles(self._lateness(0))
        report.cpu_ms = round(sum(map(_processor_ms, self.processes)) / max(1, report.returned), 2)
        if self.broker_back_ms:
            report.late_after_return_ms = _percentiles(self._lateness(self.broker_back_ms + 5_000))
        return report

    async def _is_done(self) -> bool:
        return await self._all_returned() and not (await self._counts()).get("pending")

    def _lateness(self, from_ms: int) -> list[int]:
        return [
            max(0, self.arrived_ms[id] - latest)
            for id, latest in self.latest_ms.items()
            if id in self.arrived_ms and self.due_ms[id] >= from_ms
        ]


def _processor_ms(one: RetryScheduler) -> float:
    assert one.process is not None
    fields = Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _percentiles(values: list[int]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=1000)
    return {"p50": cuts[499], "p95": cuts[949], "p99": cuts[989], "max": max(values), "n": len(values)}


async def _until(holds: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < until, what
        await asyncio.sleep(0.2)


async def run_load(
    folder: Path,
    steps: tuple[tuple[float, float], ...],
    *,
    restart_after_s: float = 0.0,
    pause_s: float = 4.0,
) -> Report:
    """Publishes at each (rate, seconds) in turn. With `restart_after_s`, the broker is killed once."""
    began = time.monotonic()
    run = Scheduler(folder)
    async with run.running():
        if restart_after_s:

            async def restart() -> None:
                await asyncio.sleep(restart_after_s)
                await run.restart_broker()

            restarting = asyncio.create_task(restart())
        for rate, seconds in steps:
            await run.publish(rate, seconds)
            await asyncio.sleep(pause_s)
        if restart_after_s:
            await restarting
            run.report.faults["broker restarts"] = 1
        report = await run.finish()
    report.seconds = round(time.monotonic() - began, 1)
    return report


class Plan(Struct, frozen=True, kw_only=True):
    """How often each fault happens."""

    restarts: int = 100
    kills: int = 100
    suspensions: int = 3
    freezes: int = 2
    replacements: int = 3
    rate: float = 20.0
    base_ms: int = BASE_MS
    limit_s: float = 3_000.0
    """Time after which no further fault begins. The report says how many there were."""


async def run_faults(
    folder: Path, plan: Plan, seed: int = 1, *, broker: PrivateRabbitMQ | None = None, progress: bool = False
) -> Report:
    """Publishes steadily while faults happen one after another, in a random order."""
    began = time.monotonic()
    run = Scheduler(folder, processes=2, seed=seed, base_ms=plan.base_ms, broker=broker)
    faults: list[tuple[str, Callable[[], Any]]] = [
        *[("broker restarts", run.restart_broker)] * plan.restarts,
        *[("kills", run.kill_process)] * plan.kills,
        *[("suspensions", lambda: run.suspend_process(3))] * plan.suspensions,
        *[("frozen broker", lambda: run.freeze_broker(8))] * plan.freezes,
    ]
    random.Random(seed).shuffle(faults)
    quiet: list[tuple[str, Callable[[], Any]]] = [
        *[("queue deleted and created", run.replace_queue)] * plan.replacements,
        ("full queue", run.fill_queue),
    ]
    async with run.running():
        for place, (name, cause) in enumerate(faults):
            if time.monotonic() - began > plan.limit_s:
                break
            publishing = asyncio.create_task(run.publish(plan.rate, 1.0))
            await asyncio.sleep(0.3)
            await cause()
            await publishing
            run.report.faults[name] = run.report.faults.get(name, 0) + 1
            if progress:
                done = f"{place + 1}/{len(faults)} faults, {time.monotonic() - began:.0f} s, last: {name:<15}"
                print(f"\r{done}", end="", file=sys.stderr, flush=True)
        for name, cause in quiet:
            await cause()
            await run.publish(plan.rate, 1.0)
            run.report.faults[name] = run.report.faults.get(name, 0) + 1
        report = await run.finish()
    report.seconds = round(time.monotonic() - began, 1)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("load", "restart", "faults"))
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="order of the faults, and which process they hit")
    parser.add_argument("--limit-s", type=float, default=3_000, help="faults: none begins after this time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="homing-rabbitmq-run-") as folder:
        if arguments.part == "faults":
            plan = Plan(restarts=arguments.restarts, kills=arguments.kills, limit_s=arguments.limit_s)
            made = run_faults(Path(folder), plan, arguments.seed, progress=True)
        elif arguments.part == "restart":
            made = run_load(Path(folder), ((50, 60),), restart_after_s=20)
        else:
            made = run_load(Path(folder), ((50, 60), (200, 15)))
        logging.disable()  # the library logs every broken connection
        report = asyncio.run(asyncio.wait_for(made, arguments.limit_s + _END_S))
    print(f"\nseed {arguments.seed}")
    for name, value in asdict(report).items():
        print(f"{name}: {value}")
    sys.exit(0 if report.good else 1)


if __name__ == "__main__":
    main()
