"""`homing policy simulate`: simulates traffic and an outage under a policy, and reports the result."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.flag_groups import LeaveOut
from homing.cli.common.options import Json, Options, command, parse_choice
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import Screen, downsample, downsample_marks, print_json, sparkline, styled
from homing.cli.common.units import format_count, parse_duration_ms, parse_rate
from homing.cli.operations.policy import policy
from homing.cli.operations.policy_flags import PolicyFlags
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.rehearsal import Outage, Rehearsal, RehearsalReport, Traffic


_PROGRESS_AFTER_S = 5.0


@command(policy, "simulate")
def simulate(
    options: Options,
    *,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", metavar="NAME", help="Preset to simulate; default: the configured preset and rules."
        ),
    ] = None,
    fields: Annotated[PolicyFlags, LeaveOut("bounce_failover")],
    outage: Annotated[
        str,
        typer.Option("--outage", metavar="DURATION", help="Length of the outage; 0 means none."),
    ] = "10m",
    outage_at: Annotated[
        str, typer.Option("--outage-at", metavar="DURATION", help="Start of the outage.")
    ] = "2m",
    outage_kind: Annotated[
        str, typer.Option("--outage-kind", metavar="KIND", help="Kind of outage: down, throttle or slow.")
    ] = "down",
    outage_share: Annotated[
        float, typer.Option("--outage-share", metavar="X", help="Share of sends that are affected, 0 to 1.")
    ] = 1.0,
    outage_of: Annotated[
        str,
        typer.Option("--outage-of", metavar="WHICH", help="Affected provider: primary, secondary or both."),
    ] = "primary",
    retry_after: Annotated[
        str, typer.Option("--retry-after", metavar="DURATION", help="Retry-After of a throttling provider.")
    ] = "30s",
    slowness: Annotated[
        str, typer.Option("--slowness", metavar="DURATION", help="Response time during a slow outage.")
    ] = "60s",
    rate: Annotated[
        str, typer.Option("--rate", metavar="RATE", help="Traffic rate, e.g. 20/s or 300/m.")
    ] = "5/s",
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Duration of the traffic.")
    ] = "20m",
    channel: Annotated[
        str, typer.Option("--channel", metavar="NAME", help="Channel of the traffic.")
    ] = "email",
    type: Annotated[str, typer.Option("--type", metavar="NAME", help="Type of the traffic.")] = "message",
    origin: Annotated[str, typer.Option("--origin", metavar="NAME", help="Origin of the traffic.")] = "",
    priority: Annotated[
        list[str] | None,
        typer.Option(
            "--priority", metavar="NAME[=SHARE]", help="Priority of the traffic; repeatable; default: a mix."
        ),
    ] = None,
    providers: Annotated[
        int | None,
        typer.Option(
            "--providers",
            metavar="N",
            help="1, or 2 with failover; default: 1, or 2 if --outage-of needs it.",
        ),
    ] = None,
    latency: Annotated[
        str, typer.Option("--latency", metavar="DURATION", help="Normal response time.")
    ] = "200ms",
    provider_rate: Annotated[
        str | None, typer.Option("--provider-rate", metavar="RATE", help="Rate limit of each provider.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Random seed; the same seed repeats a run.")
    ] = 1,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also write an SVG chart to FILE.")
    ] = None,
    json: Json = False,
) -> int:
    """Simulate an outage under a policy. The real engine runs in virtual time."""
    import logging

    from homing.core.notifications import Channel
    from homing.core.rehearsal import Outage, OutageKind, Rehearsal, Traffic

    name, rules = _policy(options, preset, fields.build())
    outage_ms = parse_duration_ms(outage, "--outage")
    away = Outage(
        providers=_which(outage_of),
        start_ms=parse_duration_ms(outage_at, "--outage-at"),
        duration_ms=max(1, outage_ms),
        kind=parse_choice(OutageKind, outage_kind, "--outage-kind") or OutageKind.DOWN,
        share=outage_share,
        retry_after_ms=parse_duration_ms(retry_after, "--retry-after"),
        latency_ms=parse_duration_ms(slowness, "--slowness"),
    )
    mix: dict[str, Any] = {"priorities": _priorities(priority)} if priority else {}
    traffic = Traffic(
        per_second=parse_rate(rate, "--rate"),
        duration_ms=parse_duration_ms(duration, "--for"),
        channel=parse_choice(Channel, channel, "--channel") or Channel.EMAIL,
        type=type,
        origin=origin,
        tenant=options.settings().tenant,
        **mix,
    )
    logging.getLogger("homing").setLevel(logging.ERROR)  # warnings would be about simulated failures
    report = rehearse_with_progress(
        options,
        Rehearsal(
            preset=name,
            rules=rules,
            traffic=traffic,
            outages=(away,) if outage_ms else (),
            providers=len({"primary", *away.providers}) if providers is None else providers,
            latency_ms=parse_duration_ms(latency, "--latency"),
            rate_per_second=None if provider_rate is None else parse_rate(provider_rate, "--provider-rate"),
            seed=seed,
        ),
    )
    if svg is not None:
        _draw(report, svg)
    if json:
        print_json(report)
    else:
        show_report(options.screen, report, traffic, away if outage_ms else None, svg)
    return ExitCode.OK


def rehearse_with_progress(
    options: Options, rehearsal: Rehearsal, now: Callable[[], float] = time.monotonic
) -> RehearsalReport:
    """Runs the rehearsal. Shows its progress on stderr if it takes long. `now` is a clock in seconds."""
    from homing.rehearsal.rehearse import rehearse

    with ProgressBar(options, "simulating", 100, after_s=_PROGRESS_AFTER_S, now=now) as bar:
        return rehearse(
            rehearsal,
            lambda ended, total: bar.at(
                100 * ended // total, f"{ended:,} of {total:,} notifications have ended"
            ),
        )


def _policy(options: Options, preset: str | None, patch: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Returns the name of the preset, and the rules to simulate.

    Fields in `patch` form a single rule that replaces all configured ones. With `preset`, the configured
    rules are ignored too.
    """
    from homing.core.retry.presets import find_preset
    from homing.settings import build_rule

    settings = options.settings()
    name = find_preset(preset).name if preset else settings.preset
    if patch:
        return name, (build_rule({"name": "simulated", **patch}, "policy"),)
    return name, () if preset else settings.rules


