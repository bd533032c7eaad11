"""Emails as bytes: the standard library reads back every part, and no additional header."""

from __future__ import annotations

import base64
import email
import email.header
from email.headerregistry import AddressHeader
from email.message import EmailMessage
from email.policy import SMTP
from typing import cast

import pytest
from hypothesis import given, settings

from homing.core.errors import ConfigError
from homing.core.notifications import Attachment, Content, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.providers.common import mime as mime_module
from homing.providers.common.email_message import (
    EmailDefaults,
    OutgoingEmail,
    build_email,
    check_email_defaults,
    check_mailbox,
    to_ascii_domain,
)
from homing.providers.common.http_provider import Unsendable
from homing.providers.common.mime import build_message_id, build_mime
from support.email_deliveries import FULL, ID, NOW_MS, a_mail, contents

SENDER = check_mailbox("from_email", "orders@example.com", "Vögel & Söhne")
BUILT_HEADERS = ["From", "To", "Reply-To", "Subject", "Date", "Message-ID", "MIME-Version"]


def built(delivery: Delivery, style: EmailDefaults | None = None) -> bytes:
    mail = build_email(delivery, style or EmailDefaults())
    id = build_message_id(delivery.idempotency_key, SENDER)
    reply_to = check_mailbox("reply_to", "help@example.com")
    return build_mime(mail, sender=SENDER, reply_to=reply_to, id=id, now_ms=NOW_MS)


def read(data: bytes) -> EmailMessage:
    return email.message_from_bytes(data, policy=SMTP)


def parts(message: EmailMessage) -> list[EmailMessage]:
    return [part for part in message.walk() if not part.is_multipart()]


def lines(text: str) -> str:
    return "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def test_every_part_reads_back_as_it_was_written() -> None:
    message = read(built(a_mail(FULL)))
    assert str(message["Subject"]) == FULL.subject
    sender = cast(AddressHeader, message["From"]).addresses[0]
    assert (sender.display_name, sender.addr_spec) == ("Vögel & Söhne", "orders@example.com")
    assert (message["To"], message["Reply-To"]) == ("ada@example.org", "help@example.com")
    assert message["Message-ID"] == f"<{ID}@example.com>"
    assert message["Date"] == "Mon, 15 Jan 2024 12:00:00 +0000"
    assert message["X-Entity-Ref-ID"] == "order-17"
    text, html, pdf, named = parts(message)
    assert lines(text.get_content()) == FULL.text
    assert html.get_content() == FULL.html
    assert (text.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
    assert (pdf.get_filename(), pdf.get_content_type()) == ("rechnung.pdf", "application/pdf")
    assert pdf.get_content() == base64.b64decode(FULL.attachments[0].content)
    assert named.get_filename() == 'Ünï "code".txt'
    assert named.get_payload(decode=True) == "äöü".encode()
    assert [part.get_content_type() for part in message.walk()][:2] == [
        "multipart/mixed",
        "multipart/alternative",
    ]


LOGO = Attachment("logo.png", "iVBO\r\nRw0=", "image/png", content_id="logo@example.org")


def test_an_image_is_in_one_part_with_the_html_that_shows_it() -> None:
    shown = Content(
        text="Hello",
        html='<img src="cid:logo@example.org">',
        attachments=(LOGO, Attachment("a.txt", "QQ==", "text/plain")),
    )
    message = read(built(a_mail(shown)))
    kinds = [part.get_content_type() for part in message.walk()]
    assert kinds == [
        "multipart/mixed",
        *("multipart/alternative", "text/plain"),
        *("multipart/related", "text/html", "image/png"),
        "text/plain",
    ]
    related = list(message.walk())[3]
    assert related.get_param("type") == "text/html"
    image, attached = parts(message)[2:]
    assert (image["Content-ID"], image.get_content_disposition()) == ("<logo@example.org>", "inline")
    assert image.get_payload(decode=True) == b"\x89PNG\r"
    assert (attached["Content-ID"], attached.get_content_disposition()) == (None, "attachment")


def test_without_html_an_image_is_attached() -> None:
    message = read(built(a_mail(Content(text="Hello", attachments=(LOGO,)))))
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/mixed",
        "text/plain",
        "image/png",
    ]
    assert parts(message)[1].get_content_disposition() == "attachment"


@given(contents)
@settings(max_examples=150, deadline=None)
def test_any_email_is_seven_bit_with_short_lines_and_reads_back(content: Content) -> None:
    data = built(a_mail(content))
    assert data.isascii()
    assert data.endswith(b"\r\n")
    assert all(len(line) <= 998 and b"\r" not in line and b"\n" not in line for line in data.split(b"\r\n"))
    message = read(data)
    extra = [*(content.headers or {})]
    if content.unsubscribe_url:
        extra += ["List-Unsubscribe", "List-Unsubscribe-Post"]
    named = [name for name in message if not name.startswith("Content-")]
    assert named == [*BUILT_HEADERS, *extra]
    for name, value in (content.headers or {}).items():
        assert " ".join(str(message[name]).split()) == " ".join(value.split())
    written = parts(message)
    texts = [text for text in (content.text, content.html) if text]
    for part, text in zip(written, texts, strict=False):
        found = cast(bytes, part.get_payload(decode=True)).decode()
        assert lines(found).removesuffix("\n") == lines(text).removesuffix("\n")
    for part, attachment in zip(written[len(texts) :], content.attachments, strict=True):
        assert part.get_payload(decode=True) == base64.b64decode(attachment.content)
        assert part.get_filename() == attachment.filename


