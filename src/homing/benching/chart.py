"""Draws a report as an SVG chart: one bar per rate, grouped by part and coloured by store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from homing.benching.figures import Figure, Report
from homing.benching.writing import machine, shown

_COLOURS = {"SQLite": "#0f766e", "PostgreSQL": "#2563eb", "Homing": "#2563eb", "peer": "#9ca3af"}
_TITLE = "Homing: notifications per second"
_INK, _FAINT, _GRID = "#1f2937", "#6b7280", "#e5e7eb"
_WIDTH, _LEFT, _RIGHT, _TOP = 900, 320, 90, 92
_BAR, _GAP, _PART = 18, 6, 34


def draw(report: Report) -> str:
    """Returns an SVG document with title, machine, legend and labelled bars."""
    figures = [figure for figure in report.figures if figure.unit == "/s"]
    parts = [(part, list(members)) for part, members in groupby(figures, lambda figure: figure.part)]
    body: list[str] = []
    y = float(_TOP)
    for part, members in parts:
        body += _part(part, members, y)
        y += _PART + len(members) * (_BAR + _GAP)
    height = round(y + 20)
    title = "Homing compared with other queues: jobs per second" if report.form == "peers" else _TITLE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, \'DejaVu Sans\', sans-serif" '
        f'font-size="12" fill="{_INK}" role="img" aria-label="{title}">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join([*_head(title, report), *body])
        + "\n</svg>\n"
    )


def _head(title: str, report: Report) -> Iterator[str]:
    yield _text(24, 30, title, size=17, weight=600)
    yield _text(24, 50, machine(report), colour=_FAINT, size=11)
    at = 24.0
    for store in dict.fromkeys(figure.store for figure in report.figures if figure.unit == "/s"):
        yield f'<rect x="{at}" y="62" width="12" height="12" fill="{_COLOURS.get(store, _INK)}"/>'
        yield _text(at + 18, 72, store)
        at += 110
    caption = (
        f"median of up to {max((len(f.rounds) for f in report.figures), default=0)} rounds, with their spread"
    )
    yield _text(at + 10, 72, caption, colour=_FAINT)


def _part(part: str, figures: Sequence[Figure], top: float) -> Iterator[str]:
    most = max(max(figure.rounds) for figure in figures)
    inner = _WIDTH - _LEFT - _RIGHT
    yield f'<line x1="24" y1="{top}" x2="{_WIDTH - 24}" y2="{top}" stroke="{_GRID}"/>'
    yield _text(24, top + 20, part, weight=600, size=13)
    y = top + _PART - 6
    for figure in sorted(figures, key=lambda one: (_order(one, figures), one.store)):
        wide = inner * figure.value / most
        low, high = (inner * edge / most for edge in (min(figure.rounds), max(figure.rounds)))
        middle = y + _BAR / 2
        colour = _COLOURS.get(figure.store, _INK)
        yield _text(_LEFT - 10, y + 13, figure.name, anchor="end")
        yield (
            f'<rect x="{_LEFT}" y="{y:.1f}" width="{wide:.1f}" height="{_BAR}" rx="2" fill="{colour}" '
            f'fill-opacity="{0.35 if "bare" in figure.name else 0.85}"/>'
        )
        yield (
            f'<line x1="{_LEFT + low:.1f}" y1="{middle:.1f}" x2="{_LEFT + high:.1f}" y2="{middle:.1f}" '
            f'stroke="{_INK}" stroke-width="1.2"/>'
        )
        yield _text(_LEFT + max(wide, high) + 8, y + 13, shown(figure.value, ""))
        y += _BAR + _GAP


def _order(figure: Figure, figures: Sequence[Figure]) -> int:
    """Sorts figures in the order of measurement, with the stores of one figure side by side."""
    return list(dict.fromkeys(one.name for one in figures)).index(figure.name)


def _text(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = _INK,
    anchor: str = "start",
    size: int = 12,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
