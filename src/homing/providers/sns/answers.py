"""Classifies SNS's responses, by the error's `Code` or else by the HTTP status. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.parsers import expat  # safe here: documents with a DTD are rejected, so no entity is expanded

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.net.http_messages import HttpResponse
from homing.net.retry_after import parse_retry_after_ms
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.response_parsing import (
    redacted_error_text,
    short_text_or_none,
)

XmlLeaves = dict[tuple[str, str], str]
"""Maps (element name, child name) to the text of the first such child."""


_CODE = re.compile(r"[A-Z][A-Za-z.]{2,79}")

_INVALID = (
    (re.compile(r"No endpoint found"), "InvalidParameter.NoEndpoint"),
    (re.compile(r"AWS\.(SNS|MM)\.SMS\.|originat|sender ?id", re.IGNORECASE), "InvalidParameter.Sender"),
    (re.compile(r"phone ?number", re.IGNORECASE), "InvalidParameter.PhoneNumber"),
    (re.compile(r"TargetArn"), "InvalidParameter.TargetArn"),
)
"""Refined codes for `InvalidParameter`.

Only the message, whose wording AWS may change, shows what is invalid.
"""


_WAIT_MS = re.compile(r"[0-9]{1,9}")


def classify(answer: HttpResponse, now_ms: int) -> Outcome:
    """Returns the outcome of a response. Never raises, whatever the response contains."""
    texts, table = parse_xml_leaves(answer.body), load_error_table("sns")
    if 200 <= answer.status < 300:
        message_id = short_text_or_none(texts.get(("PublishResult", "MessageId")))
        if message_id is not None:
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=message_id)
        return table.outcome("unreadable", answer.status, None)
    message = texts.get(("Error", "Message"), "")
    return table.outcome(
        _code(texts.get(("Error", "Code"), ""), message),
        answer.status,
        redacted_error_text(message),
        retry_after_ms=_wait_ms(answer.headers, now_ms),
    )


def is_opted_out(answer: HttpResponse) -> bool:
    """Returns True if CheckIfPhoneNumberIsOptedOut clearly returned true."""
    texts = parse_xml_leaves(answer.body).get(("CheckIfPhoneNumberIsOptedOutResult", "isOptedOut"))
    return answer.status == 200 and texts == "true"


def parse_xml_leaves(body: bytes) -> XmlLeaves:
    """Returns the leaf texts of an XML document; empty if the body is not XML or has a DTD."""
    reader = _LeafReader()
    try:
        reader.parser.Parse(body, True)
    except (expat.ExpatError, ValueError):
        return {}
    return reader.found


class _LeafReader:
    """Collects the text of every element that contains nothing but text."""

    def __init__(self) -> None:
        self.found: XmlLeaves = {}
        self._path = [""]
        self._text: list[str] | None = None
        # A fixed encoding: the one that the document declares is not trusted.
        self.parser = parser = expat.ParserCreate("utf-8", " ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        self._path.append(name.rpartition(" ")[2])
        self._text = []

    def _end(self, _name: str) -> None:
        child = self._path.pop()
        if self._text is not None:
            self.found.setdefault((self._path[-1], child), "".join(self._text).strip())
        self._text = None

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _doctype(self, *_: object) -> None:
        raise ValueError("the document has a DTD")


def _code(code: str, message: str) -> str | None:
    """Returns SNS's error code, even if the table does not list it, or None if it is malformed.

    `InvalidParameter` is refined by the message.
    """
    if not _CODE.fullmatch(code):
        return None
    if code != "InvalidParameter":
        return code
    return next((refined for pattern, refined in _INVALID if pattern.search(message)), code)


def _wait_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Returns the wait of `x-amz-retry-after`, in milliseconds, or else that of `Retry-After`.

    SNS sends the former. A gateway in front of it may send the latter.
    """
    text = headers.get("x-amz-retry-after", "").strip(" \t")
    if _WAIT_MS.fullmatch(text):
        return int(text)
    return parse_retry_after_ms(headers.get("retry-after"), now_ms)
