"""One SMTP connection: how it is opened, and how one mail goes over it."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from typing import Any, cast

import aiosmtplib
from aiosmtplib.protocol import SMTPProtocol
from msgspec import Struct

from homing.core.model import Outcome
from homing.providers.secret import Secret
from homing.providers.smtp_replies import Reply, Stage, classify, happened

_LINE_START_DOT = re.compile(rb"(?m)^\.")
_CHUNK_BYTES = 64 * 1024
"""Most bytes written at once. A TLS layer passes all it is given to the socket's buffer, whose size cannot be
read through it; only between chunks does it notice that this buffer is full."""


class Letter(Struct, frozen=True, kw_only=True):
    """A mail and its envelope."""

    sender: str
    recipient: str
    data: bytes
    """CRLF line ends, the last line too; dots are not doubled yet."""
    id: str

    def __repr__(self) -> str:
        return f"Letter({len(self.data)} bytes)"

    @property
    def international(self) -> bool:
        return not (self.sender.isascii() and self.recipient.isascii())


class Door(Struct, frozen=True, kw_only=True):
    """Where the server is and how to be let in."""

    host: str
    port: int
    tls: str
    """`tls` from the first byte, `starttls`, or `none`."""
    context: ssl.SSLContext | None
    username: str
    password: Secret | None
    local_hostname: str
    """What EHLO says; looking it up at each connection would cost a thread and a DNS question."""


class Progress:
    """How far an attempt has come, for those who must say what a break means."""

    __slots__ = ("stage",)

    def __init__(self) -> None:
        self.stage = Stage.WAITING


class Refused(Exception):
    """The server does not let us in; says what that is."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error_code)
        self.outcome = outcome


async def open_session(door: Door) -> aiosmtplib.SMTP:
    """Connected, greeted, encrypted and logged in. Raises `Refused`, or what the network does."""
    client = aiosmtplib.SMTP(
        hostname=door.host,
        port=door.port,
        use_tls=door.tls == "tls",
        start_tls=False,
        tls_context=door.context,
        local_hostname=door.local_hostname,
        timeout=None,
    )
    await client.connect()
    try:
        await _greet(client)
        if door.tls == "starttls":
            if not client.supports_extension("starttls"):
                raise Refused(happened("starttls_missing"))
            await client.starttls()
            await _greet(client)
        if door.username:
            await _log_in(client, door)
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
        await client.helo()  # a server from before ESMTP


async def _log_in(client: aiosmtplib.SMTP, door: Door) -> None:
    if not client.supported_auth_methods:
        raise Refused(happened("auth_missing"))
    await client.login(door.username, door.password.reveal() if door.password else "")


async def converse(client: aiosmtplib.SMTP, letter: Letter, progress: Progress) -> Outcome:
    """One mail transaction. `progress` knows afterwards how far it came, whatever is raised."""
    if letter.international and not client.supports_extension("smtputf8"):
        return happened("smtputf8_missing")
    options = [b"SMTPUTF8"] if letter.international else []
    if client.supports_extension("size"):
        limit = client.esmtp_extensions.get("size", "")
        if limit.isdigit() and 0 < int(limit) < len(letter.data):
            return happened("too_large", f"{len(letter.data)} bytes; allowed are {limit}")
        options.append(b"SIZE=%d" % len(letter.data))
    steps = (
        (Stage.SENDER, (b"MAIL", b"FROM:<%b>" % letter.sender.encode(), *options)),
        (Stage.RECIPIENT, (b"RCPT", b"TO:<%b>" % letter.recipient.encode())),
        (Stage.DATA, (b"DATA",)),
    )
    for stage, command in steps:
        progress.stage = stage
        reply = _reply(await client.execute_command(*command))
        if not (reply.goes_on if stage is Stage.DATA else reply.positive):
            return classify(reply, stage)
    reply = await _hand_over(client, letter.data, progress)
    return classify(reply, progress.stage)


async def _hand_over(client: aiosmtplib.SMTP, data: bytes, progress: Progress) -> Reply:
    """Writes the mail, then the final dot, and reads the reply.

    The dot is written only once the transport has taken everything before it. If the connection breaks or
    hangs before that, the server cannot have accepted the mail: the attempt is transient, not ambiguous.
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
        protocol.write(b".\r\n")  # raises only where nothing was written
        progress.stage = Stage.DOT
        return _reply(await reply)
    finally:
        _forget(reply)


async def _write(protocol: SMTPProtocol, chunk: bytes, reply: asyncio.Task[aiosmtplib.SMTPResponse]) -> bool:
    """Writes a part of the mail and waits until it has left. Returns False if the server replied first."""
    protocol.write(chunk)
    drained = asyncio.ensure_future(protocol._drain_helper())
    try:
        await asyncio.wait((drained, reply), return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return False
        drained.result()
        return True
    finally:
        _forget(drained)


def _pause_unless_empty(transport: asyncio.BaseTransport | None) -> None:
    """Makes the transport pause its protocol while anything is left in its buffer.

    The class of the transport is not checked: uvloop's transports do not derive from asyncio's. The limit is
    one byte and not zero: with zero, a TLS transport of either loop also pauses when its buffer is empty, and
    then nothing resumes it.
    """
    if transport is None or transport.is_closing():
        raise aiosmtplib.SMTPServerDisconnected("connection lost")
    cast(asyncio.WriteTransport, transport).set_write_buffer_limits(high=1, low=0)


def _interrupted(client: aiosmtplib.SMTP, reply: Reply) -> Reply:
    """A server that answers before the dot has refused the mail; the connection is of no further use."""
    client.close()
    return reply


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancel() and not task.cancelled():
        task.exception()  # looked at: nobody else will


def _reply(response: aiosmtplib.SMTPResponse) -> Reply:
    return Reply(response.code, response.message.encode("utf-8", "replace").decode())


def outcome_of(error: Exception, stage: Stage) -> Outcome:
    """What an exception of a conversation means, by how far it had come."""
    if isinstance(error, Refused):
        return error.outcome
    if isinstance(error, aiosmtplib.SMTPResponseException) and error.code > 0:
        return classify(_reply(aiosmtplib.SMTPResponse(error.code, error.message)), stage)
    word = _word(error, stage)
    return happened(f"{word}_after_dot" if stage is Stage.DOT else word)


def _word(error: Exception, stage: Stage) -> str:
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(cause, ssl.SSLError) and stage <= Stage.GREETING:
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
