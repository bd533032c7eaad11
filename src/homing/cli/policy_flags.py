"""Flags for the fields of a policy, shared by `policy set` and `policy simulate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from homing.cli.words import duration_ms

MaxAttemptsFlag = Annotated[
    int | None,
    typer.Option("--max-attempts", metavar="N", help="Maximum number of attempts, including the first."),
]
BackoffFlag = Annotated[
    str | None, typer.Option("--backoff", metavar="KIND", help="exponential, linear, fibonacci or fixed.")
]
BaseFlag = Annotated[
    str | None, typer.Option("--base", metavar="DURATION", help="The first delay, e.g. 10m.")
]
FactorFlag = Annotated[
    float | None, typer.Option("--factor", metavar="X", help="Growth per attempt, for exponential backoff.")
]
StepsFlag = Annotated[
    str | None, typer.Option("--steps", metavar="DURATIONS", help="Delays for fixed backoff, e.g. 1m,5m,1h.")
]
CapFlag = Annotated[
    str | None, typer.Option("--cap", metavar="DURATION", help="The longest delay; 0 means no limit.")
]
JitterFlag = Annotated[
    str | None,
    typer.Option(
        "--jitter", metavar="KIND", help="none, proportional, additive, full, equal or decorrelated."
    ),
]
JitterRatioFlag = Annotated[
    float | None, typer.Option("--jitter-ratio", metavar="X", help="Share for proportional jitter, 0 to 1.")
]
JitterMsFlag = Annotated[
    str | None, typer.Option("--jitter-max", metavar="DURATION", help="Maximum for additive jitter.")
]
FailoverFlag = Annotated[
    int | None,
    typer.Option(
        "--failover-after", metavar="N", help="Failures at one provider before failover to the next."
    ),
]
TimeoutFlag = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="Timeout of one attempt.")
]
OnTimeoutFlag = Annotated[
    str | None,
    typer.Option("--on-timeout", metavar="WHAT", help="Action after a timeout: retry, failover or hold."),
]
MaxAgeFlag = Annotated[
    str | None,
    typer.Option(
        "--max-age", metavar="DURATION", help="Age after which a notification becomes a dead letter."
    ),
]
BounceFlag = Annotated[
    str | None,
    typer.Option(
        "--bounce-failover", metavar="WHEN", help="Failover after a bounce: unless_recipient or always."
    ),
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
    """Returns the given fields under their names in the settings. `steps` implies fixed backoff."""
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
