"""Refusals before anything is sent, classified by the provider's error table."""

from __future__ import annotations

from homing.core.errors import ConfigError
from homing.core.sms import sms_size
from homing.providers.answers import error_table
from homing.providers.wire import Unsendable


def refusal(provider: str, code: str, error: str | None = None) -> Unsendable:
    """Returns the exception that `build` raises.

    `error` replaces the table's text with a more specific one.
    """
    meaning = error_table(provider).codes[code]
    return Unsendable(meaning.outcome, code, error or meaning.means)


def check_segments(provider: str, text: str, most: int) -> None:
    """Raises `Unsendable` if the text would be billed as more than `most` SMS. 0 means no limit."""
    if not most:
        return
    size = sms_size(text)
    if size.segments > most:
        error = f"the text needs {size.segments} SMS ({size.encoding}); max_segments allows {most}"
        raise refusal(provider, "segments", error)


def checked_segments(given: int) -> int:
    """Returns the setting `max_segments`. Raises `ConfigError` unless it is an integer of at least 0."""
    if type(given) is not int or given < 0:
        raise ConfigError("max_segments", f"is {given!r}; use a whole number, or 0 for no limit")
    return given
