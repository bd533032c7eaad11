"""The settings of Kafka: what is refused, and that no credential appears in a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from homing.bridges.kafka import KafkaBridge
from homing.brokers.kafka import KafkaConnection, KafkaFailure, KafkaProducer, explain
from homing.compose.factories import BRIDGES, SINKS, TIMERS, build_from_settings
from homing.core.errors import ConfigError
from homing.sinks.kafka import KafkaSink
from homing.timers.kafka import KafkaTimer

SERVERS = "kafka-1:9092,kafka-2:9092"
PASSWORD = "tell-nobody"


def options(security: Mapping[str, str]) -> dict[str, Any]:
    return KafkaConnection(SERVERS, "homing", security).options()


@pytest.mark.parametrize(
    ("code", "problem", "advice"),
    [
        (KafkaError._SSL, "no TLS connection to the brokers (_SSL)", "set security.ca_file to "),
        (KafkaError._TRANSPORT, "no broker has confirmed a call about orders (_TRANSPORT)", "start the "),
        (
            KafkaError.SASL_AUTHENTICATION_FAILED,
            "the brokers do not let this account use orders (SASL_AUTHENTICATION_FAILED)",
            "correct security.username and ",
        ),
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            "the topic orders does not exist; create it, or set create_topics = true",
            "",
        ),
        (KafkaError.MSG_SIZE_TOO_LARGE, "the brokers refuse a record for orders (MSG_SIZE_TOO_LARGE)", None),
    ],
)
def test_an_error_of_the_library_becomes_a_sentence_with_advice(
    code: int, problem: str, advice: str | None
) -> None:
    found = explain(KafkaError(code), "orders")
    assert str(found) == problem
    if advice:
        assert (found.advice or "").startswith(advice)
    else:
        assert found.advice == advice


@pytest.mark.parametrize("servers", ["", "kafka", "kafka:9092;rm", [], ["kafka:9092", ""], "a:1," * 101])
def test_addresses_that_are_not_host_and_port_are_refused(servers: Any) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers: must be one or several addresses"):
        KafkaConnection(servers)


def test_a_list_of_addresses_is_the_same_as_one_text() -> None:
    one, other = KafkaConnection(SERVERS), KafkaConnection(["kafka-1:9092", " kafka-2:9092"])
    assert one.options() == other.options()
    assert KafkaConnection("[::1]:9092").options()["bootstrap.servers"] == "[::1]:9092"


def test_the_protocol_follows_from_the_credentials() -> None:
    assert options({})["security.protocol"] == "plaintext"
    assert options({"ca_file": "/ca.pem"})["security.protocol"] == "ssl"
    assert options({"username": "homing", "password": PASSWORD})["security.protocol"] == "sasl_ssl"
    plain = {"username": "homing", "password": PASSWORD, "protocol": "sasl_plaintext", "mechanism": "PLAIN"}
    assert options(plain)["security.protocol"] == "sasl_plaintext"


def test_credentials_come_from_the_environment_or_a_file_and_stay_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    (tmp_path / "key-password").write_text(f"{PASSWORD}\n")
    security = {
        "username": "homing",
        "password": "env:KAFKA_PASSWORD",
        "certificate_file": "/client.pem",
        "key_file": "/client.key",
        "key_password": f"file:{tmp_path}/key-password",
    }
    connection = KafkaConnection(SERVERS, "homing", security)
    found = connection.options()
    assert (found["sasl.password"], found["ssl.key.password"]) == (PASSWORD, PASSWORD)
    assert PASSWORD not in repr(connection)
    assert PASSWORD not in str(vars(connection))


@pytest.mark.parametrize(
    ("security", "problem"),
    [
        ({"usrname": "homing"}, "security: .*unknown field `usrname`.*username"),
        ({"mechanism": "GSSAPI", "username": "u", "password": "p"}, r"security: .*mechanism"),
        ({"username": "homing"}, "security.password: is missing"),
        ({"username": "homing", "password": "env:NOT_SET_HERE"}, "security.password: .*NOT_SET_HERE"),
        ({"protocol": "sasl_ssl"}, "security.username: is needed"),
        ({"protocol": "ssl", "username": "u", "password": "p"}, "security.username: is needed"),
        ({"certificate_file": "/client.pem"}, "security.certificate_file: and security.key_file"),
    ],
)
def test_wrong_security_settings_are_named(security: Mapping[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        options(security)


async def test_what_librdkafka_refuses_is_reported_without_the_value() -> None:
    security = {
        "ca_file": "/not/there.pem",
        "username": "homing",
        "password": PASSWORD,
    }
    with pytest.raises(KafkaFailure, match="does not accept the settings") as caught:
        await KafkaProducer(KafkaConnection("127.0.0.1:1", "homing", security)).open()
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["", ".", "a b", "x" * 250, "töpic"])
def test_names_that_kafka_does_not_allow_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="topic: is "):
        KafkaSink(SERVERS, topic=name)
    with pytest.raises(ConfigError, match="group: is "):
        KafkaBridge(SERVERS, group=name)


@pytest.mark.parametrize("steps", [[], ["10s"], ["0s", "5m", "1m"], ["0s", "0s"], ["0s", "soon"]])
def test_steps_begin_with_0_and_rise(steps: list[str]) -> None:
    with pytest.raises(ConfigError, match="steps: "):
        KafkaTimer(SERVERS, steps=steps)


def test_the_bridge_does_not_read_its_own_quarantine() -> None:
    with pytest.raises(ConfigError, match="quarantine_topic: must be another topic"):
        KafkaBridge(SERVERS, topic="a", quarantine_topic="a")
    with pytest.raises(
        ConfigError, match="group_protocol: is 'new'; it must be one of auto, consumer, classic"
    ):
        KafkaBridge(SERVERS, group_protocol="new")


@pytest.mark.parametrize(
    ("group", "known"), [("sinks", SINKS), ("timers", TIMERS), ("bridges", BRIDGES)], ids=str
)
def test_a_wrong_setting_is_named_with_its_table(group: str, known: Mapping[str, str]) -> None:
    table = {"bootstrap_servers": SERVERS, "security": {"username": "homing"}}
    with pytest.raises(ConfigError, match=rf"{group}.kafka.security.password: is missing"):
        build_from_settings(group, "kafka", "kafka", known, table)
    with pytest.raises(ConfigError, match=rf"{group}.kafka.topics: is not a setting of kafka"):
        build_from_settings(group, "kafka", "kafka", known, {"bootstrap_servers": SERVERS, "topics": "a"})
