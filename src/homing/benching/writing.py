"""Formats a report as table rows and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homing.benching.figures import Report, Result

COLUMNS = ("PART", "WHAT", "STORE", "MEDIAN>", "MIN>", "MAX>", "RATIO>", "COMPARED WITH", "TARGET")

_COMMANDS = {"quick": "homing bench", "long": "homing bench --long", "peers": "make bench-peers"}


def rows(report: Report) -> list[tuple[str, ...]]:
    """Returns one row per figure, with the columns `COLUMNS`."""
    return [_row(result) for result in report.results]


def verdict(report: Report) -> str:
    """Summarises the run in one line."""
    judged = [result for result in report.results if result.met is not None]
    missed = len(report.missed)
    targets = f"{len(judged) - missed} of {len(judged)} targets met" if judged else "no targets"
    return f"every accepted notification is accounted for; {targets}; {report.seconds:,.0f} s"


def machine(report: Report) -> str:
    """Describes the machine in one line."""
    here = report.machine
    stores = ", ".join(here.stores)
    return (
        f"{here.cores} cores ({here.processor}), {here.memory_gb:g} GB, {here.system}, Python {here.python}, "
        f"{stores}, Homing {here.homing}"
    )


def markdown(report: Report) -> str:
    """Returns the table for performance.md."""
    most = max((len(figure.rounds) for figure in report.figures), default=0)
    heading = f"Measured {report.began_at[:10]} with `{_COMMANDS[report.form]}` on {machine(report)}."
    lines = [
        f"{heading} Medians of up to {most} alternating rounds.",
        "",
        *_table([column.rstrip(">").capitalize() for column in COLUMNS], rows(report)),
        "",
        *(f"- {note}" for note in report.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "|".join("---:" if column.endswith(">") else "---" for column in COLUMNS) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _row(result: Result) -> tuple[str, ...]:
    figure = result.figure
    several = len(figure.rounds) > 1
    return (
        figure.part,
        figure.name,
        figure.store,
        shown(result.value, figure.unit),
        shown(min(figure.rounds), figure.unit) if several else "",
        shown(max(figure.rounds), figure.unit) if several else "",
        "" if result.ratio is None else f"{result.ratio:.2f}",
        figure.beside if result.ratio is not None else "",
        _bar(result),
    )


def _bar(result: Result) -> str:
    figure = result.figure
    bound = figure.at_least if figure.at_least is not None else figure.at_most
    if bound is None or result.met is None:
        return ""
    sign = "≥" if figure.at_least is not None else "≤"
    unit = "" if result.ratio is not None else figure.unit
    return f"{sign} {shown(bound, unit)}: {'met' if result.met else 'MISSED'}"


def shown(value: float, unit: str) -> str:
    """Formats a number with its unit and about three significant digits."""
    digits = 0 if abs(value) >= 100 or unit == "bytes" else 1 if abs(value) >= 10 else 2
    number = f"{value:,.{digits}f}"
    return f"{number}{unit}" if unit in ("/s", "") else f"{number} {unit}"
