"""`homing bridge kafka` and what `homing doctor` says about Kafka, with a real broker."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import msgspec
import pytest

from support.cli_driver import SETTINGS, Cli
from support.kafka_broker import KafkaBroker

WITH_KAFKA = """
[bridges.orders]
kind = "kafka"
bootstrap_servers = "{address}"
topic = "{topic}"
quarantine_topic = "{topic}.quarantine"
group = "{topic}"
[bridges.orders.security]
protocol = "plaintext"
[timers]
low = "kafka"
[timers.kafka]
bootstrap_servers = "{address}"
topic = "{topic}.timers"
steps = ["0s"]
create_topics = true
[sinks.kafka]
bootstrap_servers = "{address}"
topic = "{topic}"
dead_letter_topic = "{topic}.dead"
"""


def prepared(folder: Path, kafka: KafkaBroker) -> tuple[Cli, str]:
    topic = kafka.new_topic("orders")
    more = WITH_KAFKA.format(address=kafka.address, topic=topic)
    (folder / "homing.toml").write_text(SETTINGS + more)
    cli = Cli(folder)
    cli.ok("db", "migrate")
    return cli, topic


def test_doctor_names_what_is_missing_in_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    cli, topic = prepared(tmp_path, kafka)

    def about_kafka() -> dict[str, tuple[bool, str, str]]:
        found = cli("doctor", "--json").json["checks"]
        kinds = [
            one for one in found if one["name"] in ("sink", "timer", "bridge") and "log" not in one["detail"]
        ]
        return {one["name"]: (one["ok"], one["detail"], one["advice"]) for one in kinds}

    found = about_kafka()
    assert found["bridge"] == (
        False,
        f"orders: the topic {topic}.quarantine does not exist; create it, or set create_topics = true",
        "",
    )
    assert not found["sink"][0]
    assert found["timer"] == (
        True,
        f"kafka: 1 broker, {topic}.timers.0s (to be created: {topic}.timers.0s)",
        "",
    )
    kafka.create_topic(f"{topic}.quarantine")
    kafka.create_topic(f"{topic}.dead")
    found = about_kafka()
    assert found["bridge"] == (True, f"orders: 1 broker, {topic}, {topic}.quarantine", "")
    assert found["sink"] == (True, f"kafka: 1 broker, {topic}, {topic}.dead", "")


@pytest.mark.parametrize("command", ["kafka", "run"])
def test_the_bridge_delivers_requests_of_a_topic_and_stops_cleanly(
    command: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    cli, topic = prepared(tmp_path, kafka)
    kafka.create_topic(f"{topic}.quarantine")
    kafka.create_topic(f"{topic}.dead")
    request = {"recipient": "ada@example.org", "channel": "email", "content": {"body": "Hi"}}
    kafka.produce(topic, msgspec.json.encode(request), b"{")
    bridge = cli.start("bridge", command, "orders")
    try:
        until = time.monotonic() + 60
        while kafka.committed(topic, topic) < 2:
            assert time.monotonic() < until, "the bridge does not commit"
            time.sleep(0.1)
    finally:
        bridge.send_signal(signal.SIGTERM)
        out, _ = bridge.communicate(timeout=60)
    assert bridge.returncode == 0
    assert "bridge orders and worker" in out
    assert len(kafka.records(f"{topic}.quarantine")) == 1
    assert [one["status"] for one in cli.ok("list", "--json").json["items"]] == ["sent"]


def test_a_bridge_that_is_not_configured_is_refused(kafka: KafkaBroker, tmp_path: Path) -> None:
    cli, _ = prepared(tmp_path, kafka)
    refused = cli("bridge", "kafka")
    assert refused.code != 0
    assert "there is no bridge 'kafka'; the settings have orders" in refused.err
