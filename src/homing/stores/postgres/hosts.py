"""Connects to one of the URL's hosts. They are tried in turn, the last good one first.

Each host has a timeout of its own. The driver tries several hosts too, but within one timeout for all of
them, so it never gets past a host that accepts connections and then does not answer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple

import asyncpg
from asyncpg import exceptions

from homing.stores.postgres.address import DatabaseAddress, Host

_TIMEOUT_S = 3
"""Default for `connect_timeout` if there are several hosts."""

_SINGLE_TIMEOUT_S = 10
"""Default for `connect_timeout` if there is only one host, because giving up on it sooner would not help."""

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds until a silent connection is checked, seconds between checks, and checks until it is lost."""

_UNACKNOWLEDGED_MS = 15_000
"""A connection counts as lost if the other machine has not acknowledged data for this long."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of this machine, which say nothing about the host."""

_SUSPENDED_S = 1.0
"""A timeout that fires this much too late says only that this process did not run."""

_HOST_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    exceptions.InterfaceError,
    exceptions.InternalClientError,
)
"""Errors of one host, after which the next one is tried."""


class NoUsableHost(ConnectionError):
    """No host of several could be used. `errors` has their errors, in the order of the URL."""

    def __init__(self, errors: Sequence[tuple[Host | None, Exception]]) -> None:
        super().__init__("; ".join(f"{host}: {describe_host_error(error)}" for host, error in errors))
        self.errors = tuple(error for _, error in errors)


class Origin(NamedTuple):
    """The host of a connection and the time at which it was opened. Different for each connection."""

    host: Host | None = None
    """The host of the URL, or None if the driver has chosen one."""
    connected_at: float = 0.0
    """Monotonic time, in seconds."""


class HostConnection(asyncpg.Connection):
    """A connection that knows its host, and whose loss the operating system detects within seconds."""

    origin = Origin()
    answered_at = 0.0
    """Monotonic time of the last result from the server, in seconds."""

    def __init__(self, protocol: Any, transport: Any, *args: Any) -> None:
        super().__init__(protocol, transport, *args)
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (*_KEEPALIVE.items(), ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS)):
                if (option := getattr(socket, name, None)) is not None:  # not on every operating system
                    found.setsockopt(socket.IPPROTO_TCP, option, value)

    async def execute(self, *args: Any, **options: Any) -> str:
        status: str = await super().execute(*args, **options)
        self.answered_at = time.monotonic()
        return status

    async def fetch(self, *args: Any, **options: Any) -> Any:
        rows = await super().fetch(*args, **options)
        self.answered_at = time.monotonic()
        return rows


