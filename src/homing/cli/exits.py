"""Exit codes, and the one line that goes with each error."""

from __future__ import annotations

import re
from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell is told. `docs/reference/cli.md` explains each."""

    OK = 0
    NO = 1
    """The answer is negative: unhealthy, refused, or a synchronous send that failed."""
    USAGE = 2
    """The command, a field or a setting is not acceptable; nothing was done."""
    NOT_FOUND = 3
    STORE = 4
    """The store cannot be reached or used."""
    PARTIAL = 5
    """Some of it was done, some was not."""
    INTERRUPTED = 130


class Refused(Exception):
    """An expected end with one line for the reader and a code for the shell."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def one_line(text: str) -> str:
    """Text that cannot break the line or steer the terminal, whoever wrote it."""
    return _CONTROL.sub(" ", text)


def code_of(error: Exception) -> ExitCode | None:
    """The exit code of an expected error; None for one that nobody expected."""
    from homing.core import errors

    if isinstance(error, Refused):
        return error.code
    for kind, code in (
        (errors.NotFound, ExitCode.NOT_FOUND),
        (errors.StoreError, ExitCode.STORE),
        (errors.DeliveryFailed, ExitCode.NO),
        (errors.CommandRefused, ExitCode.NO),
        (errors.HomingError, ExitCode.USAGE),
    ):
        if isinstance(error, kind):
            return code
    return None
