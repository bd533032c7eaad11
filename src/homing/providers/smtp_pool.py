"""Open SMTP connections, kept for the next mail: so many at most, each for so long and so many mails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import aiosmtplib
from msgspec import Struct

_FAREWELL_S = 1.0


class Session(Struct):
    """A connection and what it has been through."""

    client: aiosmtplib.SMTP
    mails: int = 0
    idle_since: float = 0.0


class SmtpPool:
    """Lends connections. One that was cut off in the middle of something is closed, not kept."""

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
        self._idle: deque[Session] = deque()
        self._idle_s = idle_ms / 1000
        self._mails = mails
        self._sweeper: asyncio.TimerHandle | None = None

    async def reserve(self) -> None:
        """Waits for its turn: at most `size` have one."""
        await self._free.acquire()

    def release(self) -> None:
        self._free.release()

    async def session(self) -> Session:
        """The connection used last, if it still answers; else a new one. Nothing was sent over it yet."""
        while self._idle:
            session = self._idle.pop()
            if self._outlived(session) or not await _answers(session.client):
                session.client.close()
                continue
            return session
        return Session(await self._connect())

    def keep(self, session: Session) -> None:
        """Idle from now on, unless it has carried enough mails or is no longer there."""
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
        """Says goodbye on the idle ones."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        leaving, self._idle = list(self._idle), deque()
        await asyncio.gather(*(_quit(session.client) for session in leaving))

    def _outlived(self, session: Session) -> bool:
        age = asyncio.get_running_loop().time() - session.idle_since
        return age > self._idle_s or not session.client.is_connected

    def _sweep(self) -> None:
        """Those that waited longest are on the left."""
        self._sweeper = None
        while self._idle and self._outlived(self._idle[0]):
            self._idle.popleft().client.close()
        if self._idle:
            self._sweeper = asyncio.get_running_loop().call_later(self._idle_s, self._sweep)


async def _answers(client: aiosmtplib.SMTP) -> bool:
    """RSET: it clears what a refused mail may have left, and shows whether anybody is there."""
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
        await client.quit(timeout=_FAREWELL_S)
    except (aiosmtplib.SMTPException, OSError):
        client.close()