class Hosts:
    """The hosts of a database, in the order in which to try them."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self._last_good: Host | None = None
        self._failed_at: dict[Host | None, float] = {}
        """Host → monotonic time at which it last failed, for each host that has not worked since."""
        self._number = len(address.hosts)
        """Number of hosts, including the addresses of their names."""

    @property
    def where(self) -> str:
        """Hosts and database, for messages."""
        return self._address.where

    @property
    def timeout_s(self) -> int:
        """Maximum time in seconds to connect to one host."""
        return self._address.connect_timeout or (_TIMEOUT_S if self._number > 1 else _SINGLE_TIMEOUT_S)

    async def connect(
        self,
        url: str | None = None,
        *,
        set_up: Callable[[Any], Awaitable[None]] | None = None,
        connection_class: type[HostConnection] = HostConnection,
        **options: Any,
    ) -> Any:
        """Opens a connection to the first host that can be used, and prepares it with `set_up`.

        Raises the host's error, or `NoUsableHost` if there are several. `options` are those of
        `asyncpg.connect`. A single host may be read-only, unless the URL says otherwise. Of several hosts,
        one that accepts writes is needed.
        """
        candidates = await self._candidates()
        self._number = len(candidates)
        attrs = self._address.session_attrs
        if attrs is None and len(self._address.hosts) > 1:
            attrs = "read-write"
        errors: dict[Host | None, Exception] = {}
        for host in candidates:
            try:
                async with asyncio.timeout(self.timeout_s):
                    connection = await self._connect_to(
                        host,
                        url,
                        target_session_attrs=attrs,
                        connection_class=connection_class,
                        **options,
                    )
                    await _set_up(connection, set_up)
            except exceptions.ClientConfigurationError:
                raise
            except _HOST_ERRORS as error:
                self.note_failure(host)
                errors[host] = error
                continue
            connection.origin = Origin(host, time.monotonic())
            self._last_good = host
            self._failed_at.pop(host, None)
            return connection
        raise self._combined(errors)

    def note_failure(self, host: Host | None) -> None:
        """Makes a host the last one to be tried, because it does not answer or accepts no writes."""
        self._failed_at[host] = time.monotonic()

    async def answers(self, host: Host | None, *, is_pooler: bool = False) -> bool:
        """Returns False if a new connection to the host gets no answer or is refused.

        Returns True if the server answers, even if only with an error, and if something else prevents the
        check: names cannot be resolved, this machine has no resources left, or this process was suspended
        meanwhile. From a pooler, a login is an answer: a statement would wait for a free server session.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                connection = await self._connect_to(host, target_session_attrs="any", statement_cache_size=0)
                try:
                    if not is_pooler:
                        await connection.execute("SELECT 1")
                finally:
                    connection.terminate()
        except TimeoutError:
            return time.monotonic() - began > self.timeout_s + _SUSPENDED_S
        except (socket.gaierror, ssl.SSLError):
            return True
        except OSError as error:
            return error.errno in _EXHAUSTED
        except (asyncpg.PostgresError, exceptions.InterfaceError, exceptions.InternalClientError):
            return True
        return True

    async def _connect_to(self, host: Host | None, url: str | None = None, **options: Any) -> Any:
        if host is not None:
            options |= {"host": host.name, "port": host.port}
        return await asyncpg.connect(url or self._address.url, timeout=self.timeout_s, **options)

    async def _candidates(self) -> list[Host | None]:
        """Returns the hosts in the order in which to try them: the last good one first, failed ones last."""
        hosts = self._address.hosts
        if not hosts:
            return [None]
        found = [one for each in await asyncio.gather(*map(self._with_addresses, hosts)) for one in each]
        failed_at = {host: self._failed_at[host] for host in found if host in self._failed_at}
        self._failed_at = failed_at  # without addresses that a name no longer has
        return sorted(found, key=lambda host: (failed_at.get(host, 0.0), host != self._last_good))

    async def _with_addresses(self, host: Host) -> list[Host | None]:
        """Returns a host and, if its name has several addresses, a host for each address.

        The name comes first, because some services find the database by it (TLS server name). The first
        address comes last, because connecting by the name has used it.
        """
        if self._address.verifies_name or host.name.startswith("/") or _is_address(host.name):
            return [host]
        found: Sequence[Any] = ()
        with suppress(OSError, UnicodeError):  # raised again when connecting by the name
            async with asyncio.timeout(_TIMEOUT_S):
                found = await self._resolve(host)
        names = list(dict.fromkeys(str(address[0]) for *_, address in found))
        if len(names) < 2 or all(ip_address(name.partition("%")[0]).is_loopback for name in names):
            return [host]
        return [host, *(Host(name, host.port) for name in reversed(names))]

    async def _resolve(self, host: Host) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host.name, host.port, type=socket.SOCK_STREAM)

    def _combined(self, errors: dict[Host | None, Exception]) -> Exception:
        """Returns the error to raise if no host could be used."""
        named = [(host, errors[host]) for host in self._address.hosts if host in errors]
        if len(named) > 1:
            return NoUsableHost(named)
        return named[0][1] if named else next(iter(errors.values()))


def describe_host_error(error: Exception) -> str:
    """Returns why a host cannot be used, on one line."""
    match error:
        case TimeoutError():
            return "does not answer"
        case exceptions.TargetServerAttributeNotMatched():
            return "is read-only, or does not match target_session_attrs"
        case exceptions.InvalidAuthorizationSpecificationError() | exceptions.InvalidCatalogNameError():
            return "rejected the login; check the user, password and database"
        case asyncpg.PostgresError():
            return f"{str(error).partition(chr(10))[0]} ({error.sqlstate})"
        case socket.gaierror():
            return "its name cannot be resolved"
        case ssl.SSLCertVerificationError(verify_message=str(problem)):
            return f"its certificate is not valid: {problem}"
        case ssl.SSLError():
            return f"TLS failed: {error}"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case OSError() if text := str(error).partition(chr(10))[0]:
            return text
        case _:
            return type(error).__name__


async def _set_up(connection: Any, set_up: Callable[[Any], Awaitable[None]] | None) -> None:
    try:
        if set_up is not None:
            await set_up(connection)
    except BaseException:
        connection.terminate()
        raise


def _is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
