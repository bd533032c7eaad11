"""Formats a process's log lines as text or JSON, without recipients' addresses and secrets.

As a library, Homing logs through the standard library and configures nothing; only its own processes use this
module.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from traceback import TracebackException
from typing import Any, TextIO

import msgspec

from homing.core.redaction import Redacted, redact

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"

_RECORD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
"""Attributes that the standard library sets on a record. All others come from `extra`."""

_MAX_DEPTH = 6


def configure(format: str, level: str, stream: TextIO | None = None, *, service: str = "") -> None:
    """Sends the log lines of the whole process, including those of other libraries, to `stream` or stderr.

    In JSON, each line has the field `service`, if a name is given.
    """
    output = stream or sys.stderr
    if format == "json" and isinstance(output, io.TextIOWrapper):
        output.reconfigure(encoding="utf-8", errors="backslashreplace")  # JSON is UTF-8 whatever the locale
    handler = _LogHandler(output)
    handler.setFormatter(JsonFormatter(service) if format == "json" else TextFormatter(_TEXT))
    root = logging.getLogger()
    for before in root.handlers[:]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level.upper())


class _LogHandler(logging.StreamHandler[TextIO]):
    """Reports a line that cannot be formatted or written, without its arguments.

    The standard library would print the arguments, which may contain recipients and secrets.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        kind = type(sys.exception()).__name__
        message = (
            f"a log line cannot be written ({kind}): {record.msg if isinstance(record.msg, str) else ''}"
        )
        place = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
        with suppress(Exception):  # the stream itself may be the problem
            self.stream.write(self.format(logging.makeLogRecord({**place, "msg": message})) + self.terminator)
            self.flush()


class TextFormatter(logging.Formatter):
    """The usual text format.

    Messages and tracebacks are redacted, because their text may come from others.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # may hold an unredacted traceback cached by another handler
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if not _is_redacted(record):
            record.message = redact(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _traceback(ei[1])

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return redact(stack_info)


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line.

    Each object has event, the fields of `extra`, level, logger, timestamp, and exception if there is one. It
    has the field service, if the service has a name.
    """

    def __init__(self, service: str = "") -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"event": record.getMessage()}
        if record.stack_info:
            fields["stack_info"] = record.stack_info
        fields |= {key: value for key, value in record.__dict__.items() if key not in _RECORD_ATTRIBUTES}
        line = fields if _is_redacted(record) else {key: _clean(value) for key, value in fields.items()}
        # Set last, so that `extra` cannot replace them. Not redacted: a date looks like a phone number.
        line["level"] = record.levelname.lower()
        line["logger"] = record.name
        if self._service:
            line["service"] = self._service
        line["timestamp"] = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["exception"] = _traceback(error)
        return _encode(line)


def _is_redacted(record: logging.LogRecord) -> bool:
    """Returns True if the caller has redacted the message and all fields. Redacting costs most of a line."""
    return isinstance(record.msg, Redacted) and not record.args and not record.stack_info


def _encode(line: dict[str, Any]) -> str:
    """Returns the JSON text of a log line, with a space after each comma and colon."""
    try:
        return msgspec.json.format(msgspec.json.encode(line), indent=0).decode()
    except (TypeError, ValueError, OverflowError):  # half of a surrogate pair, or an integer above 64 bits
        return json.dumps(line, ensure_ascii=False, default=str)


def _clean(value: Any, depth: int = 0) -> Any:
    """Redacts addresses and secrets at any depth.

    Keeps booleans, and numbers that do not look like phone numbers.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        text = redact(str(value))
        return value if text == str(value) else text
    if isinstance(value, str) or depth == _MAX_DEPTH:
        return redact(str(value))
    if isinstance(value, Mapping):
        return {redact(str(key)): _clean(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(one, depth + 1) for one in value]
    return redact(str(value))


def _traceback(error: BaseException) -> str:
    """Returns the traceback with a redacted error text, which may contain the recipient's address."""
    return "\n".join(_format_lines(TracebackException.from_exception(error, capture_locals=False)))


def _format_lines(error: TracebackException) -> Iterator[str]:
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _format_lines(before)
        yield "\nThis led to:\n"
    if error.stack:
        yield "Traceback (most recent call last):"
        yield "".join(error.stack.format()).rstrip("\n")
    yield redact("".join(error.format_exception_only()).rstrip("\n"))
    for one in error.exceptions or ():
        yield "\nOne of the grouped exceptions:\n"
        yield from _format_lines(one)
