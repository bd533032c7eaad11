"""Connections to RabbitMQ: address, credentials, TLS, readable errors, and connections that notice their end.

A connection here is aio-pika's plain one. Its robust one declares deleted queues again, and does not publish
again what was in flight when the connection broke, so the users of a connection open the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import aio_pika
import aiormq
from aio_pika import exceptions as amqp
from aio_pika.abc import UnderlayConnection
from aio_pika.tools import OneShotCallback
from msgspec import Struct
from yarl import URL

from homing.brokers.login import check_login
from homing.core.errors import ConfigError, HomingError
from homing.net.secrets import Secret, read_secret

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel

CONNECT_TIMEOUT_MS = 5_000
"""Default limit for a connection to open, from the socket to AMQP's handshake."""

HEARTBEAT_S = 10
"""Default interval of heartbeats. A connection that is silent for three intervals is closed."""

_CLOSE_S = 3.0

_LAST_TURNS = 10
"""Turns of the event loop in which the library's last tasks end, after it has closed a connection."""

_PORTS = {"amqp": 5672, "amqps": 5671}

_AUTH = ("plain", "external")

_LONGEST_NAME = 100

for _logger in (logging.getLogger("aiormq.connection"), logging.getLogger("aiormq.channel")):
    if _logger.level == logging.NOTSET:
        # They log each failed connection with a traceback. Users of a connection log that in a sentence.
        _logger.setLevel(logging.CRITICAL)

_T = TypeVar("_T")


class BrokerUnavailable(HomingError):
    """RabbitMQ cannot be used right now. `kind` is one of the codes of `PublishResult`."""

    code = "BROKER_UNAVAILABLE"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.advice = _ADVICE.get(kind)


class NotThere(HomingError):
    """A queue or exchange does not exist, has other properties, or the user may not use it.

    `reply_code` is AMQP's: 403, 404, 405 or 406.
    """

    code = "BROKER_REFUSED"

    def __init__(self, reply_code: int, message: str) -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.advice = _REFUSAL_ADVICE.get(reply_code)


_ADVICE = {
    "unreachable": "start RabbitMQ, or correct the host and port in url",
    "no_answer": "look at the log of RabbitMQ, or correct the host and port in url",
    "login": "correct username and password, or those in url",
    "tls": "set ca_file to the certificate of the server's authority, and use a host name that it covers",
    "vhost": "create the virtual host and give the user rights there, or correct the end of url",
}
"""Advice by the kind of `BrokerUnavailable`."""

DECLARE_ADVICE = "create it, or start `homing bridge` with --declare, or set declare = true"
"""Advice for a missing queue that a bridge can create."""

_REFUSAL_ADVICE = {
    403: "give the user the permissions configure, write and read for it",
    404: "create it, or correct its name",
    406: "delete it and create it again, or use another name",
}
"""Advice by AMQP's reply code."""


class RabbitMqServer(Struct, frozen=True, kw_only=True):
    """Address of a RabbitMQ server, and the login there. `read_server` makes it from settings."""

    url: Secret
    place: str
    """Host, port and virtual host, for errors and logs. It contains no credentials."""
    host: str
    name: str
    """Name of the connections to it, for logs. RabbitMQ lists it among its connections."""
    encrypted: bool
    context: ssl.SSLContext | None = None
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS


class RabbitMqLogin(TypedDict, total=False):
    """Settings of a connection besides its URL, the same for the provider, the sink and the bridge."""

    username: str
    password: str | Secret
    auth: str
    """`plain`, which is the default, or `external` for a login with the client certificate."""
    ca_file: str
    cert_file: str
    key_file: str
    connection_name: str
    heartbeat_s: int
    connect_timeout_ms: int


