"""One check that settings of engine and providers share."""

from __future__ import annotations

from typing import Any

from homing.core.errors import ConfigError


def whole(value: Any, where: str, *, least: int = 0) -> int:
    """A whole number of the settings; raises what there is to be told where it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(where, f"is {value!r}; it must be a whole number, at least {least}")
    return value
