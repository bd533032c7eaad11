"""Classifies SMTP replies by their code, their enhanced code, and the stage of the session."""

from __future__ import annotations

import re
from enum import IntEnum

from msgspec import Struct

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.providers.common.error_tables import ErrorMeaning, load_error_table
from homing.providers.common.response_parsing import redacted_error_text

_TABLE = load_error_table("smtp")

_ENHANCED = re.compile(r"\s*([245]\.\d{1,3}\.\d{1,3})(?!\S)")

_GREYLISTED = re.compile(r"gr[ae]y-?list", re.IGNORECASE)

_GREYLIST_WAIT_MS = 5 * 60_000

_TOO_LARGE = 552

_ABOUT_SIZE_OR_FORM = ("5.2.3", "5.3.4", "5.6.")


class SmtpStage(IntEnum):
    """The stage that a session has reached. Only at the last one may the server have accepted the email."""

    WAITING = 0
    """Waiting for a free connection."""
    GREETING = 1
    """Connecting, EHLO, TLS and login."""
    SENDER = 2
    RECIPIENT = 3
    DATA = 4
    """From the DATA command until the final dot is written."""
    DOT = 5
    """The final dot was written. The reply to it decides whether the email was accepted."""


class SmtpReply(Struct, frozen=True):
    """One reply of the server. The text of a multi-line reply has all of its lines."""

    code: int
    text: str

    @property
    def enhanced(self) -> str | None:
        """The enhanced code, or None if there is none or if it contradicts the basic code."""
        found = _ENHANCED.match(self.text)
        return found[1] if found and found[1][0] == str(self.code)[:1] else None

    @property
    def positive(self) -> bool:
        return self.code // 100 == 2

    @property
    def goes_on(self) -> bool:
        """True if the server waits for more input (3xx)."""
        return self.code // 100 == 3


def classify_reply(reply: SmtpReply, stage: SmtpStage) -> Outcome:
    """Returns the outcome of the reply that decides an attempt. Never raises, whatever the reply is.

    If the email was accepted, the reply's text becomes the provider message id, because it contains the
    server's queue id.
    """
    text = redacted_error_text(" ".join(reply.text.split())) or ""
    if stage is SmtpStage.DOT and reply.code // 100 not in (2, 4, 5):
        return event_outcome("protocol_after_dot", text)
    if not 200 <= reply.code <= 599:
        return event_outcome("protocol", text)
    if reply.positive and stage is not SmtpStage.DOT:
        return event_outcome("protocol", f"unexpected reply {reply.code}")
    meaning, by_enhanced_code = _meaning(reply)
    kind = _adjust_to_stage(meaning.outcome, reply, stage, by_enhanced_code)
    if kind is OutcomeKind.ACCEPTED:
        return Outcome(kind, provider_message_id=" ".join(reply.text.split())[:160] or None)
    wait_ms = meaning.retry_after_ms
    if reply.code // 100 == 4 and _GREYLISTED.search(reply.text):
        wait_ms = max(wait_ms or 0, _GREYLIST_WAIT_MS)
    enhanced = f" {reply.enhanced}" if reply.enhanced else ""
    return Outcome(
        kind,
        error_code=f"{reply.code}{enhanced}",
        error=text or meaning.means,
        retry_after_ms=wait_ms,
        unlisted=kind is OutcomeKind.BAD_CONTENT and not by_enhanced_code and not _is_listed(reply),
    )


def event_outcome(code: str, detail: str = "") -> Outcome:
    """Returns the outcome of an event other than a reply, such as a timeout, by its code in the table."""
    meaning = _TABLE.codes[code]
    return Outcome(
        meaning.outcome,
        error_code=code,
        error=(f"{meaning.means}: {detail}" if detail else meaning.means)[:500],
    )


def _meaning(reply: SmtpReply) -> tuple[ErrorMeaning, bool]:
    """Returns the table's entry, and True if it was found by an enhanced code."""
    if enhanced := reply.enhanced:
        found = _TABLE.codes.get(f"{reply.code} {enhanced}") or _TABLE.codes.get(enhanced)
        if found:
            return found, True
    return _TABLE.meaning(None, reply.code), False


def _is_listed(reply: SmtpReply) -> bool:
    """Returns True if the reply explains a rejection although its enhanced code has no entry.

    That is so if the reply is about the email's size or format, or if it has no enhanced code and its basic
    code has an entry.
    """
    if reply.code == _TOO_LARGE or (reply.enhanced or "").startswith(_ABOUT_SIZE_OR_FORM):
        return True
    return reply.enhanced is None and str(reply.code) in _TABLE.statuses


def _adjust_to_stage(
    kind: OutcomeKind, reply: SmtpReply, stage: SmtpStage, by_enhanced_code: bool
) -> OutcomeKind:
    """Returns the outcome for this stage.

    The same code may concern the server, the sender, the recipient or the email.
    """
    if reply.code // 100 != 5:
        return kind
    if stage <= SmtpStage.GREETING:
        return OutcomeKind.PROVIDER_FAULT
    if stage is SmtpStage.SENDER:
        about_mail = reply.code == _TOO_LARGE or (reply.enhanced or "").startswith(_ABOUT_SIZE_OR_FORM)
        return kind if about_mail else OutcomeKind.PROVIDER_FAULT
    if stage is SmtpStage.RECIPIENT and kind is OutcomeKind.BAD_CONTENT:
        return OutcomeKind.BAD_RECIPIENT
    if stage >= SmtpStage.DATA and kind is OutcomeKind.BAD_RECIPIENT and not by_enhanced_code:
        return OutcomeKind.BAD_CONTENT  # the recipient was accepted before, so the content is at fault
    return kind
