"""Receives PostgreSQL's messages (LISTEN/NOTIFY) about new work. A lost message only delays the work.

A pooler in transaction mode accepts LISTEN, but no message arrives: they go to the server session that
happened to run the command, which the pooler then gives to other clients. So each new connection is tested
before it is relied on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import Any

import asyncpg

from homing.core.errors import StoreError
from homing.stores.postgres.errors import is_connection_lost
from homing.stores.postgres.hosts import Hosts, NoUsableHost, describe_host_error

log = logging.getLogger("homing.postgres")

_RECONNECT_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0
"""Pauses before connecting again. They grow while the server answers and refuses, which may last."""

_TEST_TIMEOUT_S = 3.0
"""Time within which the message of a test has to arrive."""

_NEXT_TEST_S = 300.0
"""Pause after a failed test. The server may have been slow, or the pooler may be replaced."""

_SETTINGS = "SELECT set_config('idle_session_timeout', '0', false)"
"""An idle connection is what a listener has to be."""

INBOX_PAYLOAD = "inbox"
"""Payload of a NOTIFY about a new inbox entry. The payload is empty if notifications were accepted."""

LISTEN_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Errors of the connection that listens."""

Notify = Callable[[str], Awaitable[None]]
"""Sends a message on this channel over a connection of the store."""


class Listener:
    """Listens on a separate connection."""

    def __init__(
        self, hosts: Hosts, channel: str, notify: Notify, until_expired: Callable[[], Awaitable[None]]
    ) -> None:
        """Connects to one of `hosts`, and again when `until_expired` returns.

        It returns when the server may be gone: a listener only waits, so it does not notice a server that
        hangs.
        """
        self._hosts = hosts
        self._channel = channel
        self._notify = notify
        self._until_expired = until_expired
        self._has_warned = False
        self._failures = 0
        """Number of connections that failed since the last one that worked."""
        self._warned: set[type[Exception]] = set()
        """Errors of which the log tells already."""
        self.receives = False
        """True while messages arrive."""

    async def run(self, on_payload: Callable[[str], None]) -> None:
        """Listens until cancelled and reconnects if the connection breaks.

        Calls `on_payload` with the payload of each NOTIFY.
        """
        while True:
            pause_s = _RECONNECT_DELAY_S
            try:
                async with self._connect() as connection:
                    if await self._passes_test(connection):
                        self._failures = 0
                        await self._listen(connection, on_payload)
                    else:
                        self._warn()
                        pause_s = _NEXT_TEST_S
            except (*LISTEN_ERRORS, StoreError) as error:
                pause_s = self._note_failure(error)
            await asyncio.sleep(pause_s)

    async def test(self) -> bool:
        """Returns True if messages arrive on a new connection.

        Raises one of `LISTEN_ERRORS`, or `StoreError` if the message cannot be sent.
        """
        async with self._connect() as connection:
            return await self._passes_test(connection)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        connection = await self._hosts.connect(statement_cache_size=0)
        try:
            yield connection
        finally:
            connection.terminate()

    async def _passes_test(self, connection: Any) -> bool:
        """Returns True if a message that the store sends over another connection arrives on this one.

        The test has a channel of its own. If it fails, the session of the pooler may go on listening to that
        channel, on which nothing is sent again.
        """
        channel = f"{self._channel}_{token_hex(4)}"
        arrived = asyncio.Event()

        def on_notify(*_: Any) -> None:
            arrived.set()

        async with asyncio.timeout(self._hosts.timeout_s):
            await connection.add_listener(channel, on_notify)
        await self._notify(channel)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TEST_TIMEOUT_S):
                await arrived.wait()
        async with asyncio.timeout(self._hosts.timeout_s):
            await connection.remove_listener(channel, on_notify)
        return arrived.is_set()

    async def _listen(self, connection: Any, on_payload: Callable[[str], None]) -> None:
        disconnected = asyncio.Event()
        expired = asyncio.ensure_future(self._until_expired())
        expired.add_done_callback(lambda _: disconnected.set())

        def on_notify(connection: Any, pid: int, channel: str, payload: object) -> None:
            on_payload(str(payload))

        def on_disconnect(*_: Any) -> None:
            disconnected.set()

        try:
            connection.add_termination_listener(on_disconnect)
            async with asyncio.timeout(self._hosts.timeout_s):
                await connection.execute(_SETTINGS)
                await connection.add_listener(self._channel, on_notify)
            self.receives = True
            for payload in ("", INBOX_PAYLOAD):  # work may have arrived before the listener was added
                on_payload(payload)
            await disconnected.wait()
        finally:
            self.receives = False
            expired.cancel()

    def _note_failure(self, error: Exception) -> float:
        """Returns the pause before the next connection. Warns once of each kind of error.

        The first failure is not worth a warning: the connection may be lost because the server is restarted.
        """
        self._failures += 1
        if self._failures > 1 and type(error) not in self._warned:
            self._warned.add(type(error))
            is_described = isinstance(error, (StoreError, NoUsableHost))
            log.warning(
                "%s: cannot listen for new work: %s. Workers poll more often instead. Check the URL (or its "
                "listen_url, if it has one), or set listen=false",
                self._hosts.where,
                error if is_described else describe_host_error(error),
            )
        if isinstance(error, StoreError) or is_connection_lost(error):
            return _RECONNECT_DELAY_S
        return min(_LONGEST_DELAY_S, _RECONNECT_DELAY_S * 2.0 ** min(self._failures - 1, 10))

    def _warn(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "%s accepts LISTEN, but no message arrives, as behind a pooler in transaction mode. Workers poll "
            "more often instead. Give a direct URL of the same database as listen_url, or set listen=false",
            self._hosts.where,
        )
