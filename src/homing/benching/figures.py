"""The report of a benchmark run: figures, the figures they are compared with, and their targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct, field


class Figure(Struct, frozen=True, kw_only=True, rename="camel"):
    """One measured quantity, with the value of each round."""

    part: str
    name: str
    store: str
    """`SQLite` or `PostgreSQL`. In a comparison with other queues, `Homing` or `peer`."""
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


class Result(Struct, frozen=True, kw_only=True, rename="camel"):
    """A figure with its median, ratio and verdict."""

    figure: Figure
    value: float
    ratio: float | None = None
    met: bool | None = None
    """True if the target is met. None if there is no target or no ratio."""


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
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
