"""Refusals before anything is sent, with the meaning that the provider's error table gives their code."""

from __future__ import annotations

from homing.core.errors import ConfigError
from homing.core.sms import sms_size
from homing.providers.answers import error_table
from homing.providers.wire import Unsendable


def refusal(provider: str, code: str, error: str | None = None) -> Unsendable:
    """To raise from `build`. `error` says more than the table's line, where there is more to say."""
    meaning = error_table(provider).codes[code]
    return Unsendable(meaning.outcome, code, error or meaning.means)


def check_segments(provider: str, text: str, most: int) -> None:
    """Refuses a text that would go, and cost, as more SMS than allowed; 0 allows any number."""
    if not most:
        return
    size = sms_size(text)
    if size.segments > most:
        said = f"the text goes as {size.segments} SMS ({size.encoding}); max_segments allows {most}"
        raise refusal(provider, "segments", said)


def checked_segments(given: int) -> int:
    """The setting `max_segments`."""
    if type(given) is not int or given < 0:
        raise ConfigError("max_segments", f"is {given!r}; give a whole number, or 0 for no limit")
    return given
