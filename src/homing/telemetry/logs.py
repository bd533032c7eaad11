"""Formats a process's log lines as text or JSON, without recipients' addresses and secrets.

As a library, Homing logs through the standard library and configures nothing; only its own processes use this
module.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from traceback import TracebackException
from typing import Any, TextIO

from homing.core.errors import ConfigError
from homing.core.redaction import redact

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"

_OWN_FIELDS = frozenset({"timestamp", "level", "logger"})
"""Fields that Homing writes itself. They are not redacted, because a date looks like a phone number."""

_MAX_DEPTH = 6


def configure(format: str, level: str, stream: TextIO | None = None) -> None:
    """Sends the log lines of the whole process, including those of other libraries, to `stream` or stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(json_formatter() if format == "json" else TextFormatter(_TEXT))
    root = logging.getLogger()
    for before in root.handlers[:]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """The usual text format.

    Messages and tracebacks are redacted, because their text may come from others.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # may hold an unredacted traceback cached by another handler
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = redact(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _traceback(ei[1])

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return redact(stack_info)


def json_formatter() -> logging.Formatter:
    """Returns a formatter that writes one JSON object per line.

    Each object has timestamp, level, logger, event, the fields of `extra`, and exception if there is one.
    """
    try:
        import structlog
    except ImportError:
        raise ConfigError(
            "log.format", "json requires structlog; install it with pip install 'homing[logs]'"
        ) from None
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.ExtraAdder(),  # first, so that it cannot overwrite our own fields
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _redacted,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ],
    )


def _redacted(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redacts all fields except Homing's own, and adds the traceback, without values of variables."""
    info = event.pop("exc_info", None)
    clean = {key: value if key in _OWN_FIELDS else _clean(value) for key, value in event.items()}
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        clean["exception"] = _traceback(error)
    return clean


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
