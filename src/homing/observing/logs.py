"""Log lines of a process: as text for people or as JSON for machines, never with a recipient in them.

The library logs through the standard library and configures nothing; this is what a process of our own does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from traceback import TracebackException
from typing import Any, TextIO

from homing.core.errors import ConfigError
from homing.core.redact import redact

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_OURS = frozenset({"timestamp", "level", "logger"})
"""Fields that we write ourselves; a date looks like a telephone number."""
_DEEPEST = 6


def configure(format: str, level: str, stream: TextIO | None = None) -> None:
    """Sends the log lines of the whole process, other libraries' too, to `stream` (stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(json_formatter() if format == "json" else TextFormatter(_TEXT))
    root = logging.getLogger()
    for before in root.handlers[:]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """The usual line. What others wrote into it is redacted, and so is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler may have kept its own words there
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = redact(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _traceback(ei[1])

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return redact(stack_info)


def json_formatter() -> logging.Formatter:
    """One JSON object per line: timestamp, level, logger, event, what `extra` gave, exception."""
    try:
        import structlog
    except ImportError:
        raise ConfigError(
            "log.format", "json needs structlog, which is missing: pip install 'homing[logs]'"
        ) from None
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.ExtraAdder(),  # first: what it brings along must not pass for ours
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
    """What others wrote, redacted; and the traceback, which has no values of variables."""
    info = event.pop("exc_info", None)
    clean = {key: value if key in _OURS else _clean(value) for key, value in event.items()}
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        clean["exception"] = _traceback(error)
    return clean


def _clean(value: Any, depth: int = 0) -> Any:
    """Without addresses and secrets, however deep they are; small numbers and flags as they are."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        text = redact(str(value))
        return value if text == str(value) else text
    if isinstance(value, str) or depth == _DEEPEST:
        return redact(str(value))
    if isinstance(value, Mapping):
        return {redact(str(key)): _clean(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(one, depth + 1) for one in value]
    return redact(str(value))


def _traceback(error: BaseException) -> str:
    """Where it was, as usual, and what was raised, redacted: an error's own text may name the recipient."""
    return "\n".join(_told(TracebackException.from_exception(error, capture_locals=False)))


def _told(error: TracebackException) -> Iterator[str]:
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _told(before)
        yield "\nThis led to:\n"
    if error.stack:
        yield "Traceback (most recent call last):"
        yield "".join(error.stack.format()).rstrip("\n")
    yield redact("".join(error.format_exception_only()).rstrip("\n"))
    for one in error.exceptions or ():
        yield "\nOne of its exceptions:\n"
        yield from _told(one)