def read_server(url: str | Secret, role: str = "", **login: Unpack[RabbitMqLogin]) -> RabbitMqServer:
    """Reads the settings of a connection.

    URL and password may be `env:NAME` or `file:PATH`. `username` and `password` take precedence over those in
    the URL. The name of the connection is `homing` and the role unless it is given. Raises `ConfigError`,
    which never contains the URL, because it may contain the password.
    """
    check_login(login, RabbitMqLogin)
    username, password = login.get("username", ""), login.get("password", "")
    ca_file, cert_file = login.get("ca_file", ""), login.get("cert_file", "")
    key_file, auth = login.get("key_file", ""), login.get("auth", "plain")
    connection_name = login.get("connection_name", f"homing {role}".strip())[:_LONGEST_NAME]
    heartbeat_s = login.get("heartbeat_s", HEARTBEAT_S)
    connect_timeout_ms = login.get("connect_timeout_ms", CONNECT_TIMEOUT_MS)
    given = read_secret("url", url).reveal().strip()
    try:
        parts = urlsplit(given)
        given_port, host, user = parts.port, parts.hostname, parts.username
    except ValueError:
        raise ConfigError("url", "is not a URL like amqp://user:password@host:5672/vhost") from None
    if parts.scheme not in _PORTS or not host:
        raise ConfigError(
            "url", "must be a URL like amqp://user:password@host:5672/vhost, or amqps:// for TLS"
        )
    port = _PORTS[parts.scheme] if given_port is None else given_port
    if not 1 <= port <= 65_535:
        raise ConfigError("url", "has a port that is not between 1 and 65535")
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        if option != "heartbeat":
            raise ConfigError("url", f"has the option {option[:40]!r}; use the settings instead of options")
        heartbeat_s = int(value) if value.isascii() and value.isdigit() else -1
    if parts.fragment or "/" in parts.path[1:]:
        raise ConfigError("url", "must end with the virtual host; write a slash within its name as %2F")
    if not 1 <= heartbeat_s <= 3_600:
        raise ConfigError("heartbeat_s", "must be between 1 and 3600")
    if not 1 <= connect_timeout_ms <= 600_000:
        raise ConfigError("connect_timeout_ms", "must be between 1 and 600000")
    if auth not in _AUTH:
        raise ConfigError("auth", f"is {auth!r}; it must be {' or '.join(_AUTH)}")
    if auth == "external" and not cert_file:
        raise ConfigError("cert_file", "is missing; auth external logs in with a client certificate")
    user = username or unquote(user or "") or "guest"
    secret = read_secret("password", password).reveal() if password else unquote(parts.password or "guest")
    vhost = unquote(parts.path[1:]) or "/"
    name = quote(connection_name, safe="")
    built = URL.build(
        scheme=parts.scheme,
        user=quote(user, safe=""),
        password=quote(secret, safe=""),
        host=host,
        port=port,
        path="/" + quote(vhost, safe=""),
        query_string=f"heartbeat={heartbeat_s}&auth={auth}&name={name}",
        encoded=True,
    )
    encrypted = parts.scheme == "amqps"
    if not encrypted and (ca_file or cert_file or key_file):
        raise ConfigError("url", "must begin with amqps:// if there are certificates")
    return RabbitMqServer(
        url=Secret(str(built)),
        place=f"{host}:{port}" + (f", virtual host {vhost!r}" if vhost != "/" else ""),
        host=host,
        name=connection_name,
        encrypted=encrypted,
        context=_build_context(ca_file, cert_file, key_file) if encrypted else None,
        connect_timeout_ms=connect_timeout_ms,
    )


