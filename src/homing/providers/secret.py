"""Credentials that do not show: not in `repr`, not in logs, not in errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

from homing.core.errors import ConfigError

_IN_A_HEADER = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A credential. `reveal` is the only way to its text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__


def secret(field: str, given: str | Secret) -> Secret:
    """From a setting: the text itself, `env:NAME`, or `file:PATH` (its content without the last line end)."""
    if isinstance(given, Secret):
        return given
    if not given:
        raise ConfigError(field, "is missing; give the secret, env:NAME or file:PATH")
    kind, _, where = given.partition(":")
    if kind == "env":
        found = os.environ.get(where)
        if not found:
            raise ConfigError(field, f"names the environment variable {where}, which is not set")
        return Secret(found)
    if kind == "file":
        try:
            read = Path(where).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise ConfigError(field, f"names a file that cannot be read: {type(error).__name__}") from None
        if not read:
            raise ConfigError(field, "names a file that is empty")
        return Secret(read)
    return Secret(given)


def header_secret(field: str, given: str | Secret) -> Secret:
    """A secret that goes into a header as it is: with a stray line end, every request would be refused."""
    found = secret(field, given)
    if not _IN_A_HEADER.fullmatch(found.reveal()):
        raise ConfigError(field, "has a space, line end or other character that no header may have")
    return found
