"""Small charts within a page. They have the colors of the page, also in dark mode, and need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from msgspec import Struct


class Bar(Struct, frozen=True):
    """One bar of a chart, made of parts that are stacked."""

    label: str
    """What a screen reader and a tooltip say."""
    parts: tuple[float, ...]
    tick: str = ""
    """Text below the bar. Empty if it has none."""
    late: bool = False
    """True for a bar that deserves attention."""


def draw_sparkline(
    values: Sequence[float],
    *,
    title: str,
    width: int = 132,
    height: int = 26,
    scale: float = 0.0,
    filled: bool = True,
) -> str:
    """Returns a line without axes, from the oldest to the newest value. Its top is `scale` or the maximum.

    The area below the line is tinted if `filled` is True.
    """
    most = max([scale, *values, 0.0]) or 1.0
    step = width / max(1, len(values) - 1)
    points = [
        (number * step, height - 2 - (height - 4) * value / most) for number, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f'<polygon class="area" points="0,{height} {line} {width},{height}" fill="currentColor"/>'
    body = (
        f"{area if filled else ''}"
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5" '
        'stroke-linejoin="round"/>'
        if points
        else ""
    )
    return _document("spark", width, height, title, body)


def draw_bars(bars: Sequence[Bar], *, title: str, width: int = 900, height: int = 150) -> str:
    """Returns bars of stacked parts with a scale on the left."""
    left, bottom, top = 44, 18, 8
    highest = max((sum(bar.parts) for bar in bars), default=0.0)
    most = 2.0 * max(1, math.ceil(highest / 2))  # so that the line in the middle has a whole number
    room, step = height - bottom - top, (width - left) / max(1, len(bars))
    body = [
        f'<line class="grid" x1="{left}" x2="{width}" y1="{top + room * share:.1f}" '
        f'y2="{top + room * share:.1f}"/>'
        f'<text class="axis" x="{left - 6}" y="{top + room * share + 4:.1f}" text-anchor="end">'
        f"{_short(most * (1 - share))}</text>"
        for share in (0.0, 0.5, 1.0)
    ]
    for number, bar in enumerate(bars):
        x, y = left + number * step, float(top + room)
        pieces = []
        for place, part in enumerate(bar.parts):
            tall = room * part / most
            y -= tall
            kind = "late" if bar.late else "other" if place else "first"
            pieces.append(
                f'<rect class="{kind}" x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(0.5, step - 1):.1f}" '
                f'height="{tall:.1f}" fill="currentColor"/>'
            )
        body.append(f"<g><title>{escape(bar.label)}</title>{''.join(pieces)}</g>")
        if bar.tick:
            body.append(f'<text class="axis" x="{x:.1f}" y="{height - 4}">{escape(bar.tick)}</text>')
    return _document("chart", width, height, title, "".join(body))


def draw_steps(
    steps: Sequence[tuple[float, float]], labels: Sequence[str], *, title: str, width: int = 560
) -> str:
    """Returns a range per row on a common scale: the earliest and latest time of each attempt."""
    row, left, right = 20, 66, 70
    most = max((high for _, high in steps), default=0.0) or 1.0
    height = row * max(1, len(steps)) + 4
    body = []
    for number, ((low, high), label) in enumerate(zip(steps, labels, strict=True)):
        y = number * row + 4
        from_x, to_x = (left + (width - left - right) * at / most for at in (low, high))
        body.append(
            f'<text class="axis" x="{left - 8}" y="{y + 11}" text-anchor="end">{number + 1}</text>'
            f'<rect x="{from_x:.1f}" y="{y + 2}" width="{max(3.0, to_x - from_x):.1f}" height="10" rx="2" '
            'fill="currentColor"/>'
            f'<text class="axis" x="{max(to_x, from_x + 3) + 6:.1f}" y="{y + 11}">{escape(label)}</text>'
        )
    return _document("chart", width, height, title, "".join(body))


def _document(kind: str, width: int, height: int, title: str, body: str) -> str:
    return (
        f'<svg class="{kind}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )


def _short(value: float) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
