"""What an SMTP reply means, from its code, its enhanced code, and where in the conversation it came."""

from __future__ import annotations

import re
from enum import IntEnum

from msgspec import Struct

from homing.core.model import Outcome, OutcomeKind
from homing.providers.answers import Meaning, error_table
from homing.providers.reading import error_text

_TABLE = error_table("smtp")
_ENHANCED = re.compile(r"\s*([245]\.\d{1,3}\.\d{1,3})(?!\S)")
_GREYLISTED = re.compile(r"gr[ae]y-?list", re.IGNORECASE)
_GREYLIST_WAIT_MS = 5 * 60_000
_TOO_LARGE = 552
_ABOUT_SIZE_OR_FORM = ("5.2.3", "5.3.4", "5.6.")


class Stage(IntEnum):
    """How far a conversation has come. Only after the last of them may the mail have been taken."""

    WAITING = 0
    GREETING = 1
    """Connecting, EHLO, TLS, login."""
    SENDER = 2
    RECIPIENT = 3
    DATA = 4
    """From the DATA command until the final dot is written."""
    DOT = 5
    """The final dot was written; the reply to it is the server's word."""


class Reply(Struct, frozen=True):
    """One reply; of a multi-line one the text of all lines."""

    code: int
    text: str

    @property
    def enhanced(self) -> str | None:
        """Its enhanced code, unless that contradicts the basic one: then the basic code wins."""
        found = _ENHANCED.match(self.text)
        return found[1] if found and found[1][0] == str(self.code)[:1] else None

    @property
    def positive(self) -> bool:
        return self.code // 100 == 2

    @property
    def goes_on(self) -> bool:
        """The server waits for the rest."""
        return self.code // 100 == 3


def classify(reply: Reply, stage: Stage) -> Outcome:
    """The outcome of a reply that ended the conversation. Any code and text at all: never raises.

    Of an accepted one the text is kept: it names the server's queue id, in words of its own.
    """
    words = error_text(" ".join(reply.text.split())) or ""
    if stage is Stage.DOT and reply.code // 100 not in (2, 4, 5):
        return happened("protocol_after_dot", words)
    if not 200 <= reply.code <= 599:
        return happened("protocol", words)
    if reply.positive and stage is not Stage.DOT:
        return happened("protocol", f"{reply.code} out of turn")
    meaning, by_reason = _meaning(reply)
    kind = _at_stage(meaning.outcome, reply, stage, by_reason)
    if kind is OutcomeKind.ACCEPTED:
        return Outcome(kind, provider_message_id=" ".join(reply.text.split())[:160] or None)
    wait_ms = meaning.retry_after_ms
    if reply.code // 100 == 4 and _GREYLISTED.search(reply.text):
        wait_ms = max(wait_ms or 0, _GREYLIST_WAIT_MS)
    enhanced = f" {reply.enhanced}" if reply.enhanced else ""
    return Outcome(
        kind,
        error_code=f"{reply.code}{enhanced}",
        error=words or meaning.means,
        retry_after_ms=wait_ms,
        unlisted=kind is OutcomeKind.BAD_CONTENT and not by_reason and not _is_listed(reply),
    )


def happened(code: str, detail: str = "") -> Outcome:
    """The outcome of something that was no reply: one of the table's words."""
    meaning = _TABLE.codes[code]
    return Outcome(
        meaning.outcome,
        error_code=code,
        error=(f"{meaning.means}: {detail}" if detail else meaning.means)[:500],
    )


def _meaning(reply: Reply) -> tuple[Meaning, bool]:
    """The table's line, and whether an enhanced code named it."""
    if enhanced := reply.enhanced:
        found = _TABLE.codes.get(f"{reply.code} {enhanced}") or _TABLE.codes.get(enhanced)
        if found:
            return found, True
    return _TABLE.meaning(None, reply.code), False


def _is_listed(reply: Reply) -> bool:
    """Returns whether the basic code explains a refusal that no line for its enhanced code explains."""
    if reply.code == _TOO_LARGE or (reply.enhanced or "").startswith(_ABOUT_SIZE_OR_FORM):
        return True
    return reply.enhanced is None and str(reply.code) in _TABLE.statuses


def _at_stage(kind: OutcomeKind, reply: Reply, stage: Stage, by_reason: bool) -> OutcomeKind:
    """The same code says something about the server, the sender, the recipient or the mail."""
    if reply.code // 100 != 5:
        return kind
    if stage <= Stage.GREETING:
        return OutcomeKind.PROVIDER_FAULT
    if stage is Stage.SENDER:
        about_mail = reply.code == _TOO_LARGE or (reply.enhanced or "").startswith(_ABOUT_SIZE_OR_FORM)
        return kind if about_mail else OutcomeKind.PROVIDER_FAULT
    if stage is Stage.RECIPIENT and kind is OutcomeKind.BAD_CONTENT:
        return OutcomeKind.BAD_RECIPIENT
    if stage >= Stage.DATA and kind is OutcomeKind.BAD_RECIPIENT and not by_reason:
        return OutcomeKind.BAD_CONTENT  # the recipient had been taken: it is what the mail says
    return kind
