"""A report for readers: rows of a table, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homing.benching.figures import Report, Result

COLUMNS = ("PART", "WHAT", "STORE", "MEDIAN>", "LEAST>", "MOST>", "RATIO>", "AGAINST", "BAR")

_COMMANDS = {"quick": "homing bench", "long": "homing bench --long", "peers": "make bench-peers"}


def rows(report: Report) -> list[tuple[str, ...]]:
    """One for each figure, under `COLUMNS`."""
    return [_row(result) for result in report.results]


def verdict(report: Report) -> str:
    """In one line."""
    judged = [result for result in report.results if result.met is not None]
    missed = len(report.missed)
    told = f"{len(judged) - missed} of {len(judged)} bars met" if judged else "no bars here"
    return f"accepted = accounted in every round; {told}; {report.seconds:,.0f} s"


def machine(report: Report) -> str:
    """In one line."""
    here = report.machine
    stores = ", ".join(here.stores)
    return (
        f"{here.cores} cores ({here.processor}), {here.memory_gb:g} GB, {here.system}, Python {here.python}, "
        f"{stores}, Homing {here.homing}"
    )


def markdown(report: Report) -> str:
    """The table as performance.md has it."""
    most = max((len(figure.rounds) for figure in report.figures), default=0)
    said = f"Measured {report.began_at[:10]} by `{_COMMANDS[report.form]}` on {machine(report)}."
    lines = [
        f"{said} Medians of up to {most} rounds that take turns.",
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
    """A number with its unit, with as many digits as mean something."""
    digits = 0 if abs(value) >= 100 or unit == "bytes" else 1 if abs(value) >= 10 else 2
    number = f"{value:,.{digits}f}"
    return f"{number}{unit}" if unit in ("/s", "") else f"{number} {unit}"
