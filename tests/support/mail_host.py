"""A mail server that requires STARTTLS and a login, and the settings to send through it."""

from __future__ import annotations

import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from support.cli_driver import Cli
from support.smtp_servers import RecordingHandler, accept_only, aiosmtpd_server

_USER, _PASSWORD = "app", "s3cret"


class InstalledCli(Cli):
    """Runs the installed `homing` command instead of the module."""

    def command(self, *argv: str) -> list[str]:
        return [str(Path(sys.executable).parent / "homing"), *argv]

    short_command = command


@dataclass
class MailHost:
    """A running mail server with the emails it has accepted."""

    port: int
    ca_file: str
    kept: RecordingHandler = field(default_factory=RecordingHandler)

    def settings(self, name: str = "smtp", **changed: str | int) -> str:
        """Returns the provider's table for homing.toml. `changed` replaces single settings."""
        given = {
            "kind": "smtp",
            "host": "localhost",
            "port": self.port,
            "tls": "starttls",
            "ca_file": self.ca_file,
            "username": _USER,
            "password": _PASSWORD,
            "from_email": "orders@example.com",
            "from_name": "Vögel & Co",
            **changed,
        }
        lines = (
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
            for key, value in given.items()
        )
        return f"[providers.{name}]\n" + "\n".join(lines) + "\n"


@contextlib.asynccontextmanager
async def mail_host(folder: Path) -> AsyncIterator[MailHost]:
    """Starts a server in this process, with a certificate of its own CA."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    kept = RecordingHandler()
    async with aiosmtpd_server(
        kept,
        tls_context=context,
        require_starttls=True,
        authenticator=accept_only(_USER, _PASSWORD),
        auth_required=True,
        data_size_limit=2**25,
    ) as port:
        yield MailHost(port=port, ca_file=str(ca_file), kept=kept)
