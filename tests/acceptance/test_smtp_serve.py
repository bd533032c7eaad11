"""Emails that an installed `homing serve` sends through a real SMTP server, with STARTTLS and a login."""

from __future__ import annotations

import asyncio
import email
import json
import random
from base64 import b64encode
from email.policy import SMTP
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast

import msgspec

from homing.core.notifications import Channel, Content, Priority, Recipient
from homing.core.ports.providers import Delivery
from homing.providers.smtp.provider import SmtpProvider
from support.mail_host import InstalledCli, mail_host
from support.service_process import serving

PDF = b"%PDF-1.4\r\n.\r\n..\n\x00\xff" + random.Random(4711).randbytes(300_000)
"""More than fits into one write, with line ends and dots that must not change."""
MAILS: dict[str, dict[str, Any]] = {
    "text": {"subject": "Your order", "text": "Hello Ada,\n\nit is on its way.\n\nHoming\n"},
    "dots": {"subject": "Dots", "text": ".\n..\n.x\n\n...and more.\n.\n"},
    "html": {"subject": "Your order", "text": "On its way.", "html": "<p>It is <b>on its way</b>.</p>\n.\n"},
    "attachment": {
        "subject": "Your invoice",
        "text": "Attached.",
        "attachments": [
            {"filename": "invoice.pdf", "content": b64encode(PDF).decode(), "contentType": "application/pdf"}
        ],
    },
    "unicode": {
        "subject": "Grüße aus Köln 🐦 – 你好, мир: eine Betreffzeile, die länger als eine Zeile sein darf",
        "text": "Hallo Ådå 🐦,\n.ein Punkt am Anfang\n你好, мир\n"
        + "sehr lang und ohne Umbruch " * 100
        + "\n",
        "html": "<p>Grüße 🐦 你好</p>",
    },
}


async def test_an_email_of_each_kind_arrives_byte_for_byte(tmp_path: Path) -> None:
    cli = InstalledCli(tmp_path)
    async with mail_host(tmp_path) as host:
        (tmp_path / "homing.toml").write_text(f'store = "homing.db"\n{host.settings()}')
        ids = await asyncio.to_thread(_sent_by_a_service, cli)
        arrived = {_id(cast(bytes, envelope.content)): envelope for envelope in host.kept.envelopes}
        again = SmtpProvider(
            host="localhost", from_email="orders@example.com", from_name="Vögel & Co", ca_file=host.ca_file
        )
    assert len(host.kept.envelopes) == len(MAILS), "each mail arrives once"
    assert all(session.authenticated and session.ssl for session in host.kept.sessions)
    for name, content in MAILS.items():
        envelope = arrived[ids[name]]
        assert (envelope.mail_from, envelope.rcpt_tos) == ("orders@example.com", [f"{name}@example.org"])
        raw = cast(bytes, envelope.content)
        assert raw == _as_built(again, ids[name], f"{name}@example.org", content, raw), name
        _check_as_read(content, f"{name}@example.org", raw)


def _sent_by_a_service(cli: InstalledCli) -> dict[str, str]:
    """Sends all emails over REST and returns their notification ids once they are sent."""
    ids = {}
    with serving(cli) as service:
        for name, content in MAILS.items():
            asked = {"recipient": {"email": f"{name}@example.org"}, "channel": "email", "content": content}
            status, body = service.call("POST", "/api/v1/notifications/send", asked)
            assert status == 202, body
            ids[name] = str(json.loads(body)["notificationId"])
        for id in ids.values():
            service.until(id, "sent")
    return ids


def _id(raw: bytes) -> str:
    """Returns the notification's id from an email's Message-ID."""
    return str(email.message_from_bytes(raw)["Message-ID"]).strip("<>").partition("@")[0]


def _as_built(provider: SmtpProvider, id: str, to: str, content: dict[str, Any], raw: bytes) -> bytes:
    """Returns the bytes that a provider builds for this notification at the time in the email."""
    date = parsedate_to_datetime(str(email.message_from_bytes(raw)["Date"]))
    delivery = Delivery(
        notification_id=id,
        tenant="default",
        channel=Channel.EMAIL,
        type="",
        priority=Priority.MEDIUM,
        recipient=Recipient(email=to),
        address=to,
        content=msgspec.convert(content, Content),
        idempotency_key=id,
        attempt=1,
        timeout_ms=1_000,
    )
    return provider.build(delivery, int(date.timestamp() * 1000)).data


def _check_as_read(content: dict[str, Any], to: str, raw: bytes) -> None:
    """Parses an email like a recipient's program, and compares it with the request."""
    mail = email.message_from_bytes(raw, policy=SMTP)
    assert (mail["Subject"], mail["To"]) == (content["subject"], to)
    assert mail["From"].addresses[0].display_name == "Vögel & Co"
    leaves = [part for part in mail.walk() if not part.is_multipart()]
    attached = [part for part in leaves if part.get_content_disposition() == "attachment"]
    read = {
        part.get_content_type(): part.get_content().replace("\r\n", "\n")
        for part in leaves
        if part not in attached
    }
    asked = {"text/plain": content.get("text"), "text/html": content.get("html")}
    assert {kind: text.rstrip("\n") for kind, text in read.items()} == {
        kind: text.rstrip("\n") for kind, text in asked.items() if text
    }
    assert [(part.get_filename(), part.get_content()) for part in attached] == [
        (one["filename"], PDF) for one in content.get("attachments", ())
    ]
