"""What SNS's answers mean: the error's `Code` first, then the HTTP status. Pure."""

from __future__ import annotations

import re
from xml.parsers import expat  # no DTD is let in, so there is nothing to expand

from homing.core.model import Outcome, OutcomeKind
from homing.providers.answers import error_table
from homing.providers.http import Answer
from homing.providers.reading import error_text, text_of

Leaves = dict[tuple[str, str], str]
"""(element, its child) → the text of the first such child."""

_CODE = re.compile(r"[A-Z][A-Za-z.]{2,79}")
_INVALID = (
    (re.compile(r"No endpoint found"), "InvalidParameter.NoEndpoint"),
    (re.compile(r"AWS\.(SNS|MM)\.SMS\.|originat|sender ?id", re.IGNORECASE), "InvalidParameter.Sender"),
    (re.compile(r"phone ?number", re.IGNORECASE), "InvalidParameter.PhoneNumber"),
    (re.compile(r"TargetArn"), "InvalidParameter.TargetArn"),
)
"""One code for many faults: only the message's text, which nobody promises, says what is not valid."""

_WAIT_MS = re.compile(r"[0-9]{1,9}")


def classify(answer: Answer) -> Outcome:
    """Any bytes at all: never raises."""
    said, table = leaves(answer.body), error_table("sns")
    if 200 <= answer.status < 300:
        message_id = text_of(said.get(("PublishResult", "MessageId")))
        if message_id is not None:
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=message_id)
        return table.outcome("unreadable", answer.status, None)
    message = said.get(("Error", "Message"), "")
    return table.outcome(
        _code(said.get(("Error", "Code"), ""), message),
        answer.status,
        error_text(message),
        retry_after_ms=_wait_ms(answer.headers.get("x-amz-retry-after", "")),
    )


def says_opted_out(answer: Answer) -> bool:
    """What CheckIfPhoneNumberIsOptedOut answers; anything but a clear yes is a no."""
    said = leaves(answer.body).get(("CheckIfPhoneNumberIsOptedOutResult", "isOptedOut"))
    return answer.status == 200 and said == "true"


def leaves(body: bytes) -> Leaves:
    """The texts of an XML document; none where it is none, or has a DTD."""
    reader = _Reader()
    try:
        reader.parser.Parse(body, True)
    except (expat.ExpatError, ValueError):
        return {}
    return reader.found


class _Reader:
    """Keeps each element's text, as long as nothing but text is in it."""

    def __init__(self) -> None:
        self.found: Leaves = {}
        self._path = [""]
        self._text: list[str] | None = None
        # The encoding is said here, so that a document's own word for it is not looked up.
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
        raise ValueError("a DTD")


def _code(code: str, message: str) -> str | None:
    """SNS's code, also one that the table does not know; never one of our own."""
    if not _CODE.fullmatch(code):
        return None
    if code != "InvalidParameter":
        return code
    return next((refined for pattern, refined in _INVALID if pattern.search(message)), code)


def _wait_ms(value: str) -> int | None:
    text = value.strip(" \t")
    return int(text) if _WAIT_MS.fullmatch(text) else None
