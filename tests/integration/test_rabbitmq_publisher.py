"""The publisher against a real RabbitMQ: every publish has the one result that is true of its message."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from homing.brokers.rabbitmq import BrokerUnavailable, NotThere, connect, read_server
from homing.brokers.rabbitmq_publisher import (
    OutgoingMessage,
    PublishResult,
    PublishStatus,
    RabbitMqPublisher,
)
from support.rabbitmq_server import PrivateRabbitMQ, RabbitQueues, rabbit_queues

S = PublishStatus
LONG_MS = 60_000


@pytest.fixture
async def publisher(rabbitmq_server: PrivateRabbitMQ) -> AsyncIterator[RabbitMqPublisher]:
    opened = RabbitMqPublisher(read_server(rabbitmq_server.url))
    yield opened
    await opened.close()


@pytest.fixture
async def queues(rabbitmq_server: PrivateRabbitMQ) -> AsyncIterator[RabbitQueues]:
    async with rabbit_queues(rabbitmq_server.url) as found:
        yield found


def to(queue: str, body: bytes = b"x", exchange: str = "") -> OutgoingMessage:
    return OutgoingMessage(body=body, routing_key=queue, exchange=exchange)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def publish_until_acked(publisher: RabbitMqPublisher, message: OutgoingMessage) -> None:
    async def acked() -> bool:
        return (await publisher.publish(message, 5_000)).status is S.ACKED

    await until(acked)


def statuses(results: list[PublishResult]) -> Counter[PublishStatus]:
    return Counter(result.status for result in results)


async def test_a_message_is_acked_and_in_its_queue(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    message = OutgoingMessage(
        body=b"\x00\xff",
        routing_key=name,
        headers={"x-homing-message-id": "m-1", "x-homing-retry-count": 3},
        content_type="application/octet-stream",
        priority=4,
        expiration_ms=600_000,
    )
    assert (await publisher.publish(message, LONG_MS)).status is S.ACKED
    (taken,) = await queues.take_all(name)
    assert (taken.body, taken.headers) == (b"\x00\xff", message.headers)
    assert taken.properties.delivery_mode == 2
    assert (taken.properties.priority, taken.properties.expiration) == (4, 600.0)


async def test_messages_without_a_route_are_returned_each_to_its_own_publish(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    targets = [f"{queue_prefix}nowhere" if number % 7 == 0 else name for number in range(200)]
    results = await asyncio.gather(*(publisher.publish(to(target), LONG_MS) for target in targets))
    assert [one.status is S.RETURNED for one in results] == [target != name for target in targets]
    assert [one.code for one in results if one.status is S.RETURNED] == ["no_route"] * 29
    assert await queues.count(name) == 171


async def test_a_missing_exchange_is_refused_and_harms_no_other_publish(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    missing = [to("k", exchange=f"{queue_prefix}missing{number % 3}") for number in range(30)]
    good = [to(name) for _ in range(100)]
    results = await asyncio.gather(*(publisher.publish(one, LONG_MS) for one in [*missing, *good]))
    assert {(one.status, one.code) for one in results[:30]} == {(S.REFUSED, "not_found")}
    assert statuses(results[30:]) == {S.ACKED: 100}
    assert await queues.count(name) == 100


async def test_an_exchange_deleted_in_between_is_noticed_and_never_acked(
    publisher: RabbitMqPublisher, rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    connection = await connect(read_server(rabbitmq_server.url))
    channel = await connection.channel()
    name = f"{queue_prefix}events"
    exchange = await channel.declare_exchange(name, "fanout", durable=True)
    queue = await channel.declare_queue(f"{queue_prefix}a", durable=True)
    await queue.bind(exchange)
    assert (await publisher.publish(to("", exchange=name), LONG_MS)).status is S.ACKED
    await exchange.delete()
    later = await asyncio.gather(*(publisher.publish(to("", exchange=name), LONG_MS) for _ in range(20)))
    assert statuses(later).keys() <= {S.AMBIGUOUS, S.REFUSED, S.AWAY}

    async def is_refused() -> bool:
        return (await publisher.publish(to("", exchange=name), LONG_MS)).code == "not_found"

    await until(is_refused)
    await connection.close()


async def test_one_message_that_is_refused_among_many_is_told_from_the_others(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    """RabbitMQ refuses an expiration beyond 32 bits, and closes the channel with everything on it."""
    name = f"{queue_prefix}a"
    await queues.declare(name)
    bad = OutgoingMessage(body=b"bad", routing_key=name, expiration_ms=2**40)
    waiting = {number: bad if number == 7 else to(name) for number in range(50)}
    refused: dict[int, PublishResult] = {}
    acked = 0
    async with asyncio.timeout(60):
        while waiting:
            sent = dict(waiting)
            results = await asyncio.gather(*(publisher.publish(one, LONG_MS) for one in sent.values()))
            for number, result in zip(sent, results, strict=True):
                if result.status in (S.ACKED, S.REFUSED):
                    del waiting[number]
                    acked += result.status is S.ACKED
                if result.status is S.REFUSED:
                    refused[number] = result
    assert refused.keys() == {7}
    assert acked == 49
    assert b"bad" not in {one.body for one in await queues.take_all(name)}


async def test_a_full_queue_that_rejects_messages_is_a_nack(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}full"
    await queues.declare(name, x_max_length=1, x_overflow="reject-publish", x_queue_type="classic")

    acked: list[bytes] = []

    async def is_nacked() -> bool:
        body = b"%d" % len(acked)
        status = (await publisher.publish(to(name, body), LONG_MS)).status
        assert status in (S.ACKED, S.NACKED)
        if status is S.ACKED:
            acked.append(body)
        return status is S.NACKED

    await until(is_nacked)
    assert [one.body for one in await queues.take_all(name)] == acked
    await publish_until_acked(publisher, to(name, b"later"))
    assert [one.body for one in await queues.take_all(name)] == [b"later"]


async def test_a_deleted_queue_is_a_return_and_a_new_one_is_used_again(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    assert (await publisher.publish(to(name), LONG_MS)).status is S.ACKED
    await queues.delete(name)
    assert (await publisher.publish(to(name), LONG_MS)).status is S.RETURNED
    await queues.declare(name)
    assert (await publisher.publish(to(name), LONG_MS)).status is S.ACKED


async def test_what_amqp_cannot_carry_is_refused_before_anything_is_written(
    publisher: RabbitMqPublisher, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    for bad in (to("k" * 300), OutgoingMessage(body=b"", routing_key=name, type="é" * 200)):
        result = await publisher.publish(bad, LONG_MS)
        assert (result.status, result.code) == (S.REFUSED, "unencodable")
    assert (await publisher.publish(to(name), LONG_MS)).status is S.ACKED


@pytest.mark.slow
async def test_no_message_is_lost_or_doubled_by_a_kill_except_the_ambiguous_ones(
    publisher: RabbitMqPublisher, rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    async with rabbit_queues(rabbitmq_server.url) as queues:
        await queues.declare(name, survive_kill=True)
    results: dict[bytes, PublishStatus] = {}
    over = asyncio.Event()

    async def publish_all() -> None:
        number = 0
        while not over.is_set():
            bodies = [b"%d" % one for one in range(number, number + 20)]
            number += 20
            said = await asyncio.gather(*(publisher.publish(to(name, body), 5_000) for body in bodies))
            results.update((body, one.status) for body, one in zip(bodies, said, strict=True))
            await asyncio.sleep(0.01)

    publishing = asyncio.create_task(publish_all())
    await until(lambda: _has(results, S.ACKED))
    await asyncio.to_thread(rabbitmq_server.kill)
    await until(lambda: _has(results, S.AWAY))
    await asyncio.to_thread(rabbitmq_server.start)
    before = len(results)
    await until(lambda: _has(dict(list(results.items())[before:]), S.ACKED))
    over.set()
    await publishing
    async with rabbit_queues(rabbitmq_server.url) as queues:
        there = Counter(one.body for one in await queues.take_all(name))
    assert set(results.values()) <= {S.ACKED, S.AWAY, S.AMBIGUOUS}
    assert {body for body, status in results.items() if status is S.ACKED} <= set(there)
    assert not {body for body, status in results.items() if status is S.AWAY} & set(there)
    assert set(there.values()) == {1}


async def _has(results: dict[bytes, PublishStatus], status: PublishStatus) -> bool:
    return status in results.values()


async def test_a_frozen_broker_makes_publishes_ambiguous_and_then_away_until_it_is_back(
    rabbitmq_server: PrivateRabbitMQ, queue_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "homing.rabbitmq")
    impatient = RabbitMqPublisher(read_server(rabbitmq_server.url, "sink", connect_timeout_ms=500))
    name = f"{queue_prefix}a"
    async with rabbit_queues(rabbitmq_server.url) as queues:
        await queues.declare(name)
        await publish_until_acked(impatient, to(name, b"before"))
        rabbitmq_server.freeze()
        try:
            first = await asyncio.gather(*(impatient.publish(to(name, b"lost?"), 300) for _ in range(5)))
            assert statuses(first) == {S.AMBIGUOUS: 5}

            async def is_away() -> bool:
                return (await impatient.publish(to(name, b"lost?"), 300)).status is S.AWAY

            await until(is_away)
            result = await impatient.publish(to(name, b"never"), 300)
            assert result.status is S.AWAY
        finally:
            rabbitmq_server.thaw()
        await publish_until_acked(impatient, to(name, b"after"))
        await impatient.close()
        there = [one.body for one in await queues.take_all(name)]
    place = f"RabbitMQ at 127.0.0.1:{rabbitmq_server.port}"
    assert caplog.messages[0] == f"homing sink: the connection to {place} broke"
    assert caplog.messages[-1] == f"homing sink: connected to {place} again"
    assert {b"before", b"after"} <= set(there) <= {b"before", b"lost?", b"after"}


@pytest.mark.slow
async def test_a_broker_short_of_memory_takes_nothing_and_publishes_are_not_buffered(
    publisher: RabbitMqPublisher, rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    await publish_until_acked(publisher, to(name))
    await asyncio.to_thread(rabbitmq_server.control, "set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        first = await publisher.publish(to(name, b"buffered"), 500)
        assert first.status in (S.AMBIGUOUS, S.AWAY)

        async def is_blocked() -> bool:
            return (await publisher.publish(to(name, b"buffered"), 500)).code == "blocked"

        await until(is_blocked)
        assert (await publisher.publish(to(name, b"never"), 500)).status is S.AWAY
        with pytest.raises(BrokerUnavailable, match="short of memory"):
            await publisher.check()
    finally:
        await asyncio.to_thread(rabbitmq_server.control, "set_vm_memory_high_watermark", "absolute", "512MB")
    await publish_until_acked(publisher, to(name, b"after"))
    await publisher.check()
    assert b"never" not in {one.body for one in await queues.take_all(name)}


async def test_tls_is_verified_and_may_use_a_client_certificate(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    name = f"{queue_prefix}a"
    await queues.declare(name)
    ca_file, client = str(rabbitmq_server.ca_file), str(rabbitmq_server.client_file)
    server = read_server(rabbitmq_server.tls_url, ca_file=ca_file, cert_file=client)
    trusted = RabbitMqPublisher(server)
    assert (await trusted.publish(to(name), LONG_MS)).status is S.ACKED
    await trusted.close()
    with pytest.raises(BrokerUnavailable) as caught:
        await connect(read_server(rabbitmq_server.tls_url))
    assert caught.value.kind == "tls"
    assert "certificate" in str(caught.value)


async def test_a_wrong_password_or_virtual_host_is_a_readable_error_without_the_password(
    rabbitmq_server: PrivateRabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = rabbitmq_server.url.replace("guest:guest", "guest:s3cret-word")
    stranger = RabbitMqPublisher(read_server(wrong))
    result = await stranger.publish(to("a"), 5_000)
    await stranger.close()
    assert (result.status, result.code) == (S.AWAY, "login")
    assert "refused the user name" in (result.error or "")
    with pytest.raises(BrokerUnavailable, match="virtual host 'nowhere'") as caught:
        await connect(read_server(f"{rabbitmq_server.url}nowhere"))
    assert caught.value.kind == "vhost"
    assert "s3cret-word" not in caplog.text
    assert "s3cret-word" not in (result.error or "")


async def test_a_connection_that_is_cancelled_while_it_opens_leaves_no_task_behind(rabbitmq_url: str) -> None:
    server = read_server(rabbitmq_url)
    turns = opened = 0
    while opened < 5:
        opening = asyncio.create_task(connect(server))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        try:
            connection = await opening
        except asyncio.CancelledError:
            turns += 1 + turns // 20
        else:
            opened += 1
            await connection.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, turns


async def test_missing_queues_and_exchanges_are_reported_with_their_names(
    rabbitmq_server: PrivateRabbitMQ, queues: RabbitQueues, queue_prefix: str
) -> None:
    connection = await connect(read_server(rabbitmq_server.url))
    await queues.declare(f"{queue_prefix}a")
    await connection.check_queue(f"{queue_prefix}a")
    await connection.check_exchange("amq.topic")
    await connection.check_exchange("")
    with pytest.raises(NotThere, match=r"the queue '.*none' does not exist"):
        await connection.check_queue(f"{queue_prefix}none")
    with pytest.raises(NotThere, match=r"the exchange '.*none' does not exist"):
        await connection.check_exchange(f"{queue_prefix}none")
    await connection.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        await connection.channel()


async def test_a_cancelled_publish_raises_and_a_closed_publisher_is_away(
    publisher: RabbitMqPublisher, rabbitmq_server: PrivateRabbitMQ, queue_prefix: str
) -> None:
    async with rabbit_queues(rabbitmq_server.url) as queues:
        await queues.declare(f"{queue_prefix}a")
    await publish_until_acked(publisher, to(f"{queue_prefix}a"))
    rabbitmq_server.freeze()
    publishing = asyncio.create_task(publisher.publish(to(f"{queue_prefix}a"), LONG_MS))
    await asyncio.sleep(0.05)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    rabbitmq_server.thaw()
    await publisher.close()
    assert (await publisher.publish(to("a"), 1_000)).status is S.AWAY


async def test_a_server_that_is_not_there_is_away() -> None:
    absent = RabbitMqPublisher(read_server("amqp://127.0.0.1:1/"))
    result = await absent.publish(to("a"), 5_000)
    await absent.close()
    assert (result.status, result.code) == (S.AWAY, "unreachable")
    assert result.error == "RabbitMQ at 127.0.0.1:1 cannot be reached: Connection refused"
