"""Builds an email from a notification, for all providers that send email.

The text is `content.text` or else `content.body`; no text is derived from the HTML. The subject is
`content.subject`, or else the title, or else the provider's `default_subject`.
"""

from __future__ import annotations

import unicodedata

from msgspec import Struct
from msgspec.structs import replace

from homing.core.content.email import (
    check_email_content,
    check_email_parts,
    list_unsubscribe,
    normalize_email,
    reject_encoded_words,
    without_line_ends,
)
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.notifications import Attachment, OutcomeKind
from homing.core.plain_values import check_line, check_text
from homing.core.ports.providers import Delivery
from homing.providers.common.http_provider import Unsendable

DEFAULT_SUBJECT = "(no subject)"

_NO_LIMIT = 2**62  # sizes were checked when the notification was accepted


class Mailbox(Struct, frozen=True):
    """A sender or reply-to address from the settings, and the name that is shown with it."""

    address: str
    name: str = ""


class OutgoingEmail(Struct, frozen=True, kw_only=True):
    """An email, not yet in any provider's format."""

    to: str
    """The recipient's address. Its domain is ASCII; its local part may contain other characters."""
    subject: str
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    attachments: tuple[Attachment, ...]
    """Attachments, each with its base64 content on a single line."""


class EmailDefaults(Struct, frozen=True, kw_only=True):
    """A provider's settings for every email: the default subject, and the address to unsubscribe by email."""

    default_subject: str = DEFAULT_SUBJECT
    unsubscribe_mailto: str | None = None


def build_email(delivery: Delivery, style: EmailDefaults) -> OutgoingEmail:
    """Builds the email of a delivery.

    Raises `Unsendable` if its address or content is invalid, for example because the rules became stricter
    after it was accepted.
    """
    content = delivery.content
    subject = content.subject or content.title or style.default_subject
    text = content.text or content.body
    try:
        check_line(subject, "content.subject")
        check_email_content(content)
        check_email_parts(content, _NO_LIMIT)
        check_text(text, "content.text")
        check_text(content.html, "content.html")
    except InvalidRequest as error:
        raise Unsendable(OutcomeKind.BAD_CONTENT, "unsendable_content", error.message) from None
    return OutgoingEmail(
        to=_recipient(delivery.address),
        subject=subject,
        text=text or None,
        html=content.html or None,
        headers=(
            *(content.headers or {}).items(),
            *list_unsubscribe(content.unsubscribe_url, style.unsubscribe_mailto),
        ),
        attachments=tuple(_one_line(attachment) for attachment in content.attachments),
    )


def check_email_defaults(default_subject: str, unsubscribe_mailto: str | None) -> EmailDefaults:
    """Returns the settings for all emails. Raises `ConfigError` if one of them is wrong."""
    try:
        check_line(default_subject, "default_subject")
        reject_encoded_words(default_subject, "default_subject")
        if unsubscribe_mailto is not None:
            address, _, query = unsubscribe_mailto.partition("?")
            normalize_email(address, "unsubscribe_mailto")
            if not query.isascii() or any(c <= " " or c in '<>"' for c in query):
                raise InvalidRequest("unsubscribe_mailto", "must look like name@example.org?subject=stop")
    except InvalidRequest as error:
        raise ConfigError(error.field, _message_without_field(error)) from None
    if not default_subject.strip():
        raise ConfigError("default_subject", "is empty; providers reject email without a subject")
    return EmailDefaults(default_subject=default_subject, unsubscribe_mailto=unsubscribe_mailto)


def check_mailbox(field: str, address: str, name: str = "", name_field: str = "name") -> Mailbox:
    """Returns an address from the settings and its name, with the domain in ASCII.

    Raises `ConfigError` if the address or the name is invalid.
    """
    try:
        checked = to_ascii_domain(normalize_email(address.strip(), field))
        check_line(name, name_field)
        reject_encoded_words(name, name_field)
    except InvalidRequest as error:
        raise ConfigError(error.field, _message_without_field(error)) from None
    if checked is None:
        raise ConfigError(field, "has a domain that cannot be converted to ASCII")
    return Mailbox(checked, name)


def to_ascii_domain(address: str) -> str | None:
    """Returns the address with its domain in ASCII (`xn--…`), or None if the domain cannot be converted.

    Labels are put in lower case and converted with Punycode. The standard library's codec is not used: it
    implements IDNA 2003, which turns ß into ss and may thus produce another domain.
    """
    if address.isascii():
        return address
    local, _, domain = address.rpartition("@")
    labels = []
    for label in domain.replace("。", ".").split("."):
        if not label.isascii():
            label = "xn--" + unicodedata.normalize("NFC", label.lower()).encode("punycode").decode()
        if not 0 < len(label) <= 63:
            return None
        labels.append(label)
    return f"{local}@{'.'.join(labels)}"


def _recipient(address: str) -> str:
    try:
        written = to_ascii_domain(normalize_email(address, "recipient.email"))
    except InvalidRequest as error:
        raise Unsendable(OutcomeKind.BAD_RECIPIENT, "bad_address", error.message) from None
    if written is None:
        raise Unsendable(OutcomeKind.BAD_RECIPIENT, "bad_domain", "the domain cannot be converted to ASCII")
    return written


def _one_line(attachment: Attachment) -> Attachment:
    content = without_line_ends(attachment.content)
    if content is attachment.content:
        return attachment
    return replace(attachment, content=content)


def _message_without_field(error: InvalidRequest) -> str:
    return error.message.removeprefix(f"{error.field}: ")
