"""The connection to Redis, which the timer and the sink share.

A single server or a master behind Sentinel works, and so does Valkey. A cluster is refused: its keys and its
messages have no single place, and neither the timer nor the sink needs more than one server can do.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict, Unpack
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct
from redis import exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

from homing.brokers.login import check_login
from homing.core.durations import parse_duration
from homing.core.errors import ConfigError, HomingError
from homing.net.secrets import Secret, read_secret

DEFAULT_URL = "redis://localhost:6379/0"

DEFAULT_TIMEOUT_MS = 2_000
"""Shorter than the 5 s after which the engine gives up on a call of a timer."""

_LONGEST_TIMEOUT_MS = 60_000

_MAX_CONNECTIONS = 8

_PORT, _SENTINEL_PORT = 6_379, 26_379

_MOST_HOSTS = 16

_CLUSTER = "is a cluster, which Homing does not support; use a single server, or a master behind Sentinel"

_ADDRESS_ADVICE = "start Redis, or correct the host, the port and redis:// or rediss:// in url"

_TLS_ADVICE = "set ca_file to the certificate of the server's authority, and use a host name that it covers"


class RedisFailure(HomingError):
    """Redis cannot be used. The text contains no secrets."""

    code = "REDIS_FAILED"

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice


class RedisAddress(Struct, frozen=True, kw_only=True):
    """The parts of a URL."""

    hosts: tuple[tuple[str, int], ...]
    database: int
    tls: bool
    username: str
    password: str

    def __str__(self) -> str:
        """Returns the hosts, without credentials."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


class RedisLogin(TypedDict, total=False):
    """Settings of a connection besides its URL, the same for the timer and the sink."""

    username: str
    password: str | Secret
    ca_file: str
    sentinel: str
    sentinel_password: str | Secret
    timeout_ms: int | str


class RedisConnection:
    """A Redis server, or the master that Sentinel names. `open` connects; each call has a timeout.

    `url` is `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS. With `sentinel`, the name of a master, it
    lists the Sentinels instead: `redis://HOST:PORT,HOST:PORT/DATABASE`. URL and passwords may be `env:NAME`
    or `file:PATH`.
    """

    def __init__(self, url: str | Secret = DEFAULT_URL, **login: Unpack[RedisLogin]) -> None:
        check_login(login, RedisLogin)
        password, sentinel_password = login.get("password", ""), login.get("sentinel_password", "")
        sentinel, ca_file = login.get("sentinel", ""), login.get("ca_file", "")
        self.address = read_address(read_secret("url", url).reveal(), sentinel=bool(sentinel))
        self._sentinel_name = sentinel
        self._username = login.get("username") or self.address.username
        self._password = read_secret("password", password).reveal() if password else self.address.password
        self._sentinel_password = (
            read_secret("sentinel_password", sentinel_password).reveal() if sentinel_password else ""
        )
        if self._sentinel_password and not sentinel:
            raise ConfigError("sentinel_password", "is set without sentinel; set both")
        self._ca_file = ca_file
        if ca_file:
            self._check_ca_file()
        self.timeout_ms = parse_duration(login.get("timeout_ms", DEFAULT_TIMEOUT_MS), "timeout_ms")
        if not 0 < self.timeout_ms <= _LONGEST_TIMEOUT_MS:
            raise ConfigError("timeout_ms", "is out of range; it must be longer than 0 and at most 60 s")
        self._client: Redis | None = None
        self._sentinels: Sentinel | None = None
        self.version = ""
        """Version of the server, once connected. Empty if the user may not read it."""

    def __str__(self) -> str:
        if self._sentinel_name:
            return f"Redis master {self._sentinel_name} of the Sentinels at {self.address}"
        return f"Redis at {self.address}"

    @property
    def client(self) -> Redis:
        """The client. Only between `open` and `close`."""
        assert self._client is not None, "the connection is not open"
        return self._client

    async def open(self) -> None:
        """Connects, and checks the kind of server. Raises `RedisFailure` if it cannot be used."""
        self._client = self._build()
        try:
            with self.translated():
                await self._client.ping()
            await self._check_mode(self._client)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes all connections."""
        client, sentinels = self._client, self._sentinels
        self._client = self._sentinels = None
        if client is not None:
            await client.aclose()
        for one in sentinels.sentinels if sentinels is not None else ():
            await one.aclose()

    async def diagnose(self) -> str:
        """Connects, describes the server in a few words, and disconnects."""
        await self.open()
        try:
            policy = await self._eviction_policy(self.client)
        finally:
            await self.close()
        words = [str(self)]
        if self.version:
            words.append(f"version {self.version}")
        if policy:
            words.append(f"deletes keys when its memory is full ({policy})")
        return ", ".join(words)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turns the library's errors into `RedisFailure`, with a sentence that names the server."""
        try:
            yield
        except (errors.RedisError, OSError) as error:
            found = _explain(error, self.timeout_ms)
            raise RedisFailure(f"{self} {found.problem}", found.advice) from None

    def _build(self) -> Redis:
        common: dict[str, Any] = {
            "socket_timeout": self.timeout_ms / 1000,
            "socket_connect_timeout": self.timeout_ms / 1000,
            # The engine itself repeats failed calls, after a pause that grows.
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,  # the answers to PING of a subscribed connection are messages
        }
        if self.address.tls:
            common |= {"ssl": True, "ssl_ca_certs": self._ca_file or None, "ssl_check_hostname": True}
        own = {
            **common,
            "db": self.address.database,
            "username": self._username or None,
            "password": self._password or None,
            "client_name": "homing",
            "max_connections": _MAX_CONNECTIONS,
        }
        if not self._sentinel_name:
            [(host, port)] = self.address.hosts
            return Redis(host=host, port=port, **own)
        own_password = {"password": self._sentinel_password or None}
        self._sentinels = Sentinel(  # type: ignore[no-untyped-call]
            self.address.hosts, sentinel_kwargs={**common, **own_password}
        )
        master: Redis = self._sentinels.master_for(self._sentinel_name, **own)
        return master

    async def _eviction_policy(self, client: Redis) -> str:
        """Returns the name of the policy by which the server deletes keys, or an empty string."""
        try:
            with self.translated():
                info = await client.info("memory")
        except RedisFailure:
            return ""  # the user may not run INFO
        policy = str(info.get("maxmemory_policy", "noeviction"))
        return policy if info.get("maxmemory") and policy != "noeviction" else ""

    async def _check_mode(self, client: Redis) -> None:
        try:
            with self.translated():
                info = await client.info("server")
        except RedisFailure:
            return  # the user may not run INFO; a cluster is then recognized by its answers
        self.version = str(info.get("valkey_version") or info.get("redis_version") or "")
        mode = info.get("redis_mode")
        if mode == "cluster":
            raise RedisFailure(f"{self} {_CLUSTER}", "")
        if mode == "sentinel":
            raise RedisFailure(f"{self} is a Sentinel; name its master in the setting sentinel", "")

    def _check_ca_file(self) -> None:
        if not self.address.tls:
            raise ConfigError("ca_file", "is set, but url does not start with rediss://")
        try:
            ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:  # ssl.SSLError is one
            why = error.strerror or type(error).__name__
            raise ConfigError("ca_file", f"is {self._ca_file}, which cannot be read: {why}") from None


