"""SMTP servers on real sockets: aiosmtpd, and one that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiosmtpd.handlers import Message
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class RecordingHandler:
    """A handler that keeps every envelope."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.sessions: list[Session] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.envelopes.append(envelope)
        self.sessions.append(session)
        return f"250 2.0.0 Ok: queued as Q{len(self.envelopes)}"


@contextlib.asynccontextmanager
async def aiosmtpd_server(
    handler: RecordingHandler | Message, *, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[int]:
    """Starts aiosmtpd and yields its port. With `tls`, connections are encrypted from the first byte."""
    loop = asyncio.get_running_loop()

    def factory() -> SMTP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # aiosmtpd does not recognize TLS from the first byte
            return SMTP(handler, hostname="mx.example", loop=loop, **options)

    server = await loop.create_server(factory, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def accept_only(username: str, password: str) -> Callable[..., AuthResult]:
    """Returns an authenticator that accepts one user."""

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        fits = isinstance(data, LoginPassword) and (data.login, data.password) == (
            username.encode(),
            password.encode(),
        )
        return AuthResult(success=fits, handled=False)

    return check


USUAL = {
    "greeting": b"220 mx.example ready\r\n",
    "EHLO": b"250-mx.example\r\n250-SIZE 100000\r\n250 ENHANCEDSTATUSCODES\r\n",
    "MAIL": b"250 2.1.0 Ok\r\n",
    "RCPT": b"250 2.1.5 Ok\r\n",
    "DATA": b"354 go ahead\r\n",
    "dot": b"250 2.0.0 Ok: queued as 4F2\r\n",
    "RSET": b"250 2.0.0 Ok\r\n",
    "NOOP": b"250 2.0.0 Ok\r\n",
    "QUIT": b"221 2.0.0 Bye\r\n",
}

SmtpReply = bytes | str
"""Bytes to reply, or `close`, `reset`, `hang`. For the step `body`: before the email is read."""


class ScriptedSmtpServer:
    """Replies by its script at each step, and keeps the emails.

    `script` is called with (connection number, step). None means the usual reply.
    """

    def __init__(self, script: Callable[[int, str], SmtpReply | None] = lambda number, step: None) -> None:
        self.script = script
        self.mails: list[bytes] = []
        """Complete emails with their final dot, whatever the reply was."""
        self.connections = 0
        self.steps: list[str] = []
        self.open: set[asyncio.StreamWriter] = set()
        self.took, self.alone = asyncio.Event(), asyncio.Event()
        """Set when an email was read, and when the last connection was closed."""

    async def __aenter__(self) -> ScriptedSmtpServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self.open):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.open.add(writer)
        try:
            await self._converse(number, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open.discard(writer)
            if not self.open:
                self.alone.set()
            writer.close()

    async def _converse(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not await self._do("greeting", self._told(number, "greeting"), reader, writer):
            return
        while line := await reader.readline():
            step = line.split()[0].decode("ascii", "replace").upper() if line.split() else ""
            told = self._told(number, step)
            if not await self._do(step, told, reader, writer) or step == "QUIT":
                return
            if step == "DATA" and told == USUAL["DATA"] and not await self._take(number, reader, writer):
                return

    async def _take(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if (interruption := self.script(number, "body")) is not None:
            return await self._do("body", interruption, reader, writer)
        self.mails.append(await reader.readuntil(b"\r\n.\r\n"))
        self.took.set()
        return await self._do("dot", self._told(number, "dot"), reader, writer)

    def _told(self, number: int, step: str) -> SmtpReply:
        """Calls the script once per step, because a script may have state."""
        told = self.script(number, step)
        return USUAL.get(step, b"502 5.5.1 what?\r\n") if told is None else told

    async def _do(
        self, step: str, told: SmtpReply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Performs a reply and returns whether the conversation continues."""
        self.steps.append(step)
        if isinstance(told, bytes):
            writer.write(told)
            await writer.drain()
            return True
        if told == "hang":
            await reader.read()  # until the client gives up
        elif told == "reset":
            linger: socket.socket = writer.get_extra_info("socket")
            linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return False
