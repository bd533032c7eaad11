"""Receives PostgreSQL's messages (LISTEN/NOTIFY) about new work. A lost message only delays the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg

from homing.stores.postgres.address import DatabaseAddress

_RECONNECT_DELAY_S = 1.0


INBOX_PAYLOAD = "inbox"
"""Payload of a NOTIFY about a new inbox entry. The payload is empty if notifications were accepted."""


async def listen_forever(address: DatabaseAddress, channel: str, on_payload: Callable[[str], None]) -> None:
    """Listens on a separate connection until cancelled and reconnects if it breaks.

    Calls `on_payload` with the payload of each NOTIFY.
    """
    while True:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            await _listen(address, channel, on_payload)
        await asyncio.sleep(_RECONNECT_DELAY_S)


async def _listen(address: DatabaseAddress, channel: str, on_payload: Callable[[str], None]) -> None:
    disconnected = asyncio.Event()
    connection = await asyncpg.connect(address.url, statement_cache_size=0, timeout=30)

    def on_notify(connection: Any, pid: int, channel: str, payload: object) -> None:
        on_payload(str(payload))

    def on_disconnect(*_: Any) -> None:
        disconnected.set()

    try:
        connection.add_termination_listener(on_disconnect)
        await connection.add_listener(channel, on_notify)
        for payload in ("", INBOX_PAYLOAD):  # work may have arrived before the listener was added
            on_payload(payload)
        await disconnected.wait()
    finally:
        connection.terminate()
