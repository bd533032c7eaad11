"""`homing policy simulate`: simulates traffic and an outage under a policy, and reports the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli import filters
from homing.cli.exits import ExitCode, Refused
from homing.cli.policy import policy
from homing.cli.policy_flags import (
    BackoffFlag,
    BaseFlag,
    CapFlag,
    FactorFlag,
    FailoverFlag,
    JitterFlag,
    JitterMsFlag,
    JitterRatioFlag,
    MaxAgeFlag,
    MaxAttemptsFlag,
    OnTimeoutFlag,
    StepsFlag,
    TimeoutFlag,
    patch_from,
)
from homing.cli.screen import print_json
from homing.cli.shared import Json, Options, command
from homing.cli.simulate_view import show
from homing.cli.words import duration_ms, per_second

if TYPE_CHECKING:
    from homing.core.rehearsal import RehearsalReport


@command(policy, "simulate")
def simulate(
    options: Options,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", metavar="NAME", help="Preset to simulate; default: the configured preset and rules."
        ),
    ] = None,
    max_attempts: MaxAttemptsFlag = None,
    backoff: BackoffFlag = None,
    base: BaseFlag = None,
    factor: FactorFlag = None,
    steps: StepsFlag = None,
    cap: CapFlag = None,
    jitter: JitterFlag = None,
    jitter_ratio: JitterRatioFlag = None,
    jitter_max: JitterMsFlag = None,
    failover_after: FailoverFlag = None,
    timeout: TimeoutFlag = None,
    on_timeout: OnTimeoutFlag = None,
    max_age: MaxAgeFlag = None,
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
        int, typer.Option("--providers", metavar="N", help="Number of providers: 1, or 2 with failover.")
    ] = 1,
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
    """Simulate an outage under a policy, running the real engine in virtual time."""
    import logging

    from homing.core.model import Channel
    from homing.core.rehearsal import Outage, OutageKind, Rehearsal, Traffic
    from homing.sim.rehearsal import rehearse

    patch = patch_from(
        max_attempts=max_attempts,
        backoff=backoff,
        base=base,
        factor=factor,
        steps=steps,
        cap=cap,
        jitter=jitter,
        jitter_ratio=jitter_ratio,
        jitter_max=jitter_max,
        failover_after=failover_after,
        timeout=timeout,
        on_timeout=on_timeout,
        max_age=max_age,
    )
    name, rules = _policy(options, preset, patch)
    outage_ms = duration_ms(outage, "--outage")
    away = Outage(
        providers=_which(outage_of),
        start_ms=duration_ms(outage_at, "--outage-at"),
        duration_ms=max(1, outage_ms),
        kind=filters.one_of(OutageKind, outage_kind, "--outage-kind") or OutageKind.DOWN,
        share=outage_share,
        retry_after_ms=duration_ms(retry_after, "--retry-after"),
        latency_ms=duration_ms(slowness, "--slowness"),
    )
    mix: dict[str, Any] = {"priorities": _priorities(priority)} if priority else {}
    traffic = Traffic(
        per_second=per_second(rate, "--rate"),
        duration_ms=duration_ms(duration, "--for"),
        channel=filters.one_of(Channel, channel, "--channel") or Channel.EMAIL,
        type=type,
        origin=origin,
        tenant=options.settings().tenant,
        **mix,
    )
    logging.getLogger("homing").setLevel(logging.ERROR)  # warnings would be about simulated failures
    report = rehearse(
        Rehearsal(
            preset=name,
            rules=rules,
            traffic=traffic,
            outages=(away,) if outage_ms else (),
            providers=providers,
            latency_ms=duration_ms(latency, "--latency"),
            rate_per_second=None if provider_rate is None else per_second(provider_rate, "--provider-rate"),
            seed=seed,
        )
    )
    if svg is not None:
        _draw(report, svg)
    if json:
        print_json(report)
    else:
        show(options.screen, report, traffic, away if outage_ms else None, svg)
    return ExitCode.OK


def _policy(options: Options, preset: str | None, patch: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Returns the preset and rules to simulate. Fields in `patch` replace all configured rules."""
    from homing import config
    from homing.core.presets import preset as named

    settings = options.settings()
    name = named(preset).name if preset else settings.preset
    if patch:
        return name, (config.rule_from({"name": "simulated", **patch}, "policy"),)
    return name, () if preset else settings.rules


def _which(name: str) -> tuple[str, ...]:
    from homing.core.rehearsal import PROVIDERS

    if name == "both":
        return PROVIDERS
    if name not in PROVIDERS:
        raise Refused(f"--outage-of: is {name!r}; must be one of {', '.join(PROVIDERS)} or both")
    return (name,)


def _priorities(given: list[str]) -> dict[Any, float]:
    from homing.core.request import priority_of

    shares = {}
    for one in given:
        name, _, share = one.partition("=")
        try:
            shares[priority_of(name)] = float(share or 1)
        except ValueError:
            raise Refused(f"--priority: {one!r} has an invalid share; give a number, e.g. high=0.3") from None
    return shares


def _draw(report: RehearsalReport, file: Path) -> None:
    from homing.sim.rehearsal_svg import draw

    try:
        file.write_text(draw(report), encoding="utf-8")
    except OSError as error:
        raise Refused(f"--svg: {file}: {error.strerror}") from None
