"""Connections to Kafka: the settings that sink, timer and bridge share, a producer and a consumer.

Both wrap a client of librdkafka. The producer has a thread that reads its delivery reports, and the consumer
has a thread that makes all of its calls, because these block. Neither ever blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self, TypeVar, cast, get_args

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct, ValidationError, convert

from homing.core.errors import ConfigError, HomingError
from homing.net.secrets import Secret, read_secret

log = logging.getLogger("homing.kafka")

_T = TypeVar("_T")

REPORT_TIMEOUT_S = 10
"""Time after which a record that the brokers have not confirmed counts as failed."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"[A-Za-z0-9._-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5}")
_MAX_SERVERS = 100
_METADATA_TIMEOUT_S = 4
_PATIENCE_S = 30
"""Time for which a consumer waits for brokers that do not answer, and stays in its group. A new member would
have to wait until the old one has expired, which takes 45 s."""
_KEPT_ERRORS = 10
_POLL_S = 0.5
"""Longest wait of a thread for an event of librdkafka, and so the longest delay of `close`."""

GroupProtocol = Literal["auto", "consumer", "classic"]


# Errors ---------------------------------------------------------------------------------------------


class KafkaFailure(HomingError):
    """A call of Kafka failed. The text never contains a credential."""

    code = "KAFKA_FAILED"


class BrokersUnavailable(KafkaFailure, ConnectionError):
    """No broker has answered in time. A record may have been written nevertheless."""

    advice = "start the brokers, or correct bootstrap_servers and security.protocol"


class NotAuthorized(KafkaFailure, PermissionError):
    """The brokers refuse the credentials, or the account may not use the topic or group."""

    advice = "correct security.username and security.password, or give the account the rights"


class NoTls(BrokersUnavailable):
    """The brokers and we do not agree on TLS, usually because of a certificate."""

    advice = (
        "set security.ca_file to the certificate of the brokers' authority, and use host names that it covers"
    )


class UnknownTopic(KafkaFailure):
    """A topic does not exist."""

    advice = ""  # `_missing_text` says it


class RecordRefused(KafkaFailure, ValueError):
    """The brokers refuse a record because of its size or content."""


_UNKNOWN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
}
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError._AUTHENTICATION,
}
_EXPLAINING = {*_FORBIDDEN, KafkaError._SSL}
"""Errors of a connection that explain why a call got no answer."""
_NO_ANSWER = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
}
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,
}


def _lacks_protocol(error: KafkaError) -> bool:
    """Returns True for the answer of brokers without the group protocol of KIP-848.

    librdkafka calls it fatal, and has the broker's answer only in the text.
    """
    return error.code() == KafkaError._FATAL and "ConsumerGroupHeartbeat" in error.str()


def explain(error: KafkaError, about: str, causes: Iterable[KafkaError] = ()) -> KafkaFailure:
    """Returns an error of librdkafka as one of ours. `about` is a topic or a group.

    `causes` are the last errors of the connection, which explain why there was no answer in time.
    """
    if error.code() in _NO_ANSWER:
        error = next((one for one in causes if one.code() in _EXPLAINING), error)
    code, name = error.code(), error.name()
    if code in _UNKNOWN:
        return UnknownTopic(_missing_text([about]))
    if code in _FORBIDDEN:
        return NotAuthorized(f"the brokers do not let this account use {about} ({name})")
    if code == KafkaError._SSL:
        return NoTls(f"no TLS connection to the brokers ({name})")
    if code in _REFUSED:
        return RecordRefused(f"the brokers refuse a record for {about} ({name})")
    return BrokersUnavailable(f"no broker has confirmed a call about {about} ({name})")


# Settings -------------------------------------------------------------------------------------------


