"""Prints the report of a simulated outage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from homing.cli.chart import sparkline, spread, squeezed
from homing.cli.screen import Screen, styled
from homing.cli.words import plural, span

if TYPE_CHECKING:
    from homing.core.rehearsal import Outage, RehearsalReport, Traffic

_CHART_WIDTH = 72


def show(
    screen: Screen, report: RehearsalReport, traffic: Traffic, away: Outage | None, svg: Path | None
) -> None:
    """Prints the whole report."""
    screen.line(f"Policy: {report.policy}", style="bold")
    screen.line(
        f"{traffic.per_second:g}/s {traffic.channel.value} for {span(traffic.duration_ms)}"
        f" ({plural(report.notifications, 'notification')}) to {', '.join(report.providers)}"
    )
    screen.line(_outage_words(away))
    _endings(screen, report)
    _times(screen, report)
    _charts(screen, report)
    _breakers(screen, report)
    if svg is not None:
        screen.line("")
        screen.line(f"chart: {svg}")


def _outage_words(away: Outage | None) -> str:
    if away is None:
        return "no outage"
    how = {
        "down": "down",
        "throttle": f"throttled (Retry-After {span(away.retry_after_ms)})",
        "slow": f"slow ({span(away.latency_ms)})",
    }[away.kind.value]
    share = "" if away.share >= 1 else f" for {100 * away.share:g} % of sends"
    when = f"for {span(away.duration_ms)}, starting at {span(away.start_ms)}"
    return f"{', '.join(away.providers)} {how}{share} {when}"


def _endings(screen: Screen, report: RehearsalReport) -> None:
    screen.heading("How they ended")
    screen.table(
        ("STATUS", "REASON", "COUNT>", "SHARE>"),
        [
            (
                styled(ending.status),
                ending.reason or "",
                f"{ending.count:,}",
                f"{100 * ending.count / max(1, report.notifications):.2f} %",
            )
            for ending in report.endings
        ],
    )
    screen.line(
        f"{report.delivered:,} delivered, {plural(report.dead_letters, 'dead letter')}, "
        f"{report.unfinished:,} unfinished; {report.attempts_per_delivered:.2f} attempts per delivery"
    )


def _times(screen: Screen, report: RehearsalReport) -> None:
    screen.heading("How long delivery took")
    if report.delivery is None:
        screen.line("nothing was delivered")
    else:
        d = report.delivery
        screen.table(
            ("P50>", "P90>", "P95>", "P99>", "MAX>"),
            [tuple(span(ms) for ms in (d.p50, d.p90, d.p95, d.p99, d.max))],
        )
    for peak in (peak for peak in report.recovery_peaks if peak.per_second):
        screen.line(
            f"recovery peak at {peak.provider}: {peak.per_second:.1f}/s at {span(peak.at_ms)}, "
            f"{peak.times_normal:.1f} times normal"
        )
    screen.line(
        f"largest backlog {report.largest_backlog:,}; the last one ended after {span(report.ended_ms)}"
    )


def _charts(screen: Screen, report: RehearsalReport) -> None:
    screen.heading(f"Sends per second and backlog, over {span(len(report.buckets) * report.bucket_ms)}")
    rows: list[tuple[Any, ...]] = []
    for provider in report.providers:
        sends = [bucket.sends_per_second.get(provider, 0.0) for bucket in report.buckets]
        rows.append(
            (provider, styled(sparkline(squeezed(sends, _CHART_WIDTH)), "green"), f"≤ {max(sends):.1f}/s")
        )
    backlog = [float(bucket.backlog) for bucket in report.buckets]
    rows.append(
        (
            "backlog",
            styled(sparkline(squeezed(backlog, _CHART_WIDTH)), "yellow"),
            f"≤ {report.largest_backlog:,}",
        )
    )
    if report.outages:
        marks = spread([_is_away(report, bucket.start_ms) for bucket in report.buckets], _CHART_WIDTH)
        rows.append(("outage", styled("".join("▔" if mark else " " for mark in marks), "red"), ""))
    width = max(len(name) for name, _, _ in rows)
    for name, picture, top in rows:
        screen.line(f"  {name:<{width}} ", picture, top)


def _breakers(screen: Screen, report: RehearsalReport) -> None:
    """Prints when breakers opened and closed. Failed trials in between are only counted."""
    if report.breaker_changes:
        screen.heading("Breakers")
    failed_trials = 0
    for change in report.breaker_changes:
        if (change.before, change.after) == ("half_open", "open"):
            failed_trials += 1
        if "half_open" in (change.before, change.after) and change.after != "closed":
            continue
        after = f"after {plural(failed_trials, 'failed trial')}" if failed_trials else ""
        failed_trials = 0
        screen.line(f"  {span(change.at_ms):>8}  {change.provider}", styled(change.after), after)
    if failed_trials:
        screen.line(f"  {plural(failed_trials, 'failed trial')}; still open at the end")


def _is_away(report: RehearsalReport, at_ms: int) -> bool:
    return any(o.start_ms < at_ms + report.bucket_ms and at_ms < o.end_ms for o in report.outages)
