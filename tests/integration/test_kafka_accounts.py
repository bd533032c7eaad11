"""A broker of another kind: it asks for a password, and does not have the group protocol of KIP-848."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Message

from homing.brokers.kafka import KafkaConnection, KafkaConsumer, KafkaProducer, NotAuthorized, Record
from support.kafka_broker import KafkaBroker, NoKafka
from support.postgres_servers import skip_or_fail
from support.private_postgres import free_port

PASSWORD = "tell-no-one"
PROPERTIES = f"""
listeners={{ports}},SASL_PLAINTEXT://127.0.0.1:ACCOUNTS
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:ACCOUNTS
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_homing="{PASSWORD}";
group.coordinator.rebalance.protocols=classic
"""


class Guarded(NamedTuple):
    """The broker, and the address at which it asks for a password."""

    broker: KafkaBroker
    address: str

    def connection(self, password: str) -> KafkaConnection:
        security = {"protocol": "sasl_plaintext", "mechanism": "PLAIN", "username": "homing"}
        return KafkaConnection(self.address, "homing", {**security, "password": password})


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    port = free_port()
    try:
        broker = KafkaBroker(properties=PROPERTIES.replace("ACCOUNTS", str(port)))
    except NoKafka:
        skip_or_fail("Kafka: install openjdk-17-jre-headless and maven")
    with broker:
        yield Guarded(broker, f"127.0.0.1:{port}")


async def read_any(consumer: KafkaConsumer) -> list[Message]:
    async with asyncio.timeout(60):
        while not (found := await consumer.call(consumer.poll, 10)):
            pass
    return found


@pytest.mark.slow
async def test_an_account_reads_and_writes_in_a_classic_group(guarded: Guarded) -> None:
    topic = guarded.broker.new_topic()
    connection = guarded.connection(PASSWORD)
    producer = KafkaProducer(connection)
    assert await producer.send([Record(topic, b"hello")]) == [None]
    await producer.close()
    async with KafkaConsumer(connection, topic, [topic]) as consumer:
        assert [one.value() for one in await read_any(consumer)] == [b"hello"]
        assert consumer.protocol_in_use == "classic"
        await consumer.commit({(topic, 0): 1})
    assert guarded.broker.committed(topic, topic) == 1


@pytest.mark.slow
async def test_a_wrong_password_is_reported_without_it(guarded: Guarded) -> None:
    connection = guarded.connection("a-wrong-one")
    with pytest.raises(NotAuthorized, match="do not let this account use events") as caught:
        await connection.require_topics(["events"], create=False)
    assert "a-wrong-one" not in f"{caught.value!r} {caught.value}"
    producer = KafkaProducer(connection, timeout_s=2)
    (failure,) = await producer.send([Record("events", b"hello")])
    assert isinstance(failure, NotAuthorized)
    await producer.close()
    async with KafkaConsumer(connection, "group", ["events"]) as consumer:
        with pytest.raises(NotAuthorized):
            await read_any(consumer)