class _Security(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `security` of a sink, timer or bridge."""

    protocol: Literal["", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = ""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str = ""
    password: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""


class KafkaConnection:
    """How to reach the brokers, checked. Raises `ConfigError` with the name of the setting."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        client_id: str = "homing",
        security: Mapping[str, str] | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "bootstrap.servers": _servers(bootstrap_servers),
            "client.id": client_id,
            "log_level": 0,  # what matters arrives by `error_cb`
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "retry.backoff.ms": 50,
            "socket.keepalive.enable": True,
            **_security_options(security or {}),
        }

    def __repr__(self) -> str:
        return f"KafkaConnection({self._options['bootstrap.servers']})"

    def options(self, **more: Any) -> dict[str, Any]:
        """Returns the options of a client. Underscores in the names stand for dots."""
        revealed = {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in self._options.items()
        }
        return {**revealed, **{name.replace("_", "."): value for name, value in more.items()}}

    async def require_topics(self, names: Sequence[str], *, create: bool) -> None:
        """Raises `UnknownTopic` if a topic does not exist. With `create`, creates it instead.

        A new topic has as many partitions and replicas as the brokers give it by default.
        """
        await asyncio.to_thread(self._require_topics, names, create=create)

    def _require_topics(self, names: Sequence[str], *, create: bool) -> None:
        errors: deque[KafkaError] = deque(maxlen=_KEPT_ERRORS)
        client = _built(AdminClient, {**self.options(), "error_cb": errors.append})
        missing = find_missing(client, names, errors)
        if not missing:
            return
        if not create:
            raise UnknownTopic(_missing_text(missing))
        asked = client.create_topics([NewTopic(name, -1, -1) for name in missing])
        for name, answer in asked.items():
            try:
                answer.result(_METADATA_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise explain(error.args[0], name) from None

    async def diagnose(self, names: Sequence[str], *, may_create: bool) -> str:
        """Describes the cluster, for `homing doctor`. Raises if it does not answer or lacks a topic."""
        return await asyncio.to_thread(self._diagnose, names, may_create=may_create)

    def _diagnose(self, names: Sequence[str], *, may_create: bool) -> str:
        errors: deque[KafkaError] = deque(maxlen=_KEPT_ERRORS)
        client = _built(AdminClient, {**self.options(), "error_cb": errors.append})
        missing = find_missing(client, names, errors)
        if missing and not may_create:
            raise UnknownTopic(_missing_text(missing))
        brokers = len(client.list_topics(names[0], timeout=_METADATA_TIMEOUT_S).brokers)
        text = f"{brokers} broker{'s' if brokers > 1 else ''}, {', '.join(names)}"
        return f"{text} (to be created: {', '.join(missing)})" if missing else text


def _missing_text(names: Sequence[str]) -> str:
    if names[1:]:
        return f"the topics {', '.join(names)} do not exist; create them, or set create_topics = true"
    return f"the topic {names[0]} does not exist; create it, or set create_topics = true"


def check_topic(field: str, name: str) -> str:
    """Returns the name of a topic. Raises `ConfigError` if Kafka allows no such name."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        problem = "must be 1 to 249 letters, digits, dots, dashes or underscores"
        raise ConfigError(field, f"is {name[:250]!r}; it {problem}")
    return name


def read_protocol(given: str) -> GroupProtocol:
    """Returns the setting `group_protocol`. Raises `ConfigError` if there is no such protocol."""
    found = next((one for one in get_args(GroupProtocol) if one == given), None)
    if found is None:
        raise ConfigError(
            "group_protocol", f"is {given!r}; it must be one of {', '.join(get_args(GroupProtocol))}"
        )
    return cast(GroupProtocol, found)


def find_missing(client: Any, names: Iterable[str], errors: Iterable[KafkaError] = ()) -> list[str]:
    """Returns the topics that do not exist. `client` is a client of librdkafka; this call blocks."""
    missing = []
    for name in names:
        try:
            found = client.list_topics(name, timeout=_METADATA_TIMEOUT_S).topics.get(name)
        except KafkaException as error:
            if isinstance(client, AdminClient):
                client.poll(0)  # fills `errors`
            raise explain(error.args[0], name, tuple(errors)) from None
        if found is None or (found.error is not None and found.error.code() in _UNKNOWN):
            missing.append(name)
        elif found.error is not None and found.error.code() in _FORBIDDEN:
            raise explain(found.error, name)
    return missing


def _servers(given: str | Sequence[str]) -> str:
    servers = [one.strip() for one in (given.split(",") if isinstance(given, str) else given)]
    if not servers or len(servers) > _MAX_SERVERS or not all(map(_SERVER.fullmatch, servers)):
        problem = 'must be one or several addresses such as "kafka-1:9092,kafka-2:9092"'
        raise ConfigError("bootstrap_servers", problem)
    return ",".join(servers)


def _security_options(given: Mapping[str, str]) -> dict[str, Any]:
    try:
        own = convert(dict(given), _Security)
    except ValidationError as error:
        names = ", ".join(_Security.__struct_fields__)
        # The text of the error has no value, only the name and the choices.
        raise ConfigError("security", f"{error}; the settings are {names}") from None
    with_tls = bool(own.ca_file or own.certificate_file)
    protocol = own.protocol or ("sasl_ssl" if own.username else "ssl" if with_tls else "plaintext")
    if protocol.startswith("sasl") != bool(own.username):
        raise ConfigError(
            "security.username", "is needed with the protocols sasl_ssl and sasl_plaintext alone"
        )
    if bool(own.certificate_file) != bool(own.key_file):
        raise ConfigError("security.certificate_file", "and security.key_file are only usable together")
    found: dict[str, Any] = {"security.protocol": protocol}
    if own.username:
        found |= {
            "sasl.mechanism": own.mechanism,
            "sasl.username": own.username,
            "sasl.password": read_secret("security.password", own.password),
        }
    for name, value in (
        ("ssl.ca.location", own.ca_file),
        ("ssl.certificate.location", own.certificate_file),
        ("ssl.key.location", own.key_file),
    ):
        if value:
            found[name] = value
    if own.key_password:
        found["ssl.key.password"] = read_secret("security.key_password", own.key_password)
    return found


def _built(kind: Callable[[dict[str, Any]], _T], options: dict[str, Any]) -> _T:
    """Builds a client. Its own errors are replaced, because they may contain a setting's value."""
    try:
        return kind(options)
    except KafkaException as error:
        name = error.args[0].name()
        problem = f"librdkafka does not accept the settings ({name}); check security and its files"
        raise KafkaFailure(problem) from None


# Producer -------------------------------------------------------------------------------------------


class Record(Struct, frozen=True):
    """A record to write."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class _Reports:
    """The delivery reports of one call of `send`."""

    def __init__(self, number: int) -> None:
        self.errors: list[KafkaFailure | None] = [None] * number
        self.left = number
        self.complete = asyncio.get_running_loop().create_future()

    def add(self, place: int, failure: KafkaFailure | None) -> None:
        self.errors[place] = failure
        self.left -= 1
        if not self.left and not self.complete.done():
            self.complete.set_result(None)


class KafkaProducer:
    """A producer that waits for all replicas.

    Its methods belong to the event loop. A thread reads the delivery reports and hands them over.
    """

    def __init__(
        self, connection: KafkaConnection, *, timeout_s: float = REPORT_TIMEOUT_S, idempotent: bool = True
    ) -> None:
        """Creates a producer. If it is not `idempotent`, it may repeat records, but starts sooner."""
        self._options = connection.options(
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=2,
            message_timeout_ms=int(1000 * timeout_s),
            topic_metadata_propagation_max_ms=2_000,
            queue_buffering_max_messages=10_000,
            queue_buffering_max_kbytes=65_536,
            compression_type="none",
        )
        self._timeout_s = timeout_s
        self._client: Producer | None = None
        self._poller: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._reported: deque[tuple[_Reports, int, KafkaFailure | None]] = deque()
        self._handing_over = False
        self._room = asyncio.Event()
        self._errors: deque[KafkaError] = deque(maxlen=_KEPT_ERRORS)
        self._broken = False
        """True after an error that librdkafka calls fatal. Only a new client can go on then."""

    async def open(self) -> None:
        """Creates the client. It connects by itself, and again whenever a connection is lost."""
        if self._client is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._stopping, self._broken = threading.Event(), False
        options = {**self._options, "error_cb": self._note_error}
        self._client = await asyncio.to_thread(_built, Producer, options)
        arguments = (self._client, self._stopping)
        self._poller = threading.Thread(
            target=_poll_reports, args=arguments, name="homing-kafka", daemon=True
        )
        self._poller.start()

    async def close(self) -> None:
        """Waits a short time for records in flight, and ends the client."""
        client, self._client = self._client, None
        if client is None:
            return
        await asyncio.to_thread(client.flush, _POLL_S)
        self._stopping.set()
        if self._poller is not None:
            await asyncio.to_thread(self._poller.join, 2 * _POLL_S)

    async def missing(self, names: Iterable[str]) -> list[str]:
        """Returns those of the topics that do not exist."""
        client = await self._usable()
        return await asyncio.to_thread(find_missing, client, tuple(names), self._errors)

    async def send(self, records: Sequence[Record]) -> list[KafkaFailure | None]:
        """Writes records, and returns for each why it failed, or None once all replicas have it.

        Records with the same key arrive in this order. `BrokersUnavailable` does not mean that the record was
        not written.
        """
        client, reports = await self._usable(), _Reports(len(records))
        if not records:
            return []
        try:
            async with asyncio.timeout(self._timeout_s + 2):
                for place, record in enumerate(records):
                    await self._enqueue(client, record, reports, place)
                await reports.complete
        except TimeoutError:
            raise BrokersUnavailable("the brokers have not confirmed all records in time") from None
        return reports.errors

    async def _usable(self) -> Producer:
        if self._broken:
            log.warning("the Kafka producer met an error that it cannot recover from; it is created again")
            await self.close()
        if self._client is None:
            await self.open()
        assert self._client is not None
        return self._client

    async def _enqueue(self, client: Producer, record: Record, reports: _Reports, place: int) -> None:
        def report(error: KafkaError | None, _: Message) -> None:
            failure = None
            if error is not None:
                self._broken = self._broken or error.fatal() or error.code() == KafkaError._FATAL
                failure = explain(error, record.topic, tuple(self._errors))
            self._hand_over(reports, place, failure)

        while True:
            self._room.clear()
            try:
                client.produce(
                    record.topic, record.value, record.key, headers=list(record.headers), on_delivery=report
                )
                return
            except BufferError:  # the queue is full until reports arrive
                await self._room.wait()
            except KafkaException as error:
                reports.add(place, explain(error.args[0], record.topic))
                return

    def _hand_over(self, reports: _Reports, place: int, failure: KafkaFailure | None) -> None:
        """Passes a report to the event loop. Called on the poller's thread."""
        with self._lock:
            self._reported.append((reports, place, failure))
            wake, self._handing_over = not self._handing_over, True
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._take_reports)
            except RuntimeError:  # the event loop has ended, and no caller waits for reports any more
                return

    def _take_reports(self) -> None:
        with self._lock:
            reported, self._handing_over = list(self._reported), False
            self._reported.clear()
        for reports, place, failure in reported:
            reports.add(place, failure)
        self._room.set()

    def _note_error(self, error: KafkaError) -> None:
        self._errors.append(error)
        self._broken = self._broken or error.fatal()


