"""What was measured: figures, what they are measured against, and the bars that they must reach."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct, field


class Figure(Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that was measured, round by round."""

    part: str
    name: str
    store: str
    """`SQLite` or `PostgreSQL`; beside peers, `Homing` or `peer`."""
    unit: str
    """`/s`, `ms`, `MB`, `bytes`, `%`, or nothing for a plain ratio or count."""
    rounds: tuple[float, ...]
    beside: str = ""
    """The name of the figure, of the same part and store, that it is divided by."""
    at_least: float | None = None
    at_most: float | None = None
    """The bar: for the ratio where there is one, else for the value."""

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)


class Machine(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where it was measured."""

    system: str
    processor: str
    cores: int
    memory_gb: float
    python: str
    stores: tuple[str, ...]
    """With their versions."""
    homing: str


class Result(Struct, frozen=True, kw_only=True, rename="camel"):
    """A figure with what follows from it."""

    figure: Figure
    value: float
    ratio: float | None = None
    met: bool | None = None
    """Whether its bar was reached; None: it has none."""


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
    """One run, whole. Every figure in it comes from a round whose books were balanced."""

    machine: Machine
    form: str
    """`quick`, `long`, or `peers` for a run beside them."""
    began_at: str
    seconds: float
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What was left out, and why."""

    @property
    def results(self) -> tuple[Result, ...]:
        return tuple(_results(self.figures))

    @property
    def missed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.met is False)


def _results(figures: Sequence[Figure]) -> Iterator[Result]:
    known = {(figure.part, figure.store, figure.name): figure for figure in figures}
    for figure in figures:
        other = known.get((figure.part, figure.store, figure.beside)) if figure.beside else None
        ratio = _ratio(figure, other) if other is not None else None
        judged = ratio if figure.beside else figure.value
        yield Result(figure=figure, value=figure.value, ratio=ratio, met=_met(figure, judged))


def _ratio(figure: Figure, other: Figure) -> float | None:
    """Round by round where they took turns: what the machine did meanwhile weighs on both.

    None where the other is too small to be told from nothing.
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
