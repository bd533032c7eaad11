"""Credentials that stay hidden in `repr`, logs and errors."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from homing.core.errors import ConfigError

_IN_A_HEADER = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A credential. Only `reveal` returns its text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__


def read_secret(field: str, given: str | Secret) -> Secret:
    """Reads a credential from a setting: the text itself, `env:NAME`, or `file:PATH`.

    A line break at the end of the file is dropped. Raises `ConfigError` if the credential is missing, empty
    or unreadable.
    """
    if isinstance(given, Secret):
        return given
    if not given:
        raise ConfigError(field, "is missing; set it to the secret itself, env:NAME or file:PATH")
    kind, _, where = given.partition(":")
    if kind == "env":
        found = os.environ.get(where)
        if not found:
            raise ConfigError(field, f"refers to the environment variable {where}, which is not set")
        return Secret(found)
    if kind == "file":
        try:
            read = Path(where).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ConfigError(field, f"refers to the file {where}, which cannot be read: {why}") from None
        except ValueError:  # the name or the content; the name may be a credential with a wrong prefix
            raise ConfigError(field, "refers to a file that is not a text file") from None
        if not read:
            raise ConfigError(field, f"refers to the file {where}, which is empty")
        return Secret(read)
    return Secret(given)


SecretSetting = str | Secret | Sequence[str | Secret]
"""A setting with one credential or, while a credential is being replaced, a list with the new one first."""


def read_secrets(field: str, given: SecretSetting) -> tuple[Secret, ...]:
    """Reads one or several credentials, each as `read_secret` does. Empty ones are left out."""
    if isinstance(given, (str, Secret)):
        return (read_secret(field, given),) if given else ()
    return tuple(read_secret(f"{field}[{place}]", one) for place, one in enumerate(given) if one)


def read_header_secret(field: str, given: str | Secret) -> Secret:
    """Reads a credential that is sent in a header. Raises `ConfigError` if a header must not contain it."""
    found = read_secret(field, given)
    if not _IN_A_HEADER.fullmatch(found.reveal()):
        raise ConfigError(field, "contains a space, line break or other character not allowed in a header")
    return found
