"""Types of settings: numbers with their bounds and units.

The struct of a settings table uses these types, so that a default and its bounds are next to each other.
Only the settings loader checks them. A struct that is built in Python is not checked.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from homing.core.times import LONGEST_MS

NOT_A_SETTING = Meta(extra={"setting": False})
"""Marks a field that code and tests may set, but that no settings file has."""

Count = Annotated[int, Meta(ge=0)]

PositiveCount = Annotated[int, Meta(ge=1)]

Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]

PositiveBytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]

DurationMs = Annotated[int, Meta(ge=0, le=LONGEST_MS, extra={"unit": "ms"})]
"""A duration. A settings file may also give it as text such as `1h30m`."""

PositiveDurationMs = Annotated[int, Meta(ge=1, le=LONGEST_MS, extra={"unit": "ms"})]

PositiveRate = Annotated[float, Meta(ge=0.1, le=1_000_000)]
"""A number per second."""

Percentage = Annotated[float, Meta(ge=0, extra={"unit": "%"})]
"""A percentage. More than 100 is allowed, because it turns a threshold off."""

Fraction = Annotated[float, Meta(ge=0, le=1)]
