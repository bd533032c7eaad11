"""Exit codes, and the errors that end a command with one of them."""

from __future__ import annotations

import re
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `homing`. `docs/reference/cli.md` explains each."""

    OK = 0
    NO = 1
    """The result is negative: unhealthy, refused, or a failed synchronous send."""
    USAGE = 2
    """The command line, a field or a setting is invalid; nothing was done."""
    NOT_FOUND = 3
    STORE = 4
    """The store cannot be reached or used."""
    PARTIAL = 5
    """Some items succeeded and some failed."""
    INTERRUPTED = 130


class CliError(Exception):
    """Ends a command with an exit code and a one-line message on stderr."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def one_line(text: str) -> str:
    """Replaces control characters with blanks, so that untrusted text cannot control the terminal."""
    return _CONTROL.sub(" ", text)


def exit_code_for(error: Exception) -> ExitCode | None:
    """Returns the exit code of an expected error, or None for any other exception."""
    from homing.core import errors

    if isinstance(error, CliError):
        return error.code
    for kind, code in (
        (errors.NotFound, ExitCode.NOT_FOUND),
        (errors.StoreRejected, ExitCode.USAGE),
        (errors.StoreError, ExitCode.STORE),
        (errors.DeliveryFailed, ExitCode.NO),
        (errors.CommandRefused, ExitCode.NO),
        (errors.HomingError, ExitCode.USAGE),
    ):
        if isinstance(error, kind):
            return code
    return None
