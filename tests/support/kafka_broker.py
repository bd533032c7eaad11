"""A private Apache Kafka broker that tests can kill, stop and start again.

`python tests/support/kafka_broker.py` prepares it: Maven fetches the jars once, into the user's cache folder,
and Kafka's own tool writes the feature levels of a new cluster. A broker itself is one JVM. Its data folder
is formatted by writing two small files, so that no second JVM is needed per start.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.guarded_folder import GuardedFolder, suspend_all
from support.postgres_servers import skip_or_fail
from support.private_postgres import free_port

_POM = Path(__file__).with_name("kafka_pom.xml")
_VERSION = "4.1.0"
_PATIENCE_S = 60
_PREPARE_S = 300
_FLAGS = (
    *("-Xmx256m", "-Xms64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
num.network.threads=1
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=2097152
broker.session.timeout.ms=2500
broker.heartbeat.interval.ms=200
{more}
"""
_NO_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Errors of a broker that has just started and does not know its groups yet."""
_QUICK = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


class NoKafka(Exception):
    """Java, Maven or the jars of Kafka are missing on this machine."""


class KafkaBroker:
    """One broker with a data folder and ports of its own. It ends with this process.

    `kill` and `start` leave its data and its address as they are.
    """

    def __init__(self, *, properties: str = "", jars: Path | None = None) -> None:
        """`properties` are more lines of server.properties. In them, `{ports}` stands for the listeners."""
        self._jars = jars or prepared_folder()
        self._folder = GuardedFolder("homing-kafka-", unprivileged=False)
        self.port, controller_port = free_port(), free_port()
        data = self._folder.path / "data"
        data.mkdir()
        ports = f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}"
        more = properties.replace("{ports}", ports).replace("{port}", str(self.port))
        (self._folder.path / "server.properties").write_text(
            _PROPERTIES.format(port=self.port, controller_port=controller_port, data=data, more=more)
        )
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={_kafka_uuid()}\nnode.id=1\ndirectory.id={_kafka_uuid()}\n"
        )
        shutil.copy(self._jars / "bootstrap.checkpoint", data)
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: AdminClient | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self._folder.path / "server.log").read_text(errors="replace")

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.address, **_QUICK})
        return self._admin

    def __enter__(self) -> Self:
        self.start()
        self.admin.describe_consumer_groups(["warm"])["warm"].exception(_PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._admin = None
        self._folder.close()

    def start(self) -> None:
        """Starts the broker, and waits until it names itself and a controller."""
        assert self._process is None, "the broker runs already"
        self._process = self._folder.start(
            _java(self._jars, "kafka.Kafka", str(self._folder.path / "server.properties")), "server.log"
        )
        until = time.monotonic() + _PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, self.log[-2000:]
            assert time.monotonic() < until, self.log[-2000:]
            time.sleep(0.02)

    def kill(self) -> None:
        """Kills the broker with `kill -9`, if it runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the broker with SIGTERM, if it runs."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Suspends the broker: connections are accepted and nothing is answered."""
        assert self._process is not None
        suspend_all([self._process.pid])

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Creates a topic, and returns its name. Underscores in the names of settings stand for dots."""
        options = {key.replace("_", "."): value for key, value in config.items()}
        made = self.admin.create_topics([NewTopic(name, partitions, 1, config=options)])
        made[name].result(_PATIENCE_S)
        _wait(lambda: name in self.admin.list_topics(timeout=5).topics, f"topic {name}")
        return name

    def new_topic(self, prefix: str = "t", partitions: int = 1, **config: str) -> str:
        """Creates a topic with a name that no other test uses."""
        return self.create_topic(f"{prefix}.{uuid.uuid4().hex[:12]}", partitions, **config)

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(_PATIENCE_S)

    def produce(self, topic: str, *values: bytes | None, **options: Any) -> None:
        """Writes records, and waits until the broker has confirmed them."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0, **_QUICK})
        failed: list[object] = []

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            producer.produce(topic, value, on_delivery=report, **options)
        assert producer.flush(_PATIENCE_S) == 0, "records were not confirmed in time"
        assert not failed, failed[0]

    def records(self, topic: str) -> list[Message]:
        """Returns all records of a topic, partition by partition."""
        options = {"bootstrap.servers": self.address, "group.id": "reader", "enable.auto.commit": False}
        consumer = Consumer({**options, "fetch.wait.max.ms": 10, **_QUICK})
        try:
            found: list[Message] = []
            for partition in consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions:
                low, high = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=_PATIENCE_S
                )
                consumer.assign([TopicPartition(topic, partition, low)])
                until = time.monotonic() + _PATIENCE_S
                position = low
                while position < high:
                    assert time.monotonic() < until, f"{topic}: {position} of {high}"
                    message = consumer.poll(0.5)
                    if message is not None and message.error() is None:
                        found.append(message)
                        position = (message.offset() or 0) + 1
            return found
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> int:
        """Returns the number of records that a group has committed, over all partitions of a topic."""
        partitions = self.admin.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
        places = [TopicPartition(topic, one) for one in partitions]
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, **_QUICK})
        until = time.monotonic() + _PATIENCE_S
        try:
            while True:
                try:
                    return sum(max(0, one.offset) for one in consumer.committed(places, timeout=_PATIENCE_S))
                except KafkaException as error:
                    if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() > until:
                        raise
                time.sleep(0.05)
        finally:
            consumer.close()

    def _answers(self) -> bool:
        try:
            found = self.admin.list_topics(timeout=0.5)
        except KafkaException:
            return False
        return bool(found.brokers) and found.controller_id in found.brokers

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            self._folder.ended(process)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """The broker of this test process. It runs at the beginning of each test."""
    try:
        broker = KafkaBroker()
    except NoKafka:
        skip_or_fail("Kafka: install openjdk-17-jre-headless and maven")
    with broker:
        yield broker


