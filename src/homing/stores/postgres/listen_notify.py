"""Receives PostgreSQL's messages (LISTEN/NOTIFY) about new work. A lost message only delays the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg

from homing.stores.postgres.hosts import Hosts

_RECONNECT_DELAY_S = 1.0


INBOX_PAYLOAD = "inbox"
"""Payload of a NOTIFY about a new inbox entry. The payload is empty if notifications were accepted."""


async def listen_forever(
    hosts: Hosts,
    channel: str,
    on_payload: Callable[[str], None],
    until_expired: Callable[[], Awaitable[None]],
) -> None:
    """Listens on a separate connection until cancelled and reconnects if it breaks.

    Also reconnects when `until_expired` returns, which means that the server may be gone: a listener only
    waits, so it does not notice a server that hangs. Calls `on_payload` with the payload of each NOTIFY.
    """
    while True:
        with suppress(
            asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError
        ):
            await _listen(hosts, channel, on_payload, until_expired)
        await asyncio.sleep(_RECONNECT_DELAY_S)


async def _listen(
    hosts: Hosts,
    channel: str,
    on_payload: Callable[[str], None],
    until_expired: Callable[[], Awaitable[None]],
) -> None:
    disconnected = asyncio.Event()
    expired = asyncio.ensure_future(until_expired())
    expired.add_done_callback(lambda _: disconnected.set())
    connection = None

    def on_notify(connection: Any, pid: int, channel: str, payload: object) -> None:
        on_payload(str(payload))

    def on_disconnect(*_: Any) -> None:
        disconnected.set()

    try:
        connection = await hosts.connect(statement_cache_size=0)
        connection.add_termination_listener(on_disconnect)
        async with asyncio.timeout(hosts.timeout_s):
            await connection.add_listener(channel, on_notify)
        for payload in ("", INBOX_PAYLOAD):  # work may have arrived before the listener was added
            on_payload(payload)
        await disconnected.wait()
    finally:
        expired.cancel()
        if connection is not None:
            connection.terminate()
