"""What commands read besides their flags: files, stdin, JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from homing.cli.exits import Refused

_LARGEST_FILE = 16 * 1024 * 1024


def file_text(file: str, flag: str) -> str:
    """The text of a file; `-` is stdin."""
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(_LARGEST_FILE + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise Refused(f"{flag}: {file}: {error.strerror}") from None
    if len(raw) > _LARGEST_FILE:
        raise Refused(f"{flag}: {file} is larger than 16 MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{flag}: {file} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def json_object(text: str, flag: str) -> dict[str, Any]:
    """A JSON object."""
    import msgspec

    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{flag}: is not a JSON object: {error}") from None
