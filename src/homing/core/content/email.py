"""Checks the parts of an email other than its text: subject, headers, unsubscribe link, attachments, address.

All of them are written into headers, so they must not contain anything that could become a second header.
This excludes line breaks, control characters and encoded words (`=?…?=`), which some libraries decode before
they look for line breaks.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from homing.core.errors import InvalidRequest
from homing.core.notifications import Attachment, Content
from homing.core.plain_values import check_line

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
"""Headers that only Homing and mail servers may write. `x-smtpapi` is a command to a relay and could redirect
the email."""

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
"""The usual form of an address. An address of this form needs no further check except its length."""

_CONTENT_ID = re.compile(f"(?=.{{1,100}}$){_WORDS}(?:@{_WORDS})?", re.ASCII | re.IGNORECASE)


def check_email_content(content: Content) -> None:
    """Raises `InvalidRequest` if the subject, or the title that may replace it, cannot be a header."""
    for part, value in (("subject", content.subject), ("title", content.title)):
        if value is None:
            continue
        if len(value) > MAX_SUBJECT:
            raise InvalidRequest(
                f"content.{part}",
                f"has {len(value)} characters; at most {MAX_SUBJECT} are allowed in an email",
            )
        reject_encoded_words(value, f"content.{part}")


def check_email_parts(content: Content, attachments_bytes: int) -> None:
    """Raises `InvalidRequest` if headers, unsubscribe link or attachments are invalid, on any channel."""
    if content.headers is not None:
        _check_headers(content.headers)
    if content.unsubscribe_url is not None:
        _check_unsubscribe_url(content.unsubscribe_url)
    if content.attachments:
        _check_attachments(content.attachments, attachments_bytes)


def normalize_email(address: str, where: str) -> str:
    """Returns the address with its domain in lower case.

    Raises `InvalidRequest` if it is not an email address, or has a quoted local part or an address literal.
    """
    local, _, domain = address.rpartition("@")
    if len(local) <= 64 and len(domain) <= 255 and _USUAL_ADDRESS.fullmatch(address):
        return f"{local}@{domain.lower()}"
    dots = f".{local}.", f".{domain}."
    if not _ADDRESS.fullmatch(address) or any(".." in one for one in dots) or _ENCODED_WORD.search(address):
        raise InvalidRequest(where, "is not an email address like name@example.org")
    return f"{local}@{domain.lower()}"


def reject_encoded_words(value: str, where: str) -> None:
    """Raises `InvalidRequest` if the value contains an encoded word (`=?…?=`)."""
    if "=?" in value and _ENCODED_WORD.search(value):
        raise InvalidRequest(where, "has an encoded word (=?…?=); write plain text, Homing encodes it")


def list_unsubscribe(url: str | None, mailto: str | None = None) -> tuple[tuple[str, str], ...]:
    """Returns the headers of RFC 8058 that make mail programs show an unsubscribe button.

    There are none if `url` is None.
    """
    if url is None:
        return ()
    also = f", <mailto:{mailto}>" if mailto else ""
    return (
        ("List-Unsubscribe", f"<{url}>{also}"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
    )


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > MAX_HEADERS:
        raise InvalidRequest(
            "content.headers", f"has {len(headers)} entries; at most {MAX_HEADERS} are allowed"
        )
    seen: set[str] = set()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidRequest(
                "content.headers", "has an invalid name; a name has 1 to 64 letters, digits, - and _"
            )
        where, lowered = f"content.headers.{name}", name.lower()
        if lowered in RESERVED_HEADERS or lowered.startswith(RESERVED_PREFIXES):
            instead = "; set unsubscribeUrl instead" if lowered.startswith("list-unsubscribe") else ""
            raise InvalidRequest(where, f"is reserved, because Homing writes it{instead}")
        if lowered in seen:
            raise InvalidRequest(where, "is given twice; upper and lower case do not matter in header names")
        seen.add(lowered)
        if len(value) > MAX_HEADER_VALUE:
            raise InvalidRequest(
                where, f"has {len(value)} characters; at most {MAX_HEADER_VALUE} are allowed"
            )
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(
                where, "must be visible ASCII on one line, without leading or trailing spaces"
            )
        reject_encoded_words(value, where)


def _check_unsubscribe_url(url: str) -> None:
    where = "content.unsubscribeUrl"
    if len(url) > MAX_HEADER_VALUE:
        raise InvalidRequest(where, f"has {len(url)} characters; at most {MAX_HEADER_VALUE} are allowed")
    try:
        host = urlsplit(url).hostname if _URL.fullmatch(url) else None
    except ValueError:
        host = None
    if not host:
        raise InvalidRequest(where, "is not a URL like https://example.org/u/token; it must use https")
    reject_encoded_words(url, where)


def _check_attachments(attachments: tuple[Attachment, ...], most: int) -> None:
    if len(attachments) > MAX_ATTACHMENTS:
        raise InvalidRequest(
            "content.attachments", f"has {len(attachments)} entries; at most {MAX_ATTACHMENTS} are allowed"
        )
    size = sum(len(a.content) for a in attachments)
    if size > most:
        raise InvalidRequest("content.attachments", f"have {size} bytes; at most {most} are allowed")
    for attachment in attachments:
        _check_filename(attachment.filename)
        _check_media_type(attachment.content_type)
        if not _is_base64(attachment.content):
            raise InvalidRequest("content.attachments.content", "is empty or not base64")
    _check_content_ids([a.content_id for a in attachments if a.content_id is not None])


def _check_content_ids(ids: list[str]) -> None:
    where = "content.attachments.contentId"
    if not all(map(_CONTENT_ID.fullmatch, ids)):
        raise InvalidRequest(where, "is not an id like logo or logo@example.org, of at most 100 characters")
    if len(set(ids)) < len(ids):
        raise InvalidRequest(where, "is the same for two attachments")


def _is_base64(text: str) -> bool:
    if not _BASE64.fullmatch(text):
        return False
    bare = without_line_ends(text)
    return len(bare) > 0 and len(bare) % 4 == 0


def without_line_ends(base64: str) -> str:
    """Returns base64 without line breaks, as JSON APIs expect it."""
    return _LINE_ENDS.sub("", base64) if "\n" in base64 or "\r" in base64 else base64


def _check_filename(name: str) -> None:
    where = "content.attachments.filename"
    check_line(name, where)
    reject_encoded_words(name, where)
    if not name.strip(" .") or name != name.strip():
        raise InvalidRequest(where, "is not a file name like invoice.pdf")
    if _MISLEADING.search(name):
        raise InvalidRequest(where, "has a slash or a text direction mark; give a plain name")
    if len(name.encode()) > MAX_FILENAME_BYTES:
        raise InvalidRequest(
            where, f"has {len(name.encode())} bytes; at most {MAX_FILENAME_BYTES} are allowed"
        )


def _check_media_type(content_type: str) -> None:
    where = "content.attachments.contentType"
    if not _MEDIA_TYPE.fullmatch(content_type):
        raise InvalidRequest(where, "is not a media type like application/pdf; leave out parameters")
    if content_type.lower().startswith(("multipart/", "message/")):
        raise InvalidRequest(where, "is a type of email part, not of file; use application/octet-stream")
