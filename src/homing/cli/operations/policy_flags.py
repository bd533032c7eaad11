"""The flags of `homing policy` that name a kind of notification, and those that set fields of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from homing.cli.common.flag_groups import FlagGroup
from homing.cli.common.options import Origin, PriorityName, TypeName
from homing.cli.common.units import parse_duration_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchFlags(FlagGroup):
    """The flags that name a kind of notification. A rule matches by these properties."""

    type: TypeName = None
    origin: Origin = None
    channel: Annotated[
        str | None,
        typer.Option("--channel", metavar="NAME", help="sms, email, push, webhook, chat or queue."),
    ] = None
    priority: PriorityName = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFlags(FlagGroup):
    """The flags that set fields of a retry policy."""

    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", metavar="N", help="Maximum number of attempts, including the first."),
    ] = None
    backoff: Annotated[
        str | None, typer.Option("--backoff", metavar="KIND", help="exponential, linear, fibonacci or fixed.")
    ] = None
    base: Annotated[
        str | None, typer.Option("--base", metavar="DURATION", help="The first delay, e.g. 10m.")
    ] = None
    factor: Annotated[
        float | None,
        typer.Option("--factor", metavar="X", help="Growth per attempt, for exponential backoff."),
    ] = None
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="DURATIONS", help="Delays for fixed backoff, e.g. 1m,5m,1h."),
    ] = None
    cap: Annotated[
        str | None, typer.Option("--cap", metavar="DURATION", help="The longest delay; 0 means no limit.")
    ] = None
    jitter: Annotated[
        str | None,
        typer.Option(
            "--jitter", metavar="KIND", help="none, proportional, additive, full, equal or decorrelated."
        ),
    ] = None
    jitter_ratio: Annotated[
        float | None,
        typer.Option("--jitter-ratio", metavar="X", help="Share for proportional jitter, 0 to 1."),
    ] = None
    jitter_max: Annotated[
        str | None, typer.Option("--jitter-max", metavar="DURATION", help="Maximum for additive jitter.")
    ] = None
    failover_after: Annotated[
        int | None,
        typer.Option(
            "--failover-after", metavar="N", help="Failures at one provider before failover to the next."
        ),
    ] = None
    failover_wait: Annotated[
        str | None,
        typer.Option("--failover-wait", metavar="WHAT", help="What a failover waits for: none or backoff."),
    ] = None
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Timeout of one attempt.")
    ] = None
    on_timeout: Annotated[
        str | None,
        typer.Option("--on-timeout", metavar="WHAT", help="Action after a timeout: retry, failover or hold."),
    ] = None
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age", metavar="DURATION", help="Age after which a notification becomes a dead letter."
        ),
    ] = None
    bounce_failover: Annotated[
        str | None,
        typer.Option(
            "--bounce-failover", metavar="WHEN", help="Failover after a bounce: unless_recipient or always."
        ),
    ] = None

    def build(self) -> dict[str, Any]:
        """Returns the given fields under their names in the settings. `steps` implies fixed backoff."""
        steps = None if self.steps is None else self.steps.split(",")
        fields = {
            "max_attempts": self.max_attempts,
            "backoff": self.backoff or (None if steps is None else "fixed"),
            "base_ms": _optional_ms(self.base, "--base"),
            "factor": self.factor,
            "steps_ms": None if steps is None else [parse_duration_ms(step, "--steps") for step in steps],
            "cap_ms": _optional_ms(self.cap, "--cap"),
            "jitter": self.jitter,
            "jitter_ratio": self.jitter_ratio,
            "jitter_ms": _optional_ms(self.jitter_max, "--jitter-max"),
            "failover_after": self.failover_after,
            "failover_wait": self.failover_wait,
            "timeout_ms": _optional_ms(self.timeout, "--timeout"),
            "on_timeout": self.on_timeout,
            "max_age_ms": _optional_ms(self.max_age, "--max-age"),
            "bounce_failover": self.bounce_failover,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _optional_ms(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_duration_ms(text, flag)
