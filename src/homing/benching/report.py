"""The report of a benchmark run: figures with their ratios and targets, as table, Markdown and SVG."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct, field

from homing.charts.svg import FAINT, GRID, INK, draw_document, draw_text


class Figure(Struct, frozen=True, kw_only=True, rename="camel"):
    """One measured quantity, with one value per round."""

    part: str
    name: str
    store: str
    """`SQLite`, `PostgreSQL` or `MongoDB`. In a comparison with other queues, `Homing` or `peer`."""
    unit: str
    """`/s`, `ms`, `µs`, `MB`, `bytes`, `%`, or empty for a plain ratio or count."""
    rounds: tuple[float, ...]
    beside: str = ""
    """Name of the figure, with the same part and store, that the ratio divides by. Empty for no ratio."""
    at_least: float | None = None
    """Lower target, for the ratio if there is one, otherwise for the value. None for no target."""
    at_most: float | None = None
    """Upper target, with the same meaning as `at_least`."""

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)


class Machine(Struct, frozen=True, kw_only=True, rename="camel"):
    """The machine and the versions used for a run."""

    system: str
    processor: str
    cores: int
    memory_gb: float
    python: str
    stores: tuple[str, ...]
    """Names and versions of the stores."""
    homing: str


class FigureResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """A figure with its median, ratio and verdict."""

    figure: Figure
    value: float
    ratio: float | None = None
    met: bool | None = None
    """True if the target is met. None if there is no target, or if its ratio cannot be computed."""


class BenchReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """One complete run. Every figure comes from rounds that passed their consistency checks."""

    machine: Machine
    form: str
    """`quick`, `long`, or `peers` for a comparison with other queues."""
    began_at: str
    seconds: float
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)
    """Remarks about skipped measurements, with the reason."""

    @property
    def results(self) -> tuple[FigureResult, ...]:
        return tuple(_results(self.figures))

    @property
    def missed(self) -> tuple[FigureResult, ...]:
        return tuple(result for result in self.results if result.met is False)


def _results(figures: Sequence[Figure]) -> Iterator[FigureResult]:
    known = {(figure.part, figure.store, figure.name): figure for figure in figures}
    for figure in figures:
        other = known.get((figure.part, figure.store, figure.beside)) if figure.beside else None
        ratio = _ratio(figure, other) if other is not None else None
        judged = ratio if figure.beside else figure.value
        yield FigureResult(figure=figure, value=figure.value, ratio=ratio, met=_met(figure, judged))


def _ratio(figure: Figure, other: Figure) -> float | None:
    """Returns the median ratio of the rounds, or the ratio of the medians if the round counts differ.

    Paired rounds ran next to each other, so other load affects both. Returns None if every divisor is 0.
    """
    pairs = [(figure.value, other.value)]
    if len(figure.rounds) == len(other.rounds):
        pairs = list(zip(figure.rounds, other.rounds, strict=True))
    ratios = [mine / theirs for mine, theirs in pairs if theirs]
    return statistics.median(ratios) if ratios else None


def _met(figure: Figure, judged: float | None) -> bool | None:
    if judged is None or (figure.at_least is None and figure.at_most is None):
        return None
    low = figure.at_least if figure.at_least is not None else judged
    high = figure.at_most if figure.at_most is not None else judged
    return low <= judged <= high


COLUMNS = ("PART", "WHAT", "STORE", "MEDIAN>", "MIN>", "MAX>", "RATIO>", "COMPARED WITH", "TARGET")


_COMMANDS = {"quick": "homing bench", "long": "homing bench --long", "peers": "make bench-peers"}


def table_rows(report: BenchReport) -> list[tuple[str, ...]]:
    """Returns one row per figure, with the columns `COLUMNS`."""
    return [_row(result) for result in report.results]


def format_verdict(report: BenchReport) -> str:
    """Summarises the run in one line."""
    judged = [result for result in report.results if result.met is not None]
    missed = len(report.missed)
    targets = f"{len(judged) - missed} of {len(judged)} targets met" if judged else "no targets"
    return f"every accepted notification is accounted for; {targets}; {report.seconds:,.0f} s"


def format_machine(report: BenchReport) -> str:
    """Describes the machine in one line."""
    here = report.machine
    stores = ", ".join(here.stores)
    return (
        f"{here.cores} cores ({here.processor}), {here.memory_gb:g} GB, {here.system}, Python {here.python}, "
        f"{stores}, Homing {here.homing}"
    )


def format_markdown(report: BenchReport) -> str:
    """Returns the table for performance.md."""
    most = max((len(figure.rounds) for figure in report.figures), default=0)
    heading = f"Measured {report.began_at[:10]} with `{_COMMANDS[report.form]}` on {format_machine(report)}."
    lines = [
        f"{heading} Medians of up to {most} alternating rounds.",
        "",
        *_table([column.rstrip(">").capitalize() for column in COLUMNS], table_rows(report)),
        "",
        *(f"- {note}" for note in report.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "|".join("---:" if column.endswith(">") else "---" for column in COLUMNS) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _row(result: FigureResult) -> tuple[str, ...]:
    figure = result.figure
    several = len(figure.rounds) > 1
    return (
        figure.part,
        figure.name,
        figure.store,
        format_value(result.value, figure.unit),
        format_value(min(figure.rounds), figure.unit) if several else "",
        format_value(max(figure.rounds), figure.unit) if several else "",
        "" if result.ratio is None else f"{result.ratio:.2f}",
        figure.beside if result.ratio is not None else "",
        _format_target(result),
    )


def _format_target(result: FigureResult) -> str:
    figure = result.figure
    bound = figure.at_least if figure.at_least is not None else figure.at_most
    if bound is None or result.met is None:
        return ""
    sign = "≥" if figure.at_least is not None else "≤"
    unit = "" if result.ratio is not None else figure.unit
    return f"{sign} {format_value(bound, unit)}: {'met' if result.met else 'MISSED'}"


def format_value(value: float, unit: str) -> str:
    """Formats a number with its unit and about three significant digits."""
    digits = 0 if abs(value) >= 100 or unit == "bytes" else 1 if abs(value) >= 10 else 2
    number = f"{value:,.{digits}f}"
    return f"{number}{unit}" if unit in ("/s", "") else f"{number} {unit}"


_COLOURS = {
    "SQLite": "#0f766e",
    "PostgreSQL": "#2563eb",
    "MongoDB": "#15803d",
    "Homing": "#2563eb",
    "peer": "#9ca3af",
}

_TITLE = "Homing: notifications per second"

_WIDTH, _LEFT, _RIGHT, _TOP = 900, 320, 90, 92

_BAR_HEIGHT, _BAR_GAP, _PART_HEAD_HEIGHT = 18, 6, 34


def draw_chart(report: BenchReport) -> str:
    """Returns an SVG document with title, machine, legend and labelled bars."""
    figures = [figure for figure in report.figures if figure.unit == "/s"]
    parts = [(part, list(members)) for part, members in groupby(figures, lambda figure: figure.part)]
    body: list[str] = []
    y = float(_TOP)
    for part, members in parts:
        body += _draw_part(part, members, y)
        y += _PART_HEAD_HEIGHT + len(members) * (_BAR_HEIGHT + _BAR_GAP)
    height = round(y + 20)
    title = "Homing compared with other queues: jobs per second" if report.form == "peers" else _TITLE
    parts_drawn = [*_draw_head(title, report), *body]
    return draw_document(parts_drawn, width=_WIDTH, height=height, title=title)


def _draw_head(title: str, report: BenchReport) -> Iterator[str]:
    yield draw_text(24, 30, title, size=17, weight=600)
    yield draw_text(24, 50, format_machine(report), colour=FAINT, size=11)
    at = 24.0
    for store in dict.fromkeys(figure.store for figure in report.figures if figure.unit == "/s"):
        yield f'<rect x="{at}" y="62" width="12" height="12" fill="{_COLOURS.get(store, INK)}"/>'
        yield draw_text(at + 18, 72, store)
        at += 110
    caption = (
        f"median of up to {max((len(f.rounds) for f in report.figures), default=0)} rounds, with their spread"
    )
    yield draw_text(at + 10, 72, caption, colour=FAINT)


def _draw_part(part: str, figures: Sequence[Figure], top: float) -> Iterator[str]:
    most = max(max(figure.rounds) for figure in figures)
    inner = _WIDTH - _LEFT - _RIGHT
    yield f'<line x1="24" y1="{top}" x2="{_WIDTH - 24}" y2="{top}" stroke="{GRID}"/>'
    yield draw_text(24, top + 20, part, weight=600, size=13)
    y = top + _PART_HEAD_HEIGHT - 6
    for figure in sorted(figures, key=lambda one: (_position(one, figures), one.store)):
        wide = inner * figure.value / most
        low, high = (inner * edge / most for edge in (min(figure.rounds), max(figure.rounds)))
        middle = y + _BAR_HEIGHT / 2
        colour = _COLOURS.get(figure.store, INK)
        yield draw_text(_LEFT - 10, y + 13, figure.name, anchor="end")
        yield (
            f'<rect x="{_LEFT}" y="{y:.1f}" width="{wide:.1f}" height="{_BAR_HEIGHT}" rx="2" fill="{colour}" '
            f'fill-opacity="{0.35 if "bare" in figure.name else 0.85}"/>'
        )
        yield (
            f'<line x1="{_LEFT + low:.1f}" y1="{middle:.1f}" x2="{_LEFT + high:.1f}" y2="{middle:.1f}" '
            f'stroke="{INK}" stroke-width="1.2"/>'
        )
        yield draw_text(_LEFT + max(wide, high) + 8, y + 13, format_value(figure.value, ""))
        y += _BAR_HEIGHT + _BAR_GAP


def _position(figure: Figure, figures: Sequence[Figure]) -> int:
    """Returns the position of a figure in its part.

    Figures with the same name and different stores share a position.
    """
    return list(dict.fromkeys(one.name for one in figures)).index(figure.name)