def prepared_folder() -> Path:
    """Returns the folder with the jars. The first call on a machine fetches them, in about half a minute."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "homing-tests" / f"kafka-{_VERSION}"
    if (folder / "ready").exists():
        return folder
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise NoKafka
    with _locked(folder):
        if not (folder / "ready").exists():
            _prepare(folder)
    return folder


def _prepare(folder: Path) -> None:
    """Fills the folder: the jars, the feature levels of a new cluster, and an archive of parsed classes."""
    fetch = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
    try:
        _run([*fetch, f"-DoutputDirectory={folder}", f"-DbuildDirectory={folder / 'target'}"])
    except subprocess.CalledProcessError as error:
        raise NoKafka(error.stdout[-500:]) from None
    with tempfile.TemporaryDirectory() as name:
        properties = Path(name) / "server.properties"
        properties.write_text(_PROPERTIES.format(port=9, controller_port=10, data=f"{name}/data", more=""))
        tool = ("kafka.tools.StorageTool", "format", "--config", str(properties))
        _run(_java(folder, *tool, "--cluster-id", _kafka_uuid()))
        shutil.copy(f"{name}/data/bootstrap.checkpoint", folder)
    with KafkaBroker(jars=folder) as broker:  # its archive halves the processor time of every later start
        broker.stop()
    (folder / "ready").touch()


def _java(jars: Path, *arguments: str) -> list[str]:
    """Returns the command that runs a class of Kafka."""
    archive = jars / "classes.jsa"
    # -Xrs: SIGQUIT, which the guard sends, ends the broker instead of printing its threads.
    options = [f"-XX:SharedArchiveFile={archive}", "-Xrs"]
    if not archive.exists():
        options = [f"-XX:ArchiveClassesAtExit={archive}"] if arguments[0] == "kafka.Kafka" else []
    classpath = ":".join(str(one) for one in sorted(jars.glob("*.jar")))
    return ["java", *_FLAGS, *options, "-cp", classpath, *arguments]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time prepare the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PREPARE_S,
    )


def _wait(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"{what} does not appear"
        time.sleep(0.02)


def _kafka_uuid() -> str:
    """Returns a UUID as Kafka writes it. A dash at the beginning would look like an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text if not text.startswith("-") else _kafka_uuid()


if __name__ == "__main__":
    print(prepared_folder())
