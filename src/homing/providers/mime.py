"""A mail as bytes (RFC 5322, MIME), written and then read back: its headers are those that were meant.

Everything is 7-bit but the recipient of an internationalised address; lines end in CRLF and are short
enough for any server. The same mail gives the same bytes, apart from its date: a second attempt carries the
same `Message-ID`, so that a receiver can tell that it has it already.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import b2a_qp
from email.utils import formatdate
from hashlib import sha256
from urllib.parse import quote

from homing.core.model import Attachment, OutcomeKind
from homing.providers.email import Mail, Mailbox
from homing.providers.wire import Unsendable

_LINE = 78
_LONGEST_PLAIN_LINE = 900
_WORD_BYTES = 45  # 60 characters of base64, and the encoded word's marks around them
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_ATOM_TEXT = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]*")
_PLAIN_PARAMETER = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]*")
_ID_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELD = re.compile(rb"([!-9;-~]+):[ \t]?")


def message_id(idempotency_key: str, sender: Mailbox) -> str:
    """The same for every attempt: made from the key that is."""
    safe = idempotency_key if _ID_SAFE.fullmatch(idempotency_key) else _digest(idempotency_key)
    return f"<{safe.strip('.') or _digest(safe)}@{sender.address.rpartition('@')[2]}>"


def mime(mail: Mail, *, sender: Mailbox, reply_to: Mailbox | None, id: str, now_ms: int) -> bytes:
    """The whole mail. Raises `Unsendable` if it does not read back as it was meant."""
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
    _read_back(head, [name for name, _ in headers])
    whole = head + _body(mail, _digest(id))
    return whole if whole.endswith(b"\r\n") else whole + b"\r\n"


def _read_back(head: bytes, names: list[str]) -> None:
    """Reads as a receiver would: a line that is no continuation begins a header, and nothing else does."""
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
        OutcomeKind.BAD_CONTENT, "headers_differ", "the mail's headers do not read as they were meant"
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
    """Encoded words (RFC 2047), each of whole characters and on a line of its own."""
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
    """Broken at single spaces, where a line would become too long."""
    if len(value) + used <= _LINE:
        return value
    lines, line = [], ""
    for word in re.split(r"(?<=[^ ]) (?=[^ ])", value):
        if line and used + len(line) + 1 + len(word) > _LINE:
            lines.append(line)
            line, used = word, 1
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return "\r\n ".join(lines)


# Body ------------------------------------------------------------------------------------------------


def _body(mail: Mail, seed: str) -> bytes:
    texts = [
        _text(kind, text) for kind, text in (("plain", mail.text), ("html", mail.html)) if text is not None
    ]
    body = (
        texts[0]
        if len(texts) == 1
        else _multipart("alternative", f"=_a{seed}", texts or [_text("plain", "")])
    )
    if mail.attachments:
        return _multipart("mixed", f"=_m{seed}", [body, *map(_attached, mail.attachments)])
    return body


def _multipart(kind: str, boundary: str, parts: list[bytes]) -> bytes:
    """The boundary is in none of the parts: `=_` is not in base64, quoted-printable, or our plain text."""
    mark = boundary.encode()
    head = f'Content-Type: multipart/{kind}; boundary="{boundary}"\r\n\r\n'.encode()
    return head + b"".join(b"--%b\r\n%b\r\n" % (mark, part) for part in parts) + b"--%b--" % mark


def _text(kind: str, text: str) -> bytes:
    encoding, written = _transfer(_LINE_ENDS.sub("\r\n", text))
    head = f'Content-Type: text/{kind}; charset="utf-8"\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n'
    return head.encode() + written


def _transfer(text: str) -> tuple[str, bytes]:
    """As it is where every server takes that; else quoted-printable, or base64 where little is ASCII."""
    data = text.encode()
    short = len(text) < _LONGEST_PLAIN_LINE or max(map(len, text.split("\r\n"))) < _LONGEST_PLAIN_LINE
    if text.isascii() and short and "=_" not in text:
        return "7bit", data
    if len(data) - len(text) <= len(data) // 4:
        # As binary, line by line: the codec's own notion of line ends depends on the first one it sees.
        lines = (b2a_qp(line, istext=True).replace(b"\n", b"\r\n") for line in data.split(b"\r\n"))
        return "quoted-printable", b"\r\n".join(lines)
    return "base64", _base64_lines(b64encode(data))


def _attached(attachment: Attachment) -> bytes:
    head = (
        f"Content-Type: {attachment.content_type}\r\n"
        "Content-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: attachment; {_filename(attachment.filename)}\r\n\r\n"
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