def _which(name: str) -> tuple[str, ...]:
    from homing.core.rehearsal import PROVIDERS

    if name == "both":
        return PROVIDERS
    if name not in PROVIDERS:
        raise CliError(f"--outage-of: is {name!r}; it must be one of {', '.join(PROVIDERS)} or both")
    return (name,)


def _priorities(given: list[str]) -> dict[Any, float]:
    from homing.core.send_request import priority_of

    shares = {}
    for one in given:
        name, _, share = one.partition("=")
        try:
            shares[priority_of(name)] = float(share or 1)
        except ValueError:
            raise CliError(
                f"--priority: {one!r} has an invalid share; give a number, e.g. high=0.3"
            ) from None
    return shares


def _draw(report: RehearsalReport, file: Path) -> None:
    from homing.rehearsal.chart import draw_svg

    try:
        file.write_text(draw_svg(report), encoding="utf-8")
    except OSError as error:
        raise CliError(f"--svg: {file}: {error.strerror}") from None


_CHART_WIDTH, _MIN_CHART_WIDTH = 72, 20
"""Width of a chart in characters, and the smallest on a narrow terminal."""


def show_report(
    screen: Screen, report: RehearsalReport, traffic: Traffic, away: Outage | None, svg: Path | None
) -> None:
    """Prints the whole report of a simulation."""
    screen.line(f"Policy: {report.policy}", style="bold")
    screen.line(
        f"{traffic.per_second:g}/s {traffic.channel.value} for {format_duration(traffic.duration_ms)}"
        f" ({format_count(report.notifications, 'notification')}) to {', '.join(report.providers)}"
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
        "throttle": f"throttled (Retry-After {format_duration(away.retry_after_ms)})",
        "slow": f"slow ({format_duration(away.latency_ms)})",
    }[away.kind.value]
    share = "" if away.share >= 1 else f" for {100 * away.share:g} % of sends"
    when = f"for {format_duration(away.duration_ms)}, starting at {format_duration(away.start_ms)}"
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
        f"{report.delivered:,} delivered, {format_count(report.dead_letters, 'dead letter')}, "
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
            [tuple(format_duration(ms) for ms in (d.p50, d.p90, d.p95, d.p99, d.max))],
        )
    for peak in (peak for peak in report.recovery_peaks if peak.per_second):
        screen.line(
            f"recovery peak at {peak.provider}: {peak.per_second:.1f}/s at {format_duration(peak.at_ms)}, "
            f"{peak.times_normal:.1f} times normal"
        )
    screen.line(
        f"largest backlog {report.largest_backlog:,}; "
        f"the last notification ended after {format_duration(report.ended_ms)}"
    )


def _charts(screen: Screen, report: RehearsalReport) -> None:
    screen.heading(
        f"Sends per second and backlog, over {format_duration(len(report.buckets) * report.bucket_ms)}"
    )
    sends = {
        provider: [bucket.sends_per_second.get(provider, 0.0) for bucket in report.buckets]
        for provider in report.providers
    }
    charts: list[tuple[str, list[float], str, str]] = [
        (provider, values, "green", f"≤ {max(values):.1f}/s") for provider, values in sends.items()
    ]
    backlog = [float(bucket.backlog) for bucket in report.buckets]
    charts.append(("backlog", backlog, "yellow", f"≤ {report.largest_backlog:,}"))
    names = max(len("outage"), *(len(name) for name, *_ in charts))
    around = names + max(len(top) for *_, top in charts) + len("     ")
    width = _CHART_WIDTH
    if screen.columns is not None:
        width = max(_MIN_CHART_WIDTH, min(width, screen.columns - around))
    for name, values, style, top in charts:
        screen.line(f"  {name:<{names}} ", styled(sparkline(downsample(values, width)), style), top)
    if report.outages:
        marks = downsample_marks([_is_away(report, bucket.start_ms) for bucket in report.buckets], width)
        screen.line(f"  {'outage':<{names}} ", styled("".join("▔" if mark else " " for mark in marks), "red"))


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
        after = f"after {format_count(failed_trials, 'failed trial')}" if failed_trials else ""
        failed_trials = 0
        screen.line(f"  {format_duration(change.at_ms):>8}  {change.provider}", styled(change.after), after)
    if failed_trials:
        screen.line(f"  {format_count(failed_trials, 'failed trial')}; still open at the end")


def _is_away(report: RehearsalReport, at_ms: int) -> bool:
    return any(o.start_ms < at_ms + report.bucket_ms and at_ms < o.end_ms for o in report.outages)


def build_simulator() -> Callable[[Rehearsal], Awaitable[RehearsalReport]]:
    """Returns a function that simulates an outage in a child process. Imports the simulator on first use."""

    async def simulate(rehearsal: Rehearsal) -> RehearsalReport:
        from homing.rehearsal.rehearse import rehearse_in_subprocess

        return await rehearse_in_subprocess(rehearsal)

    return simulate
