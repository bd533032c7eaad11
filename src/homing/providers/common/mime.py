"""Writes an email as bytes (RFC 5322, MIME), then parses its headers to make sure that no header was
injected.

Everything is 7-bit except an internationalised recipient address. Lines end in CRLF and are short enough for
any server. The same email produces the same bytes apart from its date. A second attempt has the same
`Message-ID`, by which a receiver can recognise a duplicate.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import b2a_qp
from email.utils import formatdate
from hashlib import sha256
from urllib.parse import quote

from homing.core.notifications import Attachment, OutcomeKind
from homing.providers.common.email_message import Mailbox, OutgoingEmail
from homing.providers.common.http_provider import Unsendable

_MAX_LINE = 78

_MAX_PLAIN_LINE = 900

_WORD_BYTES = 45  # 60 characters as base64; the delimiters of an encoded word add 12

_LINE_ENDS = re.compile(r"\r\n|\r|\n")

_ATOM_TEXT = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]*")

_PLAIN_PARAMETER = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]*")

_ID_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")

_FIELD = re.compile(rb"([!-9;-~]+):[ \t]?")


def build_message_id(idempotency_key: str, sender: Mailbox) -> str:
    """Returns the Message-ID. Derived from the idempotency key, it is the same for every attempt."""
    safe = idempotency_key if _ID_SAFE.fullmatch(idempotency_key) else _digest(idempotency_key)
    return f"<{safe.strip('.') or _digest(safe)}@{sender.address.rpartition('@')[2]}>"


def build_mime(
    mail: OutgoingEmail, *, sender: Mailbox, reply_to: Mailbox | None, id: str, now_ms: int
) -> bytes:
    """Returns the whole email. Raises `Unsendable` if its headers do not parse to the intended ones."""
    headers = [
        ("From", _mailbox(sender)),
        ("To", mail.to),
        *([("Reply-To", _mailbox(reply_to))] if reply_to else []),
        ("Subject", _unstructured(mail.subject, len("Subject: "))),
        ("Date", formatdate(now_ms // 1000).replace("-0000", "+0000")),
        ("Message-ID", id),
        ("MIME-Version", "1.0"),
        *((name, _folded(value, len(name) + 2)) for name, value in mail.headers),
    ]
    head = "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
    _check_headers(head, [name for name, _ in headers])
    whole = head + _body(mail, _digest(id))
    return whole if whole.endswith(b"\r\n") else whole + b"\r\n"


def _check_headers(head: bytes, names: list[str]) -> None:
    """Parses the headers like a receiver. Raises `Unsendable` unless exactly these names are found."""
    found = []
    for line in head.removesuffix(b"\r\n").split(b"\r\n"):
        if line[:1] in b" \t" and line.strip():
            continue
        field = _FIELD.match(line)
        if field is None or b"\r" in line or b"\n" in line or b"\0" in line or len(line) > 998:
            break
        found.append(field[1].decode())
    else:
        if found == names:
            return
    raise Unsendable(
        OutcomeKind.BAD_CONTENT, "headers_differ", "a header of the email would be read as several headers"
    )


# Headers ---------------------------------------------------------------------------------------------


def _mailbox(box: Mailbox) -> str:
    if not box.name:
        return box.address
    if not box.name.isascii():
        return f"{_encoded(box.name)}\r\n <{box.address}>"
    if _ATOM_TEXT.fullmatch(box.name):
        return f"{box.name} <{box.address}>"
    escaped = box.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}" <{box.address}>'


def _unstructured(text: str, used: int) -> str:
    plain = text.isascii() and text == text.strip() and len(text) + used < 900
    return _folded(text, used) if plain else _encoded(text)


def _encoded(text: str) -> str:
    """Returns encoded words (RFC 2047), each on a line of its own and without splitting a character."""
    words, chunk = [], b""
    for character in text:
        piece = character.encode()
        if len(chunk) + len(piece) > _WORD_BYTES:
            words.append(chunk)
            chunk = b""
        chunk += piece
    words.append(chunk)
    return "\r\n ".join(f"=?utf-8?b?{b64encode(word).decode()}?=" for word in words)


def _folded(value: str, used: int) -> str:
    """Folds a header value at single spaces, so that its lines are not too long."""
    if len(value) + used <= _MAX_LINE:
        return value
    lines, line = [], ""
    for word in re.split(r"(?<=[^ ]) (?=[^ ])", value):
        if line and used + len(line) + 1 + len(word) > _MAX_LINE:
            lines.append(line)
            line, used = word, 1
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return "\r\n ".join(lines)


# Body ------------------------------------------------------------------------------------------------


def _body(mail: OutgoingEmail, seed: str) -> bytes:
    inline = [one for one in mail.attachments if one.content_id is not None and mail.html is not None]
    texts = [_text("plain", mail.text)] if mail.text is not None else []
    if mail.html is not None:
        texts.append(_html(mail.html, inline, seed))
    body = (
        texts[0]
        if len(texts) == 1
        else _multipart("alternative", f"=_a{seed}", texts or [_text("plain", "")])
    )
    attached = [one for one in mail.attachments if one not in inline]
    if attached:
        return _multipart("mixed", f"=_m{seed}", [body, *map(_attached, attached)])
    return body


def _html(html: str, inline: list[Attachment], seed: str) -> bytes:
    """Returns the HTML and, in one part with it, the files that it shows in place (RFC 2387)."""
    text = _text("html", html)
    if not inline:
        return text
    shown = [_file(one, "inline", f"Content-ID: <{one.content_id}>\r\n") for one in inline]
    return _multipart('related; type="text/html"', f"=_r{seed}", [text, *shown])


def _multipart(kind: str, boundary: str, parts: list[bytes]) -> bytes:
    """Joins the parts.

    No part contains the boundary, because base64, quoted-printable and our 7-bit text never contain `=_`.
    """
    mark = boundary.encode()
    head = f'Content-Type: multipart/{kind}; boundary="{boundary}"\r\n\r\n'.encode()
    return head + b"".join(b"--%b\r\n%b\r\n" % (mark, part) for part in parts) + b"--%b--" % mark


def _text(kind: str, text: str) -> bytes:
    encoding, written = _transfer(_LINE_ENDS.sub("\r\n", text))
    head = f'Content-Type: text/{kind}; charset="utf-8"\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n'
    return head.encode() + written


def _transfer(text: str) -> tuple[str, bytes]:
    """Returns the transfer encoding and the encoded text.

    Short ASCII lines stay as they are. Other text is quoted-printable, or base64 if little of it is ASCII.
    """
    data = text.encode()
    short = len(text) < _MAX_PLAIN_LINE or max(map(len, text.split("\r\n"))) < _MAX_PLAIN_LINE
    if text.isascii() and short and "=_" not in text:
        return "7bit", data
    if len(data) - len(text) <= len(data) // 4:
        # Line by line, because the codec derives its line ending from the first one that it finds.
        lines = (b2a_qp(line, istext=True).replace(b"\n", b"\r\n") for line in data.split(b"\r\n"))
        return "quoted-printable", b"\r\n".join(lines)
    return "base64", _base64_lines(b64encode(data))


def _attached(attachment: Attachment) -> bytes:
    return _file(attachment, "attachment")


def _file(attachment: Attachment, disposition: str, more_headers: str = "") -> bytes:
    head = (
        f"Content-Type: {attachment.content_type}\r\n"
        "Content-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: {disposition}; {_filename(attachment.filename)}\r\n{more_headers}\r\n"
    )
    return head.encode() + _base64_lines(attachment.content.encode())


def _filename(name: str) -> str:
    if _PLAIN_PARAMETER.fullmatch(name):
        return f'filename="{name}"'
    return f"filename*=utf-8''{quote(name, safe='')}"


def _base64_lines(data: bytes) -> bytes:
    return b"\r\n".join(data[at : at + 76] for at in range(0, len(data), 76))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
