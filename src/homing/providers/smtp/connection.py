"""SMTP sessions: opens a connection, sends emails over it, and turns its errors into outcomes."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from typing import Any, cast

import aiosmtplib
from aiosmtplib.protocol import SMTPProtocol
from msgspec import Struct

from homing.core.lifecycle.outcomes import Outcome
from homing.net.secrets import Secret
from homing.providers.smtp.replies import SmtpReply, SmtpStage, classify_reply, event_outcome

_LINE_START_DOT = re.compile(rb"(?m)^\.")

_CHUNK_BYTES = 64 * 1024
"""Maximum number of bytes written at a time.

A TLS transport copies each write to the socket's buffer at once, and checks only between writes whether that
buffer is full. A single large write would therefore appear to be sent long before it is.
"""


class SmtpEnvelope(Struct, frozen=True, kw_only=True):
    """An email and its envelope."""

    sender: str
    recipient: str
    data: bytes
    """The email with CRLF line ends, including the last line, before dot-stuffing."""
    id: str

    def __repr__(self) -> str:
        return f"SmtpEnvelope({len(self.data)} bytes)"

    @property
    def international(self) -> bool:
        return not (self.sender.isascii() and self.recipient.isascii())


class SmtpServer(Struct, frozen=True, kw_only=True):
    """The address of the server, and how to connect and log in."""

    host: str
    port: int
    tls: str
    """Kind of encryption: `tls` (from the first byte), `starttls` or `none`."""
    context: ssl.SSLContext | None
    username: str
    password: Secret | None
    local_hostname: str
    """The name sent with EHLO. Determining it per connection would cost a thread and a DNS query."""


class SmtpProgress:
    """The stage that an attempt has reached, which decides what a broken connection means."""

    __slots__ = ("stage",)

    def __init__(self) -> None:
        self.stage = SmtpStage.WAITING


class SmtpSessionRefused(Exception):
    """Raised if the server lacks STARTTLS or a login method that we support, but the settings require it.

    `outcome` is the outcome of the attempt.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error_code)
        self.outcome = outcome


async def open_session(server: SmtpServer) -> aiosmtplib.SMTP:
    """Connects, greets, encrypts and logs in.

    Raises `SmtpSessionRefused`, or an error of the SMTP client or the network.
    """
    client = aiosmtplib.SMTP(
        hostname=server.host,
        port=server.port,
        use_tls=server.tls == "tls",
        start_tls=False,
        tls_context=server.context,
        local_hostname=server.local_hostname,
        timeout=None,
    )
    await client.connect()
    try:
        await _greet(client)
        if server.tls == "starttls":
            if not client.supports_extension("starttls"):
                raise SmtpSessionRefused(event_outcome("starttls_missing"))
            await client.starttls()
            await _greet(client)
        if server.username:
            await _log_in(client, server)
    except BaseException:
        client.close()
        raise
    return client


async def _greet(client: aiosmtplib.SMTP) -> None:
    try:
        await client.ehlo()
    except aiosmtplib.SMTPHeloError as error:
        if error.code // 100 != 5 or not client.is_connected:
            raise
        await client.helo()  # a server without ESMTP


async def _log_in(client: aiosmtplib.SMTP, server: SmtpServer) -> None:
    if not client.supported_auth_methods:
        raise SmtpSessionRefused(event_outcome("auth_missing"))
    await client.login(server.username, server.password.reveal() if server.password else "")


async def send_envelope(client: aiosmtplib.SMTP, envelope: SmtpEnvelope, progress: SmtpProgress) -> Outcome:
    """Sends one email. `progress` holds the stage that was reached, even if this function raises."""
    if envelope.international and not client.supports_extension("smtputf8"):
        return event_outcome("smtputf8_missing")
    options = [b"SMTPUTF8"] if envelope.international else []
    if client.supports_extension("size"):
        limit = client.esmtp_extensions.get("size", "")
        if limit.isdigit() and 0 < int(limit) < len(envelope.data):
            return event_outcome(
                "too_large", f"{len(envelope.data)} bytes; the server accepts at most {limit}"
            )
        options.append(b"SIZE=%d" % len(envelope.data))
    steps = (
        (SmtpStage.SENDER, (b"MAIL", b"FROM:<%b>" % envelope.sender.encode(), *options)),
        (SmtpStage.RECIPIENT, (b"RCPT", b"TO:<%b>" % envelope.recipient.encode())),
        (SmtpStage.DATA, (b"DATA",)),
    )
    for stage, command in steps:
        progress.stage = stage
        reply = _reply(await client.execute_command(*command))
        if not (reply.goes_on if stage is SmtpStage.DATA else reply.positive):
            return classify_reply(reply, stage)
    reply = await _write_data(client, envelope.data, progress)
    return classify_reply(reply, progress.stage)


