"""What an email may carry besides its text: headers, one-click unsubscribe, attachments, an address.

Everything here ends in a header of somebody's mail, so nothing passes that could become a second one: no
line breaks, no control characters, and no encoded words (`=?…?=`), which some libraries decode before they
look for line breaks.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from homing.core.errors import InvalidRequest
from homing.core.model import Attachment, Content
from homing.core.text import check_line

MAX_HEADERS = 32
MAX_HEADER_VALUE = 900
MAX_SUBJECT = 900
MAX_ATTACHMENTS = 100
MAX_FILENAME_BYTES = 200

RESERVED_HEADERS = frozenset(
    {
        *("from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id"),
        *("mime-version", "received", "return-path", "dkim-signature", "domainkey-signature"),
        *("authentication-results", "delivered-to", "envelope-to", "x-original-to"),
        *("x-sg-id", "x-sg-eid", "x-smtpapi"),
        *("list-unsubscribe", "list-unsubscribe-post"),
    }
)
"""Made by Homing or by the way; `x-smtpapi` is a command to a relay, which could redirect the mail."""
RESERVED_PREFIXES = ("content-", "resent-", "arc-")

_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ENCODED_WORD = re.compile(r"=\?.*?\?=")
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]*+={0,2}[\r\n]*+")
_LINE_ENDS = re.compile(r"[\r\n]+")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_MISLEADING = re.compile(r"[/\\\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_URL = re.compile(r"https://[\x21\x23-\x3b\x3d\x3f-\x7e]+")
_ADDRESS = re.compile(r"[^@\s<>()\[\],;:\\\"]{1,64}@[^@\s<>()\[\],;:\\\"]{1,255}")

_WORDS = r"[a-z0-9_+-]+(?:\.[a-z0-9_+-]+)*"
_USUAL_ADDRESS = re.compile(f"{_WORDS}@{_WORDS}", re.ASCII | re.IGNORECASE)
"""Nothing to look at twice; most are like that."""


def check_email_content(content: Content) -> None:
    """The subject (or the title that stands in for it) can be a header, and is one and nothing more."""
    for part, value in (("subject", content.subject), ("title", content.title)):
        if value is None:
            continue
        if len(value) > MAX_SUBJECT:
            raise InvalidRequest(
                f"content.{part}", f"has {len(value)} characters; allowed are {MAX_SUBJECT} in an email"
            )
        refuse_encoded_words(value, f"content.{part}")


def check_email_parts(content: Content, attachments_bytes: int) -> None:
    """Headers, unsubscribe link and attachments, whatever the channel."""
    if content.headers is not None:
        _check_headers(content.headers)
    if content.unsubscribe_url is not None:
        _check_unsubscribe_url(content.unsubscribe_url)
    if content.attachments:
        _check_attachments(content.attachments, attachments_bytes)


def email_address(address: str, where: str) -> str:
    """The address with its domain in lower case. Quoted local parts and address literals are not taken."""
    local, _, domain = address.rpartition("@")
    if len(local) <= 64 and len(domain) <= 255 and _USUAL_ADDRESS.fullmatch(address):
        return f"{local}@{domain.lower()}"
    dots = f".{local}.", f".{domain}."
    if not _ADDRESS.fullmatch(address) or any(".." in one for one in dots) or _ENCODED_WORD.search(address):
        raise InvalidRequest(where, "is not an email address like name@example.org")
    return f"{local}@{domain.lower()}"


def refuse_encoded_words(value: str, where: str) -> None:
    if "=?" in value and _ENCODED_WORD.search(value):
        raise InvalidRequest(where, "has an encoded word (=?…?=); write the text itself, it is encoded here")


def list_unsubscribe(url: str | None, mailto: str | None = None) -> tuple[tuple[str, str], ...]:
    """The headers of RFC 8058: mail programs then show one button that unsubscribes with one POST."""
    if url is None:
        return ()
    also = f", <mailto:{mailto}>" if mailto else ""
    return (
        ("List-Unsubscribe", f"<{url}>{also}"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
    )


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > MAX_HEADERS:
        raise InvalidRequest("content.headers", f"has {len(headers)} entries; allowed are {MAX_HEADERS}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidRequest(
                "content.headers", "has a name that is none; allowed are up to 64 letters, digits, - and _"
            )
        where, lowered = f"content.headers.{name}", name.lower()
        if lowered in RESERVED_HEADERS or lowered.startswith(RESERVED_PREFIXES):
            instead = "; give unsubscribeUrl" if lowered.startswith("list-unsubscribe") else ""
            raise InvalidRequest(where, f"is reserved: it is written for you{instead}")
        if lowered in seen:
            raise InvalidRequest(where, "is given twice; upper and lower case make no difference")
        seen.add(lowered)
        if len(value) > MAX_HEADER_VALUE:
            raise InvalidRequest(where, f"has {len(value)} characters; allowed are {MAX_HEADER_VALUE}")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(where, "must be visible ASCII on one line, without spaces around it")
        refuse_encoded_words(value, where)


def _check_unsubscribe_url(url: str) -> None:
    where = "content.unsubscribeUrl"
    if len(url) > MAX_HEADER_VALUE:
        raise InvalidRequest(where, f"has {len(url)} characters; allowed are {MAX_HEADER_VALUE}")
    try:
        host = urlsplit(url).hostname if _URL.fullmatch(url) else None
    except ValueError:
        host = None
    if not host:
        raise InvalidRequest(where, "is not a URL like https://example.org/u/token; one click needs https")
    refuse_encoded_words(url, where)


def _check_attachments(attachments: tuple[Attachment, ...], most: int) -> None:
    if len(attachments) > MAX_ATTACHMENTS:
        raise InvalidRequest(
            "content.attachments", f"has {len(attachments)} entries; allowed are {MAX_ATTACHMENTS}"
        )
    size = sum(len(a.content) for a in attachments)
    if size > most:
        raise InvalidRequest("content.attachments", f"have {size} bytes; allowed are {most}")
    for attachment in attachments:
        _check_filename(attachment.filename)
        _check_media_type(attachment.content_type)
        if not _is_base64(attachment.content):
            raise InvalidRequest("content.attachments.content", "is not base64, or empty")


def _is_base64(text: str) -> bool:
    if not _BASE64.fullmatch(text):
        return False
    bare = without_line_ends(text)
    return len(bare) > 0 and len(bare) % 4 == 0


def without_line_ends(base64: str) -> str:
    """Base64 as one line: JSON providers want it so."""
    return _LINE_ENDS.sub("", base64) if "\n" in base64 or "\r" in base64 else base64


def _check_filename(name: str) -> None:
    where = "content.attachments.filename"
    check_line(name, where)
    refuse_encoded_words(name, where)
    if not name.strip(" .") or name != name.strip():
        raise InvalidRequest(where, "is not a file's name like invoice.pdf")
    if _MISLEADING.search(name):
        raise InvalidRequest(where, "has a slash or a mark that turns the text around; give a plain name")
    if len(name.encode()) > MAX_FILENAME_BYTES:
        raise InvalidRequest(where, f"has {len(name.encode())} bytes; allowed are {MAX_FILENAME_BYTES}")


def _check_media_type(content_type: str) -> None:
    where = "content.attachments.contentType"
    if not _MEDIA_TYPE.fullmatch(content_type):
        raise InvalidRequest(where, "is not a type like application/pdf, without parameters")
    if content_type.lower().startswith(("multipart/", "message/")):
        raise InvalidRequest(where, "is a kind of mail, not of file; use application/octet-stream")