def _poll_reports(client: Producer, stopping: threading.Event) -> None:
    while not stopping.is_set():
        client.poll(_POLL_S)


# Consumer -------------------------------------------------------------------------------------------


class KafkaConsumer:
    """A member of a consumer group. It commits nothing by itself.

    All calls of the client run on one thread, which owns it: a call from another thread would wait for the
    end of a poll. `read` and `commit` therefore run one after another.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        group: str,
        topics: Sequence[str],
        *,
        protocol: GroupProtocol = "auto",
        buffer_kbytes: int = 16_384,
    ) -> None:
        """`protocol` "auto" means that of KIP-848, or the classic one if the brokers do not have it."""
        self.group = group
        self._topics = list(topics)
        self._protocol = protocol
        self._connection = connection
        self._buffer_kbytes = buffer_kbytes
        self._errors: deque[KafkaError] = deque(maxlen=_KEPT_ERRORS)
        self._client: Consumer | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.assigned: set[tuple[str, int]] = set()
        """Topics and partitions that this member reads, as of the last `read`."""
        self._away_since: float | None = None
        """Monotonic time since which no broker has answered."""
        self._new: list[TopicPartition] = []
        """Partitions that were assigned during the last poll."""
        self.protocol_in_use = "classic" if protocol == "classic" else "consumer"

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="homing-kafka")
        try:
            await self.call(self._join)
        except BaseException:
            # The thread joins even if its caller was cancelled, and the member would keep its partitions.
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leaves the group and ends the client. What was read and not committed is delivered again."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        closing = asyncio.get_running_loop().run_in_executor(thread, self._leave)
        thread.shutdown(wait=False)
        await asyncio.wait([closing], timeout=10 * _POLL_S)

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Calls a function on the consumer's thread."""
        if self._thread is None:
            raise BrokersUnavailable("the consumer is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commits, per topic and partition, the offset of the next record to read.

        Leaves out partitions that have gone to another member. That member reads their records again.
        """
        if offsets:
            await self.call(self._commit, dict(offsets))

    async def backlog(self) -> int:
        """Returns the number of records in the partitions of this member that it has not read yet.

        It is as recent as the last answer of the brokers.
        """
        return await self.call(self._backlog)

    async def check(self) -> None:
        """Raises if no broker has answered for half a minute, or if a topic does not exist any more."""
        await self.call(self._check)

    # What follows runs on the consumer's thread.

    def poll(self, limit: int, wait_s: float = _POLL_S) -> list[Message]:
        """Waits for records, and returns those that are there. Runs on the consumer's thread."""
        client = self._joined()
        first = client.poll(wait_s)
        if self._new:
            # A pause outlives a revocation: a partition that comes back would stay silent.
            client.resume([one for one in self._new if (one.topic, one.partition) in self.assigned])
            self._new.clear()
        if first is None:
            self._complain()
            return []
        found = [first, *client.consume(limit - 1, 0)] if limit > 1 else [first]
        return [one for one in found if not self._is_error(one)]

    def pause(self, places: Mapping[tuple[str, int], int]) -> None:
        """Stops reading these partitions, and goes back to the given offsets."""
        client = self._joined()
        for (topic, partition), offset in places.items():
            if (topic, partition) in self.assigned:
                place = TopicPartition(topic, partition, offset)
                try:
                    client.pause([place])
                    client.seek(place)
                except KafkaException as error:
                    raise explain(error.args[0], topic) from None

    def resume(self, places: Iterable[tuple[str, int]]) -> None:
        """Reads these partitions again."""
        self._joined().resume([TopicPartition(*place) for place in places if place in self.assigned])

    def _backlog(self) -> int:
        client, unread = self._joined(), 0
        places = client.position([TopicPartition(*one) for one in self.assigned])
        # Where this member has read nothing yet, it begins at the offset that the group has committed.
        if unread_places := [one for one in places if one.offset < 0]:
            try:
                committed = client.committed(unread_places, timeout=_POLL_S)
            except KafkaException as error:
                raise explain(error.args[0], self.group) from None
            places = [one for one in places if one.offset >= 0] + committed
        for place in places:
            low, high = client.get_watermark_offsets(place, cached=True)
            unread += max(0, high - max(low, place.offset))
        return unread

    def _joined(self) -> Consumer:
        if self._client is None:
            raise BrokersUnavailable("the consumer is closed")
        return self._client

    def _join(self) -> None:
        options = self._connection.options(
            group_id=self.group,
            group_protocol=self.protocol_in_use,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            fetch_wait_max_ms=100,
            fetch_error_backoff_ms=100,
            queued_min_messages=1_000,
            queued_max_messages_kbytes=self._buffer_kbytes,
            topic_metadata_refresh_interval_ms=30_000,
        )
        if self.protocol_in_use == "classic":
            options["partition.assignment.strategy"] = "cooperative-sticky"
        options["error_cb"] = self._errors.append
        self._errors.clear()
        self._client = _built(Consumer, options)
        self._client.subscribe(self._topics, on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost)

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self.assigned.clear()

    def _gained(self, _: Consumer, places: Iterable[TopicPartition]) -> None:
        self.assigned |= {(one.topic, one.partition) for one in places}
        self._new += places

    def _lost(self, _: Consumer, places: Iterable[TopicPartition]) -> None:
        self.assigned -= {(one.topic, one.partition) for one in places}

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is not None:
            self._judge(error, message.topic() or self.group)
        return error is not None

    def _judge(self, error: KafkaError, about: str) -> None:
        """Raises if an error does not go away by itself."""
        if _lacks_protocol(error):
            self._use_classic(error)
        elif error.fatal() or error.code() in {KafkaError._FATAL, *_UNKNOWN, *_FORBIDDEN}:
            raise explain(error, about)

    def _complain(self) -> None:
        """Raises if an error of the connection does not go away by itself, or if no broker answers."""
        if self._errors:
            while self._errors:
                self._judge(self._errors.popleft(), self.group)
            self._check()

    def _use_classic(self, error: KafkaError) -> None:
        """Joins again with the classic protocol, if the settings leave the choice."""
        if self._protocol != "auto" or self.protocol_in_use == "classic":
            raise explain(error, self.group)
        log.info(
            "the brokers do not have the group protocol of KIP-848; group %s is a classic one", self.group
        )
        self._leave()
        self.protocol_in_use = "classic"
        self._join()

    def _check(self) -> None:
        try:
            missing = find_missing(self._joined(), self._topics, self._errors)
        except BrokersUnavailable:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since >= _PATIENCE_S:
                raise
            return
        self._away_since = None
        if missing:
            raise UnknownTopic(_missing_text(missing))

    def _commit(self, offsets: dict[tuple[str, int], int]) -> None:
        places = [
            TopicPartition(*place, offset) for place, offset in offsets.items() if place in self.assigned
        ]
        if not places:
            return
        try:
            self._joined().commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise explain(error.args[0], self.group) from None
