"""Hearing from PostgreSQL that something was accepted. Losing every word of it only costs time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg

from homing.stores.postgres.names import Address

_AGAIN_S = 1.0
"""Between two tries to connect."""


INBOX = "inbox"
"""What is said when something was written to the inbox; nothing is said when something was accepted."""


async def listening(address: Address, channel: str, heard: Callable[[str], None]) -> None:
    """Listens on a connection of its own until it is cancelled; one that breaks is made anew."""
    while True:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            await _listen(address, channel, heard)
        await asyncio.sleep(_AGAIN_S)


async def _listen(address: Address, channel: str, heard: Callable[[str], None]) -> None:
    gone = asyncio.Event()
    connection = await asyncpg.connect(address.url, statement_cache_size=0, timeout=30)

    def told(connection: Any, pid: int, channel: str, said: object) -> None:
        heard(str(said))

    def lost(*_: Any) -> None:
        gone.set()

    try:
        connection.add_termination_listener(lost)
        await connection.add_listener(channel, told)
        for said in ("", INBOX):  # while nobody listened
            heard(said)
        await gone.wait()
    finally:
        connection.terminate()