def _build_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("ca_file", f"cannot be read: {type(error).__name__}") from None
    if key_file and not cert_file:
        raise ConfigError("cert_file", "is missing; key_file belongs to a client certificate")
    if cert_file:
        try:
            # Without the callback, OpenSSL would ask for the key's password at the terminal.
            context.load_cert_chain(cert_file, key_file or None, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("cert_file", f"cannot be used: {type(error).__name__}") from None
    return context


class RabbitMqConnection:
    """One open connection. `lost` is set when it ends, for whatever reason."""

    def __init__(self, server: RabbitMqServer, connection: _OwnedConnection) -> None:
        self._server = server
        self._connection = connection
        self.lost = asyncio.Event()
        # `is_closed` of the connection stays False when the broker closes it; only the callback tells.
        connection.close_callbacks.add(self._note_close)

    def _note_close(self, *_: object) -> None:
        self.lost.set()

    @property
    def blocked(self) -> bool:
        """True while the broker takes no messages, because it is short of memory or disk.

        A message that is published now is kept in a buffer and goes out when the broker recovers.
        """
        transport = self._connection.transport
        return transport is not None and not self.lost.is_set() and not _ends_at_once(transport.ready)

    async def channel(self, *, confirms: bool = True) -> AbstractChannel:
        """Opens a channel whose publishes are confirmed, and which raises for messages without a route.

        Raises `BrokerUnavailable`.
        """
        if self.lost.is_set():
            raise BrokerUnavailable(
                "unreachable", f"the connection to RabbitMQ at {self._server.place} is closed"
            )
        return await within(self._server, self._open_channel(confirms))

    async def _open_channel(self, confirms: bool) -> AbstractChannel:
        channel = self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize()
        return channel

    @property
    def product(self) -> str:
        """Name and version of the server, as it reports them."""
        transport = self._connection.transport
        told: Mapping[str, object] = {} if transport is None else transport.connection.server_properties
        return f"{told.get('product', 'RabbitMQ')} {told.get('version', '')}".strip()[:100]

    async def check_queue(self, name: str) -> None:
        """Returns if the queue exists. Raises `NotThere` or `BrokerUnavailable`."""
        await self._check("queue", name, lambda channel: channel.declare_queue(name, passive=True))

    async def count_messages(self, name: str) -> int:
        """Returns the number of messages that are ready in a queue. Raises like `check_queue`."""
        found: list[int] = []

        async def ask(channel: AbstractChannel) -> None:
            queue = await channel.declare_queue(name, passive=True)
            found.append(queue.declaration_result.message_count or 0)

        await self._check("queue", name, ask)
        return sum(found)

    async def check_exchange(self, name: str) -> None:
        """Returns if the exchange exists. Raises `NotThere` or `BrokerUnavailable`."""
        if name:  # the default exchange always exists
            await self._check("exchange", name, lambda channel: channel.declare_exchange(name, passive=True))

    async def _check(self, what: str, name: str, ask: Callable[[AbstractChannel], Awaitable[object]]) -> None:
        channel = await self.channel(confirms=False)  # of its own: the broker closes it if the answer is no
        try:
            await within(self._server, ask(channel))
        except amqp.ChannelClosed as error:
            raise NotThere(reply_code(error), describe_refusal(what, name, error)) from None
        finally:
            await end_quietly(channel.close())

    async def close(self) -> None:
        """Closes the connection. Never raises, and never waits long for a broker that does not answer."""
        self.lost.set()
        await self._connection.end()


class _FramedConnection(aiormq.Connection):
    """A connection in which more frames may wait to be written, so that publishes rarely wait."""

    FRAME_BUFFER_SIZE = 1_024


class _OwnedConnection(aio_pika.Connection):
    """aio-pika's connection, which keeps hold of the connection below it from the start.

    aio-pika knows that connection only once it is open. If the opening is cancelled or takes too long, it may
    open all the same, and would then stay open, with its tasks and heartbeats, until the process ends.
    """

    _below: aiormq.Connection | None = None

    async def connect(self, timeout: float | None = None) -> None:
        """Opens the connection. The caller limits the time and calls `end`, whether this fails or not."""
        self._below = below = _FramedConnection(self.url, **self.kwargs)
        await below.connect()
        await below.ready()
        ended = OneShotCallback(self._on_connection_close)
        below.closing.add_done_callback(ended)
        self.transport = UnderlayConnection(connection=below, close_callback=ended)
        await self._on_connected()

    async def end(self) -> None:
        """Closes the connection, open or half open, and waits for its tasks. Never raises or waits long."""
        await end_quietly(self.close())
        if not self.is_closed:  # the broker did not answer; now there is nothing left to wait for
            await end_quietly(self.close())
        if self._below is not None:
            await end_quietly(self._below.close())
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)


async def connect(server: RabbitMqServer) -> RabbitMqConnection:
    """Opens a connection. Raises `BrokerUnavailable` with a sentence that says what is wrong."""
    connection = _OwnedConnection(URL(server.url.reveal(), encoded=True), ssl_context=server.context)
    try:
        await within(server, connection.connect())
    except BaseException:
        # In a task of its own: in a cancelled one, `end_quietly` would pass on cancellations by the library.
        await asyncio.create_task(connection.end())
        raise
    return RabbitMqConnection(server, connection)