@given(contents)
@settings(max_examples=100, deadline=None)
def test_any_subject_reads_back(content: Content) -> None:
    head = email.message_from_bytes(built(a_mail(content)))  # compat32, as old readers use
    decoded = "".join(
        part.decode(charset or "ascii") if isinstance(part, bytes) else part
        for part, charset in email.header.decode_header(head["Subject"].replace("\r\n", ""))
    )
    subject = content.subject or "(no subject)"
    assert decoded.split() == subject.split()


def test_two_attempts_carry_the_same_message_id_and_the_same_bytes() -> None:
    assert built(a_mail(FULL)) == built(a_mail(FULL, attempt=2))


@pytest.mark.parametrize("key", ["a b", "ключ", "<x@y>", ".", "x" * 200, "a\r\nBcc: b"])
def test_a_key_that_is_not_an_id_becomes_one(key: str) -> None:
    id = build_message_id(key, SENDER)
    assert id == build_message_id(key, SENDER) != build_message_id(key + "x", SENDER)
    assert id.isascii()
    assert len(id.split()) == 1
    assert id.count("@") == 1


def test_an_international_recipient_is_unchanged_in_the_header() -> None:
    data = built(a_mail(address="ådå@bücher.example"))
    assert "\r\nTo: ådå@xn--bcher-kva.example\r\n".encode() in data


def test_an_email_that_does_not_read_back_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates an encoder that lets a line break through. The check after building is the last one."""
    monkeypatch.setattr(mime_module, "_folded", lambda value, used: value)
    for value in ("a\r\nBcc: eve@example.org", "a\nb", "a\r\n\r\nbody", "a\r\n \r\nb", "x" * 1000):
        mail = OutgoingEmail(
            to="a@b.c", subject="s", text="t", html=None, headers=(("X-A", value),), attachments=()
        )
        with pytest.raises(Unsendable) as refusal:
            build_mime(mail, sender=SENDER, reply_to=None, id="<x@y>", now_ms=0)
        assert refusal.value.outcome.kind is OutcomeKind.BAD_CONTENT


# Reading a delivery ----------------------------------------------------------------------------------


def test_the_body_replaces_a_missing_text_and_html_does_not() -> None:
    style = EmailDefaults()
    assert build_email(a_mail(Content(subject="s", body="b")), style).text == "b"
    assert build_email(a_mail(Content(subject="s", body="b", text="t")), style).text == "t"
    only_html = build_email(a_mail(Content(subject="s", html="<p>")), style)
    assert (only_html.text, only_html.html) == (None, "<p>")


def test_the_title_replaces_a_missing_subject_and_the_setting_replaces_both() -> None:
    style = check_email_defaults("From us", None)
    assert build_email(a_mail(Content(title="T", body="b")), style).subject == "T"
    assert build_email(a_mail(Content(body="b")), style).subject == "From us"


def test_content_stored_before_the_checks_existed_is_not_sent_either() -> None:
    for content in (
        Content(subject="=?utf-8?q?a?=", body="b"),
        Content(subject="a\nb", body="b"),
        Content(subject="s", body="b", headers={"Bcc": "eve@example.org"}),
    ):
        with pytest.raises(Unsendable) as refusal:
            build_email(a_mail(content), EmailDefaults())
        assert refusal.value.outcome.kind is OutcomeKind.BAD_CONTENT


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("a@example.org", "a@example.org"),
        ("ü@example.org", "ü@example.org"),
        ("a@BÜCHER.example", "a@xn--bcher-kva.example"),
        ("a@faß.example", "a@xn--fa-hia.example"),  # IDNA 2008, so not fass.example
        ("a@例え.テスト", "a@xn--r8jz45g.xn--zckzah"),
        ("a@" + "ü" * 80 + ".example", None),
    ],
)
def test_a_domain_is_written_in_ascii(address: str, written: str | None) -> None:
    assert to_ascii_domain(address) == written


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("from_email", lambda: check_mailbox("from_email", "nobody")),
        ("from_name", lambda: check_mailbox("from_email", "a@b.c", "x\r\nBcc: y", "from_name")),
        ("from_name", lambda: check_mailbox("from_email", "a@b.c", "=?utf-8?q?x?=", "from_name")),
        ("default_subject", lambda: check_email_defaults("a\nb", None)),
        ("default_subject", lambda: check_email_defaults(" ", None)),
        ("unsubscribe_mailto", lambda: check_email_defaults("s", "not an address")),
        ("unsubscribe_mailto", lambda: check_email_defaults("s", "a@b.c?x=>,<mailto:e@f.g")),
    ],
)
def test_settings_that_would_spoil_every_email_are_refused_at_start(field: str, make: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()  # type: ignore[operator]
    assert refusal.value.message.startswith(field)
