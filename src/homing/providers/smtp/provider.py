"""SMTP: sends email through any server, over pooled connections."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl

from msgspec.structs import replace

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.secrets import Secret, read_secret
from homing.providers.common.email_message import (
    DEFAULT_SUBJECT,
    build_email,
    check_email_defaults,
    check_mailbox,
)
from homing.providers.common.http_provider import CheckFailed, Unsendable, WallClock, wall_clock_ms
from homing.providers.common.mime import build_message_id, build_mime
from homing.providers.smtp.connection import (
    SmtpEnvelope,
    SmtpProgress,
    SmtpServer,
    open_session,
    send_envelope,
    smtp_error_outcome,
)
from homing.providers.smtp.pool import SmtpPool
from homing.providers.smtp.replies import SmtpStage, event_outcome

_PORTS = {"starttls": 587, "tls": 465, "none": 25}

_CHECK_S = 5.0

_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.?")


class SmtpProvider:
    """Sends email through one server. All attempts of a notification have the same `Message-ID`."""

    channels = ("email",)
    ends_in_time = True

    def __init__(
        self,
        *,
        host: str,
        from_email: str,
        from_name: str = "",
        reply_to: str = "",
        envelope_from: str = "",
        port: int | None = None,
        tls: str = "starttls",
        ca_file: str = "",
        allow_plaintext: bool = False,
        username: str = "",
        password: str | Secret = "",
        local_hostname: str = "",
        max_connections: int = 8,
        idle_ms: int = 30_000,
        mails_per_connection: int = 100,
        default_subject: str = DEFAULT_SUBJECT,
        unsubscribe_mailto: str | None = None,
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        host = _check_host(host)
        if tls not in _PORTS:
            raise ConfigError("tls", f"is {tls!r}; use one of {', '.join(_PORTS)}")
        if tls == "none" and not allow_plaintext and not _is_loopback(host):
            raise ConfigError("tls", "is none, but the server is remote; use TLS or set allow_plaintext")
        for name, value in (
            ("max_connections", max_connections),
            ("idle_ms", idle_ms),
            ("mails_per_connection", mails_per_connection),
        ):
            if value < 1:
                raise ConfigError(name, f"is {value}; must be at least 1")
        self._sender = check_mailbox("from_email", from_email, from_name, "from_name")
        self._reply_to = check_mailbox("reply_to", reply_to) if reply_to else None
        self._envelope_from = check_mailbox("envelope_from", envelope_from or from_email).address
        self._style = check_email_defaults(default_subject, unsubscribe_mailto)
        self._server = SmtpServer(
            host=host,
            port=_check_port(port, _PORTS[tls]),
            tls=tls,
            context=None if tls == "none" else _context(ca_file),
            username=username,
            password=read_secret("password", password) if username else None,
            local_hostname=_check_host(
                local_hostname or self._sender.address.rpartition("@")[2], "local_hostname"
            ),
        )
        self._pool = SmtpPool(
            lambda: open_session(self._server),
            size=max_connections,
            idle_ms=idle_ms,
            mails=mails_per_connection,
        )
        self._now_ms = now_ms

    def build(self, delivery: Delivery, now_ms: int) -> SmtpEnvelope:
        """Builds the email of this attempt and its envelope. Raises `Unsendable` if that is impossible."""
        mail = build_email(delivery, self._style)
        id = build_message_id(delivery.idempotency_key, self._sender)
        data = build_mime(mail, sender=self._sender, reply_to=self._reply_to, id=id, now_ms=now_ms)
        return SmtpEnvelope(sender=self._envelope_from, recipient=mail.to, data=data, id=id)

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            envelope = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        progress = SmtpProgress()
        try:
            async with asyncio.timeout(delivery.timeout_ms / 1000):
                return await self._send(envelope, progress)
        except TimeoutError:
            return _timeout_outcome(progress.stage)
        except Exception as error:  # any failure of the client: the stage it reached decides the outcome
            return smtp_error_outcome(error, progress.stage)

    async def check(self) -> bool:
        """Returns True if the server accepts a connection and our login."""
        try:
            await self.diagnose()
        except CheckFailed:
            return False
        return True

    async def diagnose(self) -> str:
        """Returns an empty text if `check` succeeds. Otherwise raises `CheckFailed`."""
        try:
            async with asyncio.timeout(_CHECK_S):
                client = await open_session(self._server)
                client.close()
        except Exception as error:  # any failure means that the server is not usable
            outcome = smtp_error_outcome(error, SmtpStage.GREETING)
            raise CheckFailed.of(outcome, f"{self._server.host}:{self._server.port}") from None
        return ""

    async def close(self) -> None:
        await self._pool.close()

    async def _send(self, envelope: SmtpEnvelope, progress: SmtpProgress) -> Outcome:
        await self._pool.reserve()
        try:
            progress.stage = SmtpStage.GREETING
            session = await self._pool.session()
            try:
                outcome = await send_envelope(session.client, envelope, progress)
            except BaseException:
                session.client.close()  # interrupted in an unknown state, so it is not reused
                raise
            self._pool.keep(session)
        finally:
            self._pool.release()
        if outcome.kind is not OutcomeKind.ACCEPTED:
            return outcome
        return replace(
            outcome, provider_message_id=f"{envelope.id} {outcome.provider_message_id or ''}".strip()
        )


def _timeout_outcome(stage: SmtpStage) -> Outcome:
    if stage is SmtpStage.WAITING:
        return event_outcome("pool")
    return event_outcome("timeout_after_dot" if stage is SmtpStage.DOT else "timeout")


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("ca_file", f"cannot be read: {type(error).__name__}") from None


def _check_host(host: str, field: str = "host") -> str:
    if not _HOST.fullmatch(host) and not _is_address(host):
        raise ConfigError(field, "must be a host name or IP address; give the port in the setting port")
    return host


def _check_port(port: int | None, usual: int) -> int:
    if port is None:
        return usual
    if not 0 < port < 65_536:
        raise ConfigError("port", f"is {port}; must be 1 to 65535")
    return port


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
