"""Reads files, stdin and JSON for commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from homing.cli.exits import Refused

_MAX_FILE_BYTES = 16 * 1024 * 1024


def file_text(file: str, flag: str) -> str:
    """Returns the text of a UTF-8 file of at most 16 MiB, or of stdin if `file` is `-`."""
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Refused(f"{flag}: {file}: {error.strerror}") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise Refused(f"{flag}: {file} is larger than 16 MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{flag}: {file} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def json_object(text: str, flag: str) -> dict[str, Any]:
    """Parses a JSON object. Raises Refused if the text is anything else."""
    import msgspec

    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{flag}: is not a JSON object: {error}") from None
