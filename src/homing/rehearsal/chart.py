"""Draws a rehearsal as SVG: sends per second at the top, breakers in the middle, backlog at the bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise

from msgspec import Struct

from homing.charts.svg import FAINT, GRID, draw_document, draw_text
from homing.core.durations import format_duration
from homing.core.rehearsal import Outage, OutageKind, RehearsalReport

_COLOURS = ("#2563eb", "#d97706")

_BACKLOG = "#0f766e"

_OUTAGE, _OUTAGE_INK = "#fee2e2", "#b91c1c"

_PHASES = {"open": "#dc2626", "half_open": "#f59e0b", "closed": "#86efac"}

_LEFT, _RIGHT, _TOP, _BOTTOM, _STRIP = 76, 34, 104, 46, 16

_STEPS_MS = tuple(
    seconds * 1000
    for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
) + tuple(days * 86_400_000 for days in (1, 2, 5, 10))


class _Panel(Struct, frozen=True):
    """A chart area with its own vertical scale."""

    top: float
    height: float
    most: float

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.most)


def draw_svg(report: RehearsalReport, *, width: int = 960, height: int = 560) -> str:
    """Returns an SVG document with sends per second, breakers and backlog. Outages are shaded.

    The document has a title, axes and a legend, so it needs no further explanation.
    """
    until_ms = max(report.bucket_ms, len(report.buckets) * report.bucket_ms)
    inner = width - _LEFT - _RIGHT

    def x(at_ms: float) -> float:
        return _LEFT + inner * min(1.0, at_ms / until_ms)

    strips = _STRIP * len(report.providers) + 30
    room = height - _TOP - _BOTTOM - strips
    rates = [rate for bucket in report.buckets for rate in bucket.sends_per_second.values()]
    upper = _Panel(_TOP, room * 0.58, _nice(max(rates, default=0.0)))
    lower = _Panel(_TOP + upper.height + strips, room * 0.42, _nice(float(report.largest_backlog)))
    parts = [
        *_head(report, width),
        *(_shade(outage, x, upper, lower) for outage in report.outages if outage.start_ms < until_ms),
        *_grid(upper, width, "sends per second"),
        *_grid(lower, width, "backlog"),
        *_curves(report, x, upper),
        *_breakers(report, x, upper.top + upper.height + 12, until_ms),
        *_backlog(report, x, lower),
        *_times(until_ms, x, lower),
        *(_outage_label(outage, x, upper, width) for outage in report.outages if outage.start_ms < until_ms),
    ]
    return draw_document(parts, width=width, height=height, title=_title(report))


def _head(report: RehearsalReport, width: int) -> Iterator[str]:
    yield draw_text(_LEFT, 28, _title(report), size=17, weight=600)
    yield draw_text(_LEFT, 48, _subtitle(report), colour=FAINT)
    at = float(_LEFT)
    for name, colour in zip(report.providers, _COLOURS, strict=False):
        yield f'<rect x="{at:.1f}" y="63" width="14" height="4" fill="{colour}"/>'
        yield draw_text(at + 20, 69, f"sends to {name}")
        at += 44 + 7 * len(f"sends to {name}")
    yield f'<rect x="{at:.1f}" y="60" width="14" height="10" fill="{_BACKLOG}" fill-opacity="0.35"/>'
    yield draw_text(at + 20, 69, "backlog")
    at += 84
    for phase, colour in _PHASES.items():
        yield f'<rect x="{at:.1f}" y="60" width="14" height="10" fill="{colour}"/>'
        label = f"breaker {phase.replace('_', ' ')}"
        yield draw_text(at + 20, 69, label)
        at += 34 + 6.6 * len(label)
    if report.sends_after:
        note = f"{report.sends_after} later sends are not shown"
        yield draw_text(width - _RIGHT, 28, note, colour=FAINT, anchor="end")


def _shade(outage: Outage, x: Callable[[float], float], upper: _Panel, lower: _Panel) -> str:
    left, right = x(outage.start_ms), x(outage.end_ms)
    bottom = lower.top + lower.height
    return (
        f'<rect x="{left:.1f}" y="{upper.top}" width="{max(1.0, right - left):.1f}" '
        f'height="{bottom - upper.top:.1f}" fill="{_OUTAGE}" fill-opacity="0.7"/>'
    )


def _outage_label(outage: Outage, x: Callable[[float], float], upper: _Panel, width: int) -> str:
    words = {OutageKind.DOWN: "down", OutageKind.THROTTLE: "throttling", OutageKind.SLOW: "slow"}
    share = "" if outage.share == 1 else f" ({outage.share:.0%} of sends)"
    label = f"{' + '.join(outage.providers)} {words[outage.kind]}{share}"
    left = min(x(outage.start_ms), width - _RIGHT - 6.6 * len(label))
    return draw_text(left, upper.top - 6, label, colour=_OUTAGE_INK, weight=600)


def _grid(panel: _Panel, width: int, title: str) -> Iterator[str]:
    for part in range(5):
        value = panel.most * part / 4
        y = panel.y(value)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{width - _RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>'
        yield draw_text(_LEFT - 8, y + 4, _number(value), colour=FAINT, anchor="end")
    middle = panel.top + panel.height / 2
    yield (
        f'<text x="18" y="{middle:.1f}" fill="{FAINT}" text-anchor="middle" '
        f'transform="rotate(-90 18 {middle:.1f})">{escape(title)}</text>'
    )


def _curves(report: RehearsalReport, x: Callable[[float], float], panel: _Panel) -> Iterator[str]:
    for name, colour in zip(report.providers, _COLOURS, strict=False):
        values = [bucket.sends_per_second[name] for bucket in report.buckets]
        line = _steps(values, report.bucket_ms, x, panel)
        base = panel.y(0)
        area = f"M{_LEFT} {base:.1f} L{line[1:]} L{x(len(values) * report.bucket_ms):.1f} {base:.1f} Z"
        yield f'<path d="{area}" fill="{colour}" fill-opacity="0.12"/>'
        yield f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _backlog(report: RehearsalReport, x: Callable[[float], float], panel: _Panel) -> Iterator[str]:
    points = [f"{x(0):.1f} {panel.y(0):.1f}"]
    points += [
        f"{x(bucket.start_ms + report.bucket_ms):.1f} {panel.y(bucket.backlog):.1f}"
        for bucket in report.buckets
    ]
    line = "M" + " L".join(points)
    end = x(len(report.buckets) * report.bucket_ms)
    yield f'<path d="{line} L{end:.1f} {panel.y(0):.1f} Z" fill="{_BACKLOG}" fill-opacity="0.18"/>'
    yield f'<path d="{line}" fill="none" stroke="{_BACKLOG}" stroke-width="1.6"/>'


def _breakers(
    report: RehearsalReport, x: Callable[[float], float], top: float, until_ms: int
) -> Iterator[str]:
    for row, name in enumerate(report.providers):
        y = top + row * _STRIP
        yield draw_text(_LEFT - 8, y + 9, name, colour=FAINT, anchor="end", size=11)
        changes = [change for change in report.breaker_changes if change.provider == name]
        spans = [(0, "closed"), *((change.at_ms, change.after) for change in changes), (until_ms, "")]
        for (start, phase), (end, _) in pairwise(spans):
            wide = max(1.5 if phase == "half_open" else 0.0, x(end) - x(start))
            if wide and start < until_ms:
                yield (
                    f'<rect x="{x(start):.1f}" y="{y:.1f}" width="{wide:.1f}" height="10" '
                    f'fill="{_PHASES[phase]}"/>'
                )


def _times(until_ms: int, x: Callable[[float], float], panel: _Panel) -> Iterator[str]:
    step = next((s for s in _STEPS_MS if until_ms / s <= 12), _STEPS_MS[-1])
    bottom = panel.top + panel.height
    for at in range(0, until_ms + 1, step):
        yield f'<line x1="{x(at):.1f}" y1="{bottom}" x2="{x(at):.1f}" y2="{bottom + 5}" stroke="{FAINT}"/>'
        yield draw_text(x(at), bottom + 18, _duration(at), colour=FAINT, anchor="middle")
    yield draw_text((_LEFT + x(until_ms)) / 2, bottom + 36, "time", colour=FAINT, anchor="middle")


def _steps(values: Sequence[float], bucket_ms: int, x: Callable[[float], float], panel: _Panel) -> str:
    points: list[str] = []
    for index, value in enumerate(values):
        y = panel.y(value)
        points.append(f"{x(index * bucket_ms):.1f} {y:.1f}")
        points.append(f"{x((index + 1) * bucket_ms):.1f} {y:.1f}")
    return "M" + " L".join(points)


def _title(report: RehearsalReport) -> str:
    what = f"{_number(report.traffic.per_second)} per second by {report.traffic.channel.value}"
    return f"Rehearsal: {report.policy}, {what}"


def _subtitle(report: RehearsalReport) -> str:
    said = [
        f"{report.notifications:,} notifications",
        f"{report.delivered:,} delivered",
        f"{report.dead_letters:,} dead letters",
    ]
    if report.delivery is not None:
        said.append(
            f"p50 {_duration(report.delivery.p50)}, p95 {_duration(report.delivery.p95)}, "
            f"slowest {_duration(report.delivery.max)}"
        )
    if report.recovery_peaks:
        highest = max(report.recovery_peaks, key=lambda peak: peak.per_second)
        said.append(f"recovery peak {_number(highest.per_second)}/s")
    return " · ".join(said)


def _duration(ms: int) -> str:
    """Returns a duration for a label: `0`, `850 ms`, `1.5 s`, and whole seconds from `10 s` on."""
    return format_duration(ms if ms < 10_000 else ms // 1000 * 1000, spaced=True) if ms else "0"


def _nice(most: float) -> float:
    """Returns the top of a scale: at least `most`, with quarters that are easy to read."""
    size = 1.0
    while size * 10 < most:
        size *= 10
    return next(
        top
        for top in (0.4 * size, 0.8 * size, 1.2 * size, 2 * size, 4 * size, 6 * size, 8 * size, 12 * size)
        if top >= most
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
