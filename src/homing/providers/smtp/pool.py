"""A bounded pool of open SMTP connections. Each is limited in its idle time and in its number of emails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import aiosmtplib
from msgspec import Struct

_QUIT_TIMEOUT_S = 1.0


class PooledSession(Struct):
    """A connection, the number of emails sent over it, and the loop time since which it is idle."""

    client: aiosmtplib.SMTP
    mails: int = 0
    idle_since: float = 0.0


class SmtpPool:
    """Lends connections.

    A connection that was interrupted is closed instead of being returned to the pool.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[aiosmtplib.SMTP]],
        *,
        size: int,
        idle_ms: int,
        mails: int,
    ) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(size)
        self._idle: deque[PooledSession] = deque()
        self._idle_s = idle_ms / 1000
        self._mails = mails
        self._sweeper: asyncio.TimerHandle | None = None

    async def reserve(self) -> None:
        """Waits until fewer than `size` connections are in use, and reserves one."""
        await self._free.acquire()

    def release(self) -> None:
        self._free.release()

    async def session(self) -> PooledSession:
        """Returns the most recently used connection that still answers, or else a new one."""
        while self._idle:
            session = self._idle.pop()
            if self._is_expired(session) or not await _answers(session.client):
                session.client.close()
                continue
            return session
        return PooledSession(await self._connect())

    def keep(self, session: PooledSession) -> None:
        """Returns a connection to the pool, unless it is closed or has sent its maximum number of emails."""
        session.mails += 1
        if session.mails >= self._mails or not session.client.is_connected:
            session.client.close()
            return
        loop = asyncio.get_running_loop()
        session.idle_since = loop.time()
        self._idle.append(session)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._idle_s, self._sweep)

    async def close(self) -> None:
        """Closes the idle connections with QUIT."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        leaving, self._idle = list(self._idle), deque()
        await asyncio.gather(*(_quit(session.client) for session in leaving))

    def _is_expired(self, session: PooledSession) -> bool:
        age = asyncio.get_running_loop().time() - session.idle_since
        return age > self._idle_s or not session.client.is_connected

    def _sweep(self) -> None:
        """Closes connections that were idle for too long. The longest idle ones are on the left."""
        self._sweeper = None
        while self._idle and self._is_expired(self._idle[0]):
            self._idle.popleft().client.close()
        if self._idle:
            self._sweeper = asyncio.get_running_loop().call_later(self._idle_s, self._sweep)


async def _answers(client: aiosmtplib.SMTP) -> bool:
    """Sends RSET, which clears the remains of a rejected email and shows whether the server still answers."""
    try:
        await client.rset()
    except (aiosmtplib.SMTPException, OSError):
        return False
    except asyncio.CancelledError:
        client.close()
        raise
    return True


async def _quit(client: aiosmtplib.SMTP) -> None:
    try:
        await client.quit(timeout=_QUIT_TIMEOUT_S)
    except (aiosmtplib.SMTPException, OSError):
        client.close()
