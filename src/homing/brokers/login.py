"""Checks the settings that several classes pass on to the connection of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_type_hints


def check_login(given: Mapping[str, object], known: type) -> None:
    """Raises `TypeError` if a setting is not a key of the typed dictionary `known`, as a plain call would."""
    for name in given.keys() - get_type_hints(known).keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")