def read_address(url: str, *, sentinel: bool = False) -> RedisAddress:
    """Reads a URL. Raises `ConfigError` without the URL, which may contain a password."""
    form = "redis://HOST:PORT/DATABASE or rediss://HOST:PORT/DATABASE"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("url", f"is not a URL like {form}") from None
    if parts.scheme not in ("redis", "rediss"):
        raise ConfigError("url", f"must have the form {form}")
    if parts.query or parts.fragment:
        raise ConfigError("url", "has options after the database; use settings such as ca_file instead")
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    found = tuple(_host(one, _SENTINEL_PORT if sentinel else _PORT) for one in hosts.split(",")[:_MOST_HOSTS])
    if len(found) > 1 and not sentinel:
        raise ConfigError("url", "lists several hosts; that needs the setting sentinel, a master's name")
    return RedisAddress(
        hosts=found,
        database=_database(parts),
        tls=parts.scheme == "rediss",
        username=unquote(username),
        password=unquote(password),
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ConfigError("url", "has a host or port that cannot be read")
    return host, port or default_port


def _database(parts: SplitResult) -> int:
    name = parts.path.strip("/")
    if not name:
        return 0
    if not (name.isascii() and name.isdigit() and len(name) <= 4):
        raise ConfigError("url", "must end with the number of a database, such as /0")
    return int(name)


class _Explanation(NamedTuple):
    """An error of the library in our words."""

    problem: str
    """The end of a sentence about the server. Texts of the server are shortened."""
    advice: str | None = None


def _explain(error: Exception, timeout_ms: int) -> _Explanation:
    if isinstance(error, (errors.TimeoutError, TimeoutError)):
        return _Explanation(f"does not answer within {timeout_ms} ms", _ADDRESS_ADVICE)
    if isinstance(error, (errors.AuthenticationError, errors.AuthorizationError)):
        return _Explanation("rejects the user name or password", "correct username and password")
    if isinstance(error, errors.NoPermissionError):
        return _Explanation(
            f"does not let this user do it: {_short(error)}",
            "give the user these commands, keys and channels",
        )
    if isinstance(error, errors.OutOfMemoryError):
        return _Explanation("is out of memory: it has reached its maxmemory", "raise maxmemory")
    if isinstance(error, errors.ReadOnlyError):
        return _Explanation(
            "is a replica, which accepts no writes",
            "set url to the master, or give its name in the setting sentinel",
        )
    if isinstance(error, errors.BusyLoadingError):
        return _Explanation("is loading its data", "wait until it has loaded them")
    if isinstance(error, (errors.MovedError, errors.AskError, errors.ClusterError, errors.ClusterDownError)):
        return _Explanation(_CLUSTER, "")
    if isinstance(error, MasterNotFoundError):
        return _Explanation(
            f"cannot be reached: {_short(error)}",
            "start the Sentinels and the master, or correct url and sentinel",
        )
    if isinstance(error, (errors.ConnectionError, OSError)):
        is_tls = isinstance(error.__context__, ssl.SSLError)
        return _Explanation(f"cannot be reached: {_short(error)}", _TLS_ADVICE if is_tls else _ADDRESS_ADVICE)
    return _Explanation(f"reports an error: {_short(error)}")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