async def _write_data(client: aiosmtplib.SMTP, data: bytes, progress: SmtpProgress) -> SmtpReply:
    """Writes the email, then the final dot, and reads the reply.

    The dot is written only once the transport has sent everything before it. If the connection breaks or
    hangs before that, the server cannot have accepted the email, so the attempt is transient, not ambiguous.
    """
    protocol = client.protocol
    if protocol is None:
        raise aiosmtplib.SMTPServerDisconnected("connection lost")
    reply = asyncio.ensure_future(protocol.read_response())  # a server may also reply before the dot
    await asyncio.sleep(0)
    try:
        _pause_unless_empty(protocol.transport)
        stuffed = _LINE_START_DOT.sub(b"..", data)
        for start in range(0, len(stuffed), _CHUNK_BYTES):
            if not await _write(protocol, stuffed[start : start + _CHUNK_BYTES], reply):
                return _interrupted(client, _reply(reply.result()))
        protocol.write(b".\r\n")  # if this raises, nothing was written
        progress.stage = SmtpStage.DOT
        return _reply(await reply)
    finally:
        _cancel(reply)


async def _write(protocol: SMTPProtocol, chunk: bytes, reply: asyncio.Task[aiosmtplib.SMTPResponse]) -> bool:
    """Writes a part of the email and waits until it is sent. Returns False if the server replied first."""
    protocol.write(chunk)
    drained = asyncio.ensure_future(protocol._drain_helper())
    try:
        await asyncio.wait((drained, reply), return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return False
        drained.result()
        return True
    finally:
        _cancel(drained)


def _pause_unless_empty(transport: asyncio.BaseTransport | None) -> None:
    """Makes the transport pause its protocol while anything is left in its buffer.

    The type of the transport is not checked, because uvloop's transports are not subclasses of asyncio's. The
    limit is one byte, not zero: with zero, a TLS transport of either loop also pauses when its buffer is
    empty, and is never resumed.
    """
    if transport is None or transport.is_closing():
        raise aiosmtplib.SMTPServerDisconnected("connection lost")
    cast(asyncio.WriteTransport, transport).set_write_buffer_limits(high=1, low=0)


def _interrupted(client: aiosmtplib.SMTP, reply: SmtpReply) -> SmtpReply:
    """Closes the connection and returns the reply: a server that replies before the dot rejects the email."""
    client.close()
    return reply


def _cancel(task: asyncio.Task[Any]) -> None:
    if not task.cancel() and not task.cancelled():
        task.exception()  # marks the exception as retrieved, so that asyncio does not log it


def _reply(response: aiosmtplib.SMTPResponse) -> SmtpReply:
    return SmtpReply(response.code, response.message.encode("utf-8", "replace").decode())


def smtp_error_outcome(error: Exception, stage: SmtpStage) -> Outcome:
    """Returns the outcome of an exception, depending on the stage that was reached."""
    if isinstance(error, SmtpSessionRefused):
        return error.outcome
    if isinstance(error, aiosmtplib.SMTPResponseException) and error.code > 0:
        return classify_reply(_reply(aiosmtplib.SMTPResponse(error.code, error.message)), stage)
    code = _event_code(error, stage)
    return event_outcome(f"{code}_after_dot" if stage is SmtpStage.DOT else code)


def _event_code(error: Exception, stage: SmtpStage) -> str:
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(cause, ssl.SSLError) and stage <= SmtpStage.GREETING:
        return "tls_certificate" if isinstance(cause, ssl.SSLCertVerificationError) else "tls"
    if isinstance(cause, socket.gaierror):
        return "dns"
    if isinstance(error, aiosmtplib.SMTPConnectError) and not isinstance(
        error, aiosmtplib.SMTPResponseException
    ):
        return "connect"
    if isinstance(error, TimeoutError):
        return "timeout"
    return "dropped" if isinstance(error, OSError) else "protocol"
