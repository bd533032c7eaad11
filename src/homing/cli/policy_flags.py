"""The fields of a policy as flags, shared by `policy set` and `policy simulate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from homing.cli.words import duration_ms

MaxAttemptsFlag = Annotated[
    int | None, typer.Option("--max-attempts", metavar="N", help="All attempts, the first included.")
]
BackoffFlag = Annotated[
    str | None, typer.Option("--backoff", metavar="KIND", help="exponential, linear, fibonacci or fixed.")
]
BaseFlag = Annotated[
    str | None, typer.Option("--base", metavar="DURATION", help="The first delay, e.g. 10m.")
]
FactorFlag = Annotated[
    float | None, typer.Option("--factor", metavar="X", help="Growth of an exponential one.")
]
StepsFlag = Annotated[
    str | None, typer.Option("--steps", metavar="DURATIONS", help="Delays of a fixed one, e.g. 1m,5m,1h.")
]
CapFlag = Annotated[str | None, typer.Option("--cap", metavar="DURATION", help="The longest delay; 0: none.")]
JitterFlag = Annotated[
    str | None,
    typer.Option(
        "--jitter", metavar="KIND", help="none, proportional, additive, full, equal or decorrelated."
    ),
]
JitterRatioFlag = Annotated[
    float | None, typer.Option("--jitter-ratio", metavar="X", help="Of a proportional one, 0 to 1.")
]
JitterMsFlag = Annotated[
    str | None, typer.Option("--jitter-max", metavar="DURATION", help="Of an additive one.")
]
FailoverFlag = Annotated[
    int | None, typer.Option("--failover-after", metavar="N", help="Failures at a provider before the next.")
]
TimeoutFlag = Annotated[str | None, typer.Option("--timeout", metavar="DURATION", help="Of one attempt.")]
OnTimeoutFlag = Annotated[
    str | None, typer.Option("--on-timeout", metavar="WHAT", help="retry, failover or hold.")
]
MaxAgeFlag = Annotated[
    str | None, typer.Option("--max-age", metavar="DURATION", help="What has waited longer is a dead letter.")
]
BounceFlag = Annotated[
    str | None, typer.Option("--bounce-failover", metavar="WHEN", help="unless_recipient or always.")
]


def patch_from(
    *,
    max_attempts: int | None = None,
    backoff: str | None = None,
    base: str | None = None,
    factor: float | None = None,
    steps: str | None = None,
    cap: str | None = None,
    jitter: str | None = None,
    jitter_ratio: float | None = None,
    jitter_max: str | None = None,
    failover_after: int | None = None,
    timeout: str | None = None,
    on_timeout: str | None = None,
    max_age: str | None = None,
    bounce_failover: str | None = None,
) -> dict[str, Any]:
    """The fields that are given, by the names the settings have for them. Steps mean a fixed backoff."""
    fixed = "fixed" if steps is not None else None
    fields = {
        "max_attempts": max_attempts,
        "backoff": backoff or fixed,
        "base_ms": _ms(base, "--base"),
        "factor": factor,
        "steps_ms": None if steps is None else [duration_ms(step, "--steps") for step in steps.split(",")],
        "cap_ms": _ms(cap, "--cap"),
        "jitter": jitter,
        "jitter_ratio": jitter_ratio,
        "jitter_ms": _ms(jitter_max, "--jitter-max"),
        "failover_after": failover_after,
        "timeout_ms": _ms(timeout, "--timeout"),
        "on_timeout": on_timeout,
        "max_age_ms": _ms(max_age, "--max-age"),
        "bounce_failover": bounce_failover,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _ms(text: str | None, flag: str) -> int | None:
    return None if text is None else duration_ms(text, flag)
