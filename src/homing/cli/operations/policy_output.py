"""Formats policies and rules for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from homing.cli.common.screen import Screen, styled
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.retry.policy import Resolution, RetryPolicy


_JITTER_FIELDS = {"proportional": ("jitter_ratio",), "additive": ("jitter_ms",)}


def show_policy_fields(screen: Screen, resolution: Resolution) -> None:
    """Prints each relevant field with its value and source, and the resulting delays."""
    policy = resolution.policy
    screen.table(
        ("FIELD", "VALUE", "FROM"),
        [
            (
                name,
                format_field(name, getattr(policy, name)),
                styled(resolution.sources[name], "bright_black"),
            )
            for name in relevant_fields(policy)
        ],
    )
    screen.line("waits    ", format_waits(policy))
    if resolution.passed_over:
        screen.line("less specific rules, not used:", ", ".join(resolution.passed_over))


def relevant_fields(policy: RetryPolicy) -> list[str]:
    """Returns the names of the fields that have an effect, in order."""
    from homing.core.retry.policy import BACKOFF_FIELDS

    hidden = frozenset[str]().union(*BACKOFF_FIELDS.values()) - BACKOFF_FIELDS[policy.backoff]
    hidden |= {"jitter_ratio", "jitter_ms"} - set(_JITTER_FIELDS.get(policy.jitter.value, ()))
    return [name for name in policy.__struct_fields__ if name not in hidden]


def format_field(name: str, value: Any) -> str:
    """Formats the value of one field."""
    if name == "cap_ms" and not value:
        return "none"
    if name == "steps_ms":
        return ", ".join(format_duration(step) for step in value)
    if name == "jitter_ratio":
        return f"0 to {100 * value:g} %"
    if name == "call":
        return getattr(value, "__qualname__", repr(value))
    if name.endswith("_ms"):
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_waits(policy: RetryPolicy) -> str:
    """Returns the delays between attempts in one line. Shows at most twelve."""
    from homing.core.retry.backoff import bounds_ms

    steps = []
    last = 0
    for attempt in range(1, min(policy.max_attempts, 13)):
        low, high = bounds_ms(policy, attempt, last)
        last = high
        steps.append(
            format_duration(low) if low == high else f"{format_duration(low)}–{format_duration(high)}"
        )
    if policy.max_attempts > 13:
        steps.append("…")
    return (" → ".join(steps) if steps else "none (one attempt)") + ", then a dead letter"


def format_rule(rule: Mapping[str, Any] | None) -> str:
    """Formats a stored rule in one line: its match, then its fields. None gives an empty string."""
    if rule is None:
        return ""
    keys = [f"{name}={value}" for name, value in rule.items() if name not in ("name", "policy")]
    fields = [f"{name}={format_field(name, value)}" for name, value in rule.get("policy", {}).items()]
    return f"{' '.join(keys) or 'everything'}: {' '.join(fields) or 'nothing set'}"
