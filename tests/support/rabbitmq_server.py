"""A private RabbitMQ server that tests can stop, kill, suspend and restart, and a client for its queues.

Starting takes about five seconds, so one server is shared by all tests of a process, each with queue names of
its own. A test that stops, kills or suspends it uses the fixture `rabbitmq_server`, which starts it again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import aio_pika
import pytest
import trustme
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from support.guarded_folder import GuardedFolder, group, signal_all, suspend_all
from support.postgres_servers import skip_or_fail
from support.private_postgres import free_port

_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users.guest = true
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 50MB
raft.wal_max_size_bytes = 8000000
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {folder}/ca.pem
ssl_options.certfile = {folder}/server.pem
ssl_options.keyfile = {folder}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
"""
_VM_FLAGS = (
    "+S 1:1 +SDio 4 +A 4 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
)
_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_PATIENCE_S = 60
_REGISTERED_S = 1.5


class NoRabbitMQ(Exception):
    """RabbitMQ is not installed on this machine."""


class PrivateRabbitMQ:
    """A node with a folder, ports and an Erlang port mapper of its own. It ends with this process.

    Its port and its durable queues survive `kill`, `stop` and `start`.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        """`patience_s` is the limit for a start."""
        self._patience_s = patience_s
        if not _SCRIPT.exists() or shutil.which("epmd") is None:
            raise NoRabbitMQ
        self.port, distribution, self._mapper = free_port(), free_port(), free_port()
        self.tls_port = free_port()
        self._folder = GuardedFolder("homing-rabbitmq-")
        folder = self._folder.path
        config = _CONFIG.format(port=self.port, tls_port=self.tls_port, folder=folder)
        (folder / "rabbitmq.conf").write_text(config)
        self._write_certificates(folder)
        (folder / "enabled_plugins").write_text("[].\n")
        self._environment = {
            "HOME": str(folder),  # the Erlang cookie is created here
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the server, instead of its parent
            "RABBITMQ_NODENAME": f"homing-{uuid4().hex[:8]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-rabbitmq-env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _VM_FLAGS,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def tls_url(self) -> str:
        """The URL for TLS. The server's certificate is for `localhost`, by the authority in `ca_file`."""
        return f"amqps://guest:guest@localhost:{self.tls_port}/"

    def _write_certificates(self, folder: Path) -> None:
        """Creates an authority, and certificates for the server and for a client."""
        authority = trustme.CA()
        self.ca_file, self.client_file = folder / "ca.pem", folder / "client.pem"
        authority.cert_pem.write_to_path(self.ca_file)
        authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(self.client_file)
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
        certificate.private_key_pem.write_to_path(folder / "server.key")
        self._folder.own(folder / "server.key")

    def control(self, *arguments: str) -> None:
        """Runs `rabbitmqctl` on this server, which takes a second or two."""
        run = self._folder.start(
            [str(_SCRIPT.parent / "rabbitmqctl"), *arguments], "ctl.log", self._environment
        )
        self._folder.ended(run)
        assert run.returncode == 0, (self._folder.path / "ctl.log").read_text()[-2000:]

    @property
    def log(self) -> str:
        return (self._folder.path / "rabbitmq.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        epmd = ["epmd", "-port", str(self._mapper), "-address", "127.0.0.1"]
        self._epmd = self._folder.start(epmd, "epmd.log", {"ERL_EPMD_PORT": str(self._mapper)})
        _wait_for_port(self._mapper)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.close()
        self._epmd.wait(timeout=_PATIENCE_S)

    def start(self) -> None:
        """Starts the server, and waits until it answers clients."""
        self.begin_start()
        self.wait_until_ready()

    def begin_start(self) -> None:
        """Starts the server without waiting for it."""
        assert self._process is None, "the server runs already"
        self._process = self._folder.start([str(_SCRIPT)], "rabbitmq.log", self._environment)

    def wait_until_ready(self) -> None:
        """Waits until the server answers clients."""
        until = time.monotonic() + self._patience_s
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, self.log[-3000:]
            assert time.monotonic() < until, self.log[-3000:]
            time.sleep(0.02)

    def stop(self) -> None:
        """Stops the server in an orderly way, if it runs: it closes the connections of its clients."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the server with `kill -9`, if it runs."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kills the server and starts it again. Durable queues and persistent messages stay."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Suspends the server: connections stay open and nothing is answered."""
        assert self._process is not None
        suspend_all(group(self._process.pid))  # the shell that started it, and its children too

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def recover(self) -> None:
        """Makes the server run and answer again, whatever a test did to it."""
        if self._process is None or self._process.poll() is not None:
            self._process = None
            self.start()
        else:
            self.thaw()
            self.wait_until_ready()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            signal_all([process.pid], how)
            signal_all([process.pid], signal.SIGCONT)
            self._folder.ended(process)

    def _answers(self) -> bool:
        """Whether the server greets a client, which it does when all of its parts have started."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as client:
                client.sendall(b"AMQP\x00\x00\x09\x01")
                return client.recv(1) == b"\x01"
        except OSError:
            return False


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < until, f"nothing listens on port {port}"
        time.sleep(0.01)


class QueuedMessage(NamedTuple):
    """A message that a test took from a queue."""

    body: bytes
    headers: Mapping[str, Any]
    properties: Any


class RabbitQueues:
    """The queues of a server, as a test uses them: it fills them, looks into them and removes them."""

    def __init__(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        self._connection = connection
        self._channel = channel

    async def declare(self, *names: str, survive_kill: bool = False, **arguments: object) -> None:
        """Declares durable queues: quorum queues, unless `arguments` name another `x_queue_type`.

        `x_max_length=1` stands for the argument `x-max-length`. RabbitMQ 3.10 registers a quorum queue on
        disk about a second after its declaration, and after a `kill -9` before that the queue answers no one
        any more. `survive_kill` waits for that.
        """
        given: dict[str, Any] = {"x-queue-type": "quorum"}
        given.update({name.replace("_", "-"): value for name, value in arguments.items()})
        for name in names:
            await self._channel.declare_queue(name, durable=True, arguments=given, timeout=_PATIENCE_S)
        if survive_kill:
            await asyncio.sleep(_REGISTERED_S)

    async def delete(self, *names: str) -> None:
        """Deletes queues, with their messages and consumers. Does nothing for those that do not exist."""
        for name in names:
            await self._channel.queue_delete(name, timeout=_PATIENCE_S)

    async def purge(self, *names: str) -> None:
        """Removes the messages that no consumer holds."""
        for name in names:
            await (await self._channel.get_queue(name, ensure=False)).purge(timeout=_PATIENCE_S)

    async def count(self, name: str) -> int:
        """Returns how many messages wait in a queue, without those that a consumer holds."""
        found = await self._channel.declare_queue(name, passive=True, timeout=_PATIENCE_S)
        return found.declaration_result.message_count or 0

    async def put(
        self, name: str, *bodies: bytes, headers: Mapping[str, Any] | None = None, **properties: Any
    ) -> None:
        """Publishes persistent messages to a queue and waits for all confirms."""
        for body in bodies:
            message = aio_pika.Message(
                body,
                headers=dict(headers or {}),
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                **properties,
            )
            await self._channel.default_exchange.publish(message, name, mandatory=True, timeout=_PATIENCE_S)

    async def collect(self, name: str, number: int) -> list[QueuedMessage]:
        """Waits for this number of messages in a queue, and takes all that are there by then."""
        channel = await self._connection.channel()
        queue = await channel.get_queue(name, ensure=False)
        found: list[QueuedMessage] = []
        complete = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            found.append(QueuedMessage(message.body, dict(message.headers), message))
            if len(found) >= number:
                complete.set()

        tag = await queue.consume(take, no_ack=True, timeout=_PATIENCE_S)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await complete.wait()
        except TimeoutError:
            raise AssertionError(f"{len(found)} of {number} messages arrived in {name}") from None
        finally:
            await queue.cancel(tag)
            await channel.close()
        return found

    async def take_all(self, name: str) -> list[QueuedMessage]:
        """Takes all messages that are in a queue now."""
        count = await self.count(name)
        return await self.collect(name, count) if count else []


@asynccontextmanager
async def rabbit_queues(url: str) -> AsyncIterator[RabbitQueues]:
    """Connects to a server, with confirms, and raises if a message cannot be routed."""
    connection = await aio_pika.connect(url, timeout=_PATIENCE_S)
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        yield RabbitQueues(connection, channel)


@pytest.fixture(scope="session")
def shared_rabbitmq() -> Iterator[PrivateRabbitMQ]:
    """The private server of this test process. Tests use `rabbitmq_server` or `rabbitmq_url`."""
    try:
        with PrivateRabbitMQ() as server:
            yield server
    except NoRabbitMQ:
        skip_or_fail("RabbitMQ: install rabbitmq-server")


@pytest.fixture
def rabbitmq_server(shared_rabbitmq: PrivateRabbitMQ) -> Iterator[PrivateRabbitMQ]:
    """A server that the test may stop, kill and suspend. Afterwards it runs again."""
    shared_rabbitmq.recover()
    yield shared_rabbitmq
    shared_rabbitmq.recover()


@pytest.fixture
def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    """The URL of a server: the one that TEST_RABBITMQ_URL names, otherwise a private one."""
    if named := os.environ.get("TEST_RABBITMQ_URL"):
        return named
    server: PrivateRabbitMQ = request.getfixturevalue("shared_rabbitmq")
    return server.url


@pytest.fixture
def queue_prefix() -> str:
    """A prefix for the queue names of one test, because all tests of a process share a server."""
    return f"t{uuid4().hex[:10]}."
