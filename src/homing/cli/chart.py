"""Small charts drawn with text characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """Returns one bar character per value, scaled to `top` or else to the highest value."""
    highest = top if top is not None else max(values, default=0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[_height(value, highest)] for value in values)


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """Reduces the values to at most `width`. Each is the maximum of its group, so no peak is lost."""
    if len(values) <= width:
        return list(values)
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [max(values[low:high]) for low, high in pairwise(edges)]


def spread(marks: Sequence[bool], width: int) -> list[bool]:
    """Reduces the marks to at most `width`. Each is set if any mark of its group is set."""
    return [value > 0 for value in squeezed([float(mark) for mark in marks], width)]


def _height(value: float, highest: float) -> int:
    if value <= 0:
        return 0
    return max(1, min(8, round(8 * value / highest)))
