"""The engine with a real RabbitMQ: the provider for queues and the sink for events, through broker faults."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from homing import Homing, Notification, Status
from homing.bridges.rabbitmq import RabbitMqBridge
from homing.brokers.rabbitmq import BrokerUnavailable, NotThere, connect, read_server
from homing.core.errors import EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import Event
from homing.core.notifications import Reason
from homing.providers.rabbitmq.provider import RabbitMqProvider
from homing.sinks.manual_review import ManualReviewSink
from homing.sinks.rabbitmq import RabbitMqSink
from support.rabbitmq_server import PrivateRabbitMQ, RabbitQueues, rabbit_queues

RULES = """
[[rules]]
name = "fast"
base_ms = 50
cap_ms = 200
jitter = "none"
max_attempts = 1
timeout_ms = 2000
"""
"""A single attempt: every retry that happens is one that does not count."""


@pytest.fixture
async def queues(rabbitmq_server: PrivateRabbitMQ) -> AsyncIterator[RabbitQueues]:
    async with rabbit_queues(rabbitmq_server.url) as found:
        yield found


def engine(folder: Path, url: str, more: str = "") -> Homing:
    path = folder / "homing.toml"
    path.write_text(
        f'store = "memory:"\n[providers.rabbitmq]\nurl = "{url}"\nconnect_timeout_ms = 2000\n'
        f'breaker = "off"\n{more}\n{RULES}'
    )
    return Homing(config_file=path, worker=True)


async def send(homing: Homing, queue: str, **fields: Any) -> str:
    content = fields.pop("content", {"data": {"n": 1}})
    return (await homing.send({"url": queue}, channel="queue", content=content, **fields)).id


async def ended(homing: Homing, id: str) -> Notification:
    return await homing.wait(id, timeout_ms=60_000)


async def uncounted(homing: Homing, ids: list[str]) -> None:
    """Waits until a notification has an attempt that does not count."""
    async with asyncio.timeout(60):
        while not any([(await homing.get(id)).moves for id in ids]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_payload_reaches_its_queue_byte_for_byte_with_its_headers(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name, payload = f"{queue_prefix}orders", bytes(range(256))
    await queues.declare(name)
    async with engine(tmp_path, rabbitmq_server.url) as homing:
        content = {"data": {"payload": base64.b64encode(payload).decode()}}
        metadata = {"message_id": "task-7", "retry_count": 1, "error_reason": "timeout"}
        id = await send(homing, name, content=content, metadata=metadata)
        done = await ended(homing, id)
    assert done.status is Status.SENT
    (taken,) = await queues.take_all(name)
    assert taken.body == payload
    assert taken.headers == {
        "x-homing-message-id": "task-7",
        "x-homing-notification-id": id,
        "x-homing-retry-count": 2,
        "x-homing-reason": "timeout",
    }


async def test_a_missing_queue_or_exchange_makes_a_dead_letter_with_the_reason(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    async with engine(tmp_path, rabbitmq_server.url) as homing:
        queue = await ended(homing, await send(homing, f"{queue_prefix}none"))
        exchange = await ended(homing, await send(homing, f"exchange://{queue_prefix}none/key"))
    assert (queue.status, queue.reason) == (Status.FAILED, Reason.BAD_RECIPIENT)
    assert queue.last_error == f"there is no queue '{queue_prefix}none'"
    assert (exchange.status, exchange.reason) == (Status.FAILED, Reason.BAD_RECIPIENT)
    assert exchange.last_error == f"the exchange '{queue_prefix}none' does not exist"


async def test_a_full_queue_is_tried_again_until_there_is_room_although_one_attempt_is_allowed(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}full"
    await queues.declare(name, x_queue_type="classic", x_max_length=1, x_overflow="reject-publish")
    async with engine(tmp_path, rabbitmq_server.url) as homing:
        first = [await send(homing, name) for _ in range(2)]
        await uncounted(homing, first)
        await queues.purge(name)
        waiting = [await homing.get(id) for id in first]
        async with asyncio.timeout(60):
            while any(one.status is not Status.SENT for one in waiting):
                await queues.purge(name)
                await asyncio.sleep(0.05)
                waiting = [await homing.get(id) for id in first]
    assert max(one.moves for one in waiting) >= 1
    assert all(one.attempt_count - one.moves == 1 for one in waiting)


@pytest.mark.slow
async def test_nothing_is_lost_while_the_broker_is_killed_and_frozen_although_one_attempt_is_allowed(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    name = f"{queue_prefix}orders"
    async with rabbit_queues(rabbitmq_server.url) as queues:
        await queues.declare(name, survive_kill=True)
    ids: list[str] = []
    async with engine(tmp_path, rabbitmq_server.url) as homing:

        async def send_some() -> None:
            ids.extend([await send(homing, name) for _ in range(30)])

        await send_some()
        await ended(homing, ids[0])
        rabbitmq_server.freeze()
        await send_some()
        await asyncio.sleep(0.3)
        rabbitmq_server.thaw()
        await send_some()
        await asyncio.to_thread(rabbitmq_server.kill)
        await send_some()
        await uncounted(homing, ids[-30:])
        await asyncio.to_thread(rabbitmq_server.start)
        await send_some()
        done = [await ended(homing, id) for id in ids]
        histories = [await homing.history(id) for id in ids]
        doubtful = {
            id
            for id, history in zip(ids, histories, strict=True)
            if "ambiguous" in {attempt.outcome for attempt in history.attempts}
        }
    assert {one.status for one in done} == {Status.SENT}
    async with rabbit_queues(rabbitmq_server.url) as queues:
        there = Counter(one.headers["x-homing-message-id"] for one in await queues.take_all(name))
    assert set(there) == set(ids)
    assert {id for id, number in there.items() if number > 1} <= doubtful


# The sink -------------------------------------------------------------------------------------------


def event(number: int, notification: str | None = "n-1", **fields: Any) -> Event:
    payload = {"eventType": "StatusChanged", "notificationId": notification, "number": number}
    return Event(
        id=f"{notification}:{number}",
        name="StatusChanged",
        tenant="acme",
        at=1_700_000_000_000,
        notification_id=notification,
        payload={**payload, **fields},
    )


async def test_events_are_published_in_order_per_notification_with_id_and_headers(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}events"
    await queues.declare(name)
    sink = RabbitMqSink(url=rabbitmq_server.url, queue=name)
    await sink.open()
    events = [event(number, f"n-{number % 5}") for number in range(100)]
    await sink.publish(events)
    await sink.close()
    taken = await queues.take_all(name)
    for notification in range(5):
        numbers = [
            body["number"]
            for one in taken
            if (body := json.loads(one.body))["notificationId"] == f"n-{notification}"
        ]
        assert numbers == list(range(notification, 100, 5))
    first = next(one for one in taken if one.headers["homing-event-id"] == "n-0:0")
    assert first.headers["homing-event-type"] == first.properties.type == "StatusChanged"
    assert json.loads(first.body)["tenantId"] == "acme"
    assert first.properties.content_type == "application/json"


async def test_the_routing_key_of_an_exchange_is_the_event_s_name_or_as_configured(
    rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    connection = await connect(read_server(rabbitmq_server.url))
    channel = await connection.channel()
    exchange = await channel.declare_exchange(f"{queue_prefix}x", "topic", durable=True)
    queue = await channel.declare_queue(f"{queue_prefix}q", durable=True)
    await queue.bind(exchange, "StatusChanged")
    await queue.bind(exchange, "homing.acme.*")
    for key in ("{event}", "homing.{tenant}.{event}"):
        sink = RabbitMqSink(url=rabbitmq_server.url, exchange=f"{queue_prefix}x", routing_key=key)
        await sink.open()
        await sink.publish([event(1)])
        await sink.close()
    async with rabbit_queues(rabbitmq_server.url) as queues:
        taken = await queues.take_all(f"{queue_prefix}q")
    assert [one.properties.routing_key for one in taken] == ["StatusChanged", "homing.acme.StatusChanged"]
    await exchange.delete()
    await connection.close()


async def test_an_event_without_a_queue_raises_and_nothing_after_it_is_published(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}events"
    await queues.declare(name)
    sink = RabbitMqSink(url=rabbitmq_server.url, queue=name)
    await sink.open()
    await queues.delete(name)
    with pytest.raises(SinkUnavailable, match="there is no queue") as caught:
        await sink.publish([event(1), event(2)])
    assert caught.value.published == frozenset()
    await queues.declare(name)
    await sink.publish([event(1), event(2)])
    assert [json.loads(one.body)["number"] for one in await queues.take_all(name)] == [1, 2]
    await sink.close()


async def test_a_failure_says_which_events_were_confirmed_nevertheless(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    connection = await connect(read_server(rabbitmq_server.url))
    channel = await connection.channel()
    exchange = await channel.declare_exchange(f"{queue_prefix}x", "direct", durable=True)
    queue = await channel.declare_queue(f"{queue_prefix}q", durable=True)
    await queue.bind(exchange, "acme")
    sink = RabbitMqSink(
        url=rabbitmq_server.url, exchange=f"{queue_prefix}x", routing_key="{tenant}", timeout_ms=10_000
    )
    stray = Event(id="stray", name="StatusChanged", tenant="other", at=1, notification_id="n-9")
    with pytest.raises(EventsRefused) as caught:
        await sink.publish([event(1, "n-1"), stray, event(1, "n-2")])
    assert caught.value.refused == {"stray"}
    assert caught.value.published == {"n-1:1", "n-2:1"}
    ids = [one.headers["homing-event-id"] for one in await queues.take_all(f"{queue_prefix}q")]
    assert sorted(ids) == ["n-1:1", "n-2:1"]
    await sink.close()
    await exchange.delete()
    await connection.close()


async def test_a_sink_opens_only_if_its_queue_or_exchange_exists(
    rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    none, url = f"{queue_prefix}none", rabbitmq_server.url
    for sink in (RabbitMqSink(url=url, queue=none), RabbitMqSink(url=url, exchange=none)):
        with pytest.raises(NotThere, match="does not exist"):
            await sink.open()
        await sink.close()


async def test_a_diagnosis_describes_the_server_or_says_what_is_missing(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name, url = f"{queue_prefix}events", rabbitmq_server.url
    await queues.declare(name)
    told = await RabbitMqSink(url=url, queue=name).diagnose()
    assert told.startswith("RabbitMQ ")
    assert told.endswith(f" at 127.0.0.1:{rabbitmq_server.port}, without TLS; the queue '{name}' exists")
    with pytest.raises(NotThere, match="does not exist") as missing:
        await RabbitMqSink(url=url, exchange=name).diagnose()
    assert missing.value.advice == "create it, or correct its name"
    assert "without TLS" in await RabbitMqProvider(url=url).diagnose()
    with pytest.raises(NotThere, match=f"the queue '{name}.quarantine' does not exist") as missing:
        await RabbitMqBridge(url=url, queue=name, manual_review_queue="").diagnose()
    assert "with --declare" in (missing.value.advice or "")
    assert "RabbitMQ" in await RabbitMqBridge(url=url, queue=name, declare=True).diagnose()
    with pytest.raises(NotThere, match="does not exist") as missing:
        await ManualReviewSink(url=url, queue=f"{name}.review").diagnose()
    assert "with --declare" in (missing.value.advice or "")
    with pytest.raises(BrokerUnavailable, match="Connection refused") as away:
        await RabbitMqProvider(url="amqp://127.0.0.1:1/").diagnose()
    assert away.value.advice == "start RabbitMQ, or correct the host and port in url"


async def test_an_event_that_amqp_cannot_carry_is_refused_as_such(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}events"
    await queues.declare(name)
    sink = RabbitMqSink(url=rabbitmq_server.url, queue=name)
    bad = Event(id="e" * 300, name="é" * 200, tenant="acme", at=1)
    with pytest.raises(EventsRefused) as caught:
        await sink.publish([bad])
    assert caught.value.refused == {bad.id}
    await sink.close()


@pytest.mark.slow
async def test_every_event_arrives_in_order_after_the_broker_was_killed(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    orders, events = f"{queue_prefix}orders", f"{queue_prefix}events"
    async with rabbit_queues(rabbitmq_server.url) as queues:
        await queues.declare(orders, events, survive_kill=True)
    more = (
        f'[sinks.rabbitmq]\nurl = "{rabbitmq_server.url}"\nqueue = "{events}"\n'
        'connect_timeout_ms = 2000\nevents = ["StatusChanged"]\n'
    )
    async with engine(tmp_path, rabbitmq_server.url, more) as homing:
        ids = [await send(homing, orders) for _ in range(20)]
        await ended(homing, ids[-1])
        await asyncio.to_thread(rabbitmq_server.kill)
        ids += [await send(homing, orders) for _ in range(20)]
        await asyncio.to_thread(rabbitmq_server.start)
        for id in ids:
            assert (await ended(homing, id)).status is Status.SENT
        async with rabbit_queues(rabbitmq_server.url) as queues, asyncio.timeout(60):
            statuses: dict[str, list[str]] = {id: [] for id in ids}
            while not all(known[-1:] == ["sent"] for known in statuses.values()):
                for one in await queues.take_all(events):
                    body = json.loads(one.body)
                    statuses[body["notificationId"]].append(body["status"])
                await asyncio.sleep(0.05)
    order = ["pending", "sending", "retrying", "sent"]
    for known in statuses.values():
        assert known[0] == "pending"
        assert "sent" not in known[: known.index("sent")]
        assert set(known) <= set(order)
