"""The parts that all charts share: the document, its texts and its colours."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, FAINT, GRID = "#1f2937", "#6b7280", "#e5e7eb"
"""Colours of text and lines, of less important text, and of grid lines."""


def draw_document(parts: Iterable[str], *, width: int, height: int, title: str) -> str:
    """Returns an SVG document with a white background. Screen readers read `title`."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, \'DejaVu Sans\', sans-serif" '
        f'font-size="12" fill="{INK}" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def draw_text(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = INK,
    anchor: str = "start",
    size: int = 12,
    weight: int = 400,
) -> str:
    """Returns a line of text. `anchor` is `start`, `middle` or `end`."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