async def diagnose(
    server: RabbitMqServer, *, queues: Sequence[str] = (), exchange: str = "", if_missing: str = ""
) -> str:
    """Connects, checks that the queues and the exchange exist, disconnects, and describes the server.

    Raises `BrokerUnavailable` or `NotThere` with a sentence that says what is wrong. `if_missing` is the
    advice for a queue or exchange that does not exist, if there is better advice than to create it.
    """
    connection = await connect(server)
    try:
        for queue in queues:
            await connection.check_queue(queue)
        await connection.check_exchange(exchange)
        found = f"{connection.product} at {server.place}, {'with' if server.encrypted else 'without'} TLS"
        if queues:
            names, exist = ", ".join(map(repr, queues)), "exist" if queues[1:] else "exists"
            found += f"; the queue{'s' if queues[1:] else ''} {names} {exist}"
        return found + (f"; the exchange {exchange!r} exists" if exchange else "")
    except NotThere as error:
        if if_missing and error.reply_code == 404:
            error.advice = if_missing
        raise
    finally:
        await connection.close()


async def within(server: RabbitMqServer, call: Awaitable[_T]) -> _T:
    """Awaits a call to the broker, within the timeout of connections.

    Raises `BrokerUnavailable` if the broker cannot be used, and passes on AMQP's `ChannelClosed`, with which
    the broker refuses a single call.
    """
    try:
        async with asyncio.timeout(server.connect_timeout_ms / 1000):
            return await call
    except amqp.ChannelClosed:
        raise
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        problem = f"the connection to RabbitMQ at {server.place} broke"
        raise BrokerUnavailable("unreachable", problem) from None
    except Exception as error:  # the library raises many kinds, and some of its own mistakes
        raise _unavailable(server, error) from None


def was_cancelled() -> bool:
    """Returns True if the current task was cancelled from outside.

    When a connection breaks, the library raises `CancelledError` although no one has cancelled anything.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end_quietly(closing: Awaitable[object]) -> None:
    """Awaits the end of a channel or connection, whatever it raises, for at most a few seconds."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await closing
    except asyncio.CancelledError:
        if was_cancelled():
            raise
    except Exception:  # it is gone either way
        return


def reply_code(error: BaseException) -> int:
    """Returns AMQP's code of an error with which the broker closed a channel. 0 if it has none."""
    if isinstance(error, amqp.ChannelNotFoundEntity):
        return 404
    if isinstance(error, amqp.ChannelPreconditionFailed):
        return 406
    return _OTHER_CODES.get(type(error).__name__, 0)


_OTHER_CODES = {"ChannelAccessRefused": 403, "ChannelLockedResource": 405}


def describe_refusal(what: str, name: str, error: BaseException) -> str:
    """Returns a sentence about a queue or exchange that the broker does not let us use."""
    match reply_code(error):
        case 404:
            return f"the {what} {name!r} does not exist"
        case 403:
            return f"the user may not use the {what} {name!r}"
        case 405:
            return f"the {what} {name!r} belongs to another connection"
        case 406:
            return f"the {what} {name!r} has other properties than expected: {broker_text(error)}"
    return f"RabbitMQ refused the {what} {name!r}: {broker_text(error)}"


def broker_text(error: BaseException) -> str:
    """Returns the broker's own words about an error, as one short line."""
    words = " ".join(str(one) for one in error.args if one)
    return " ".join(words.split())[:300] or type(error).__name__


def _unavailable(server: RabbitMqServer, error: Exception) -> BrokerUnavailable:
    if isinstance(error, BrokerUnavailable):
        return error
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    place = f"RabbitMQ at {server.place}"
    if isinstance(error, TimeoutError):
        limit = server.connect_timeout_ms
        return BrokerUnavailable("no_answer", f"{place} did not answer within {limit} ms")
    if isinstance(error, (amqp.ProbableAuthenticationError, amqp.AuthenticationError)):
        return BrokerUnavailable("login", f"{place} refused the user name, password or kind of login")
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "verify_message", "") or cause.reason or type(cause).__name__
        return BrokerUnavailable("tls", f"no TLS connection to {place}: {reason}")
    if isinstance(error, amqp.InvalidFrameError) and "Connection.OpenOk" in str(error):
        return BrokerUnavailable("vhost", f"{place}: it does not exist, or the user may not use it")
    if isinstance(cause, OSError) and cause.errno:
        why = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
        return BrokerUnavailable("unreachable", f"{place} cannot be reached: {why}")
    return BrokerUnavailable("unreachable", f"{place} cannot be reached: {broker_text(error)}")


def _ends_at_once(call: Callable[[], Awaitable[object]]) -> bool:
    """Returns True if an async method would return without waiting for anything.

    This is how to ask, in public names of the library, whether a connection is blocked.
    """
    running = call().__await__()
    try:
        next(iter(running))
    except StopIteration:
        return True
    running.close()
    return False
