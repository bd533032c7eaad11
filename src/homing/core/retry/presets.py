"""The five presets of retry rules: `priority`, `simple`, `channel`, `fixed` and `broker`.

`homing policy table` shows their exact delays.
"""

from __future__ import annotations

from homing.core.errors import ConfigError
from homing.core.retry.policy import (
    Backoff,
    BounceFailover,
    FailoverWait,
    Jitter,
    OnTimeout,
    PolicyPatch,
    Preset,
    Rule,
)

_S = 1_000

_MIN = 60 * _S

_H = 60 * _MIN


def _by_priority(name: str, retries: int, base_ms: int, cap_ms: int) -> Rule:
    return Rule(
        name=name,
        priority=name,
        policy=PolicyPatch(
            max_attempts=retries + 1,
            backoff=Backoff.EXPONENTIAL,
            base_ms=base_ms,
            factor=2.0,
            cap_ms=cap_ms,
            jitter=Jitter.PROPORTIONAL,
            jitter_ratio=0.3,
        ),
    )


def _minutes(name: str, type_: str, attempts: int, minutes: int) -> Rule:
    return Rule(
        name=name,
        type=type_,
        policy=PolicyPatch(
            max_attempts=attempts,
            backoff=Backoff.EXPONENTIAL,
            base_ms=minutes * _MIN,
            factor=2.0,
            cap_ms=0,
            jitter=Jitter.NONE,
        ),
    )


def _by_channel(
    origin: str, channel: str, attempts: int, base_s: int, cap_s: int, jitter_ms: int, timeout_s: int
) -> Rule:
    return Rule(
        name=f"{channel}/{origin}",
        origin=origin,
        channel=channel,
        policy=PolicyPatch(
            max_attempts=attempts,
            backoff=Backoff.EXPONENTIAL,
            base_ms=base_s * _S,
            factor=2.0,
            cap_ms=cap_s * _S,
            jitter=Jitter.ADDITIVE,
            jitter_ms=jitter_ms,
            failover_after=2,
            failover_wait=FailoverWait.BACKOFF,
            timeout_ms=timeout_s * _S,
            on_timeout=OnTimeout.FAILOVER,
            bounce_failover=BounceFailover.ALWAYS,
        ),
    )


PRIORITY = Preset(
    name="priority",
    rules=(
        _by_priority("critical", 10, 10 * _S, 5 * _MIN),
        _by_priority("high", 8, 30 * _S, 15 * _MIN),
        _by_priority("medium", 5, 2 * _MIN, _H),
        _by_priority("low", 3, 5 * _MIN, 2 * _H),
    ),
    fallback="medium",
)


SIMPLE = Preset(
    name="simple",
    rules=(
        _minutes("default", "*", 3, 5),
        _minutes("incident", "incident", 5, 10),
        _minutes("checkIn", "checkIn", 3, 5),
        _minutes("photo", "photo", 2, 15),
    ),
    fallback="default",
    default_channel="both",
)


CHANNEL = Preset(
    name="channel",
    rules=(
        _by_channel("auth", "sms", 4, 3, 120, 1000, 20),
        _by_channel("*", "email", 6, 5, 600, 1000, 30),
        _by_channel("orders", "push", 3, 2, 300, 500, 15),
    ),
    fallback="email/*",
    reject_unmatched_locale=True,
    requires_all_locales=True,
)


FIXED = Preset(
    name="fixed",
    rules=(
        Rule(
            name="default",
            policy=PolicyPatch(
                max_attempts=6,
                backoff=Backoff.FIXED,
                steps_ms=(_MIN, 5 * _MIN, 15 * _MIN, _H, 6 * _H),
                jitter=Jitter.NONE,
            ),
        ),
    ),
    fallback="default",
    sent_retention_ms=24 * _H,
)


BROKER = Preset(
    name="broker",
    rules=(
        Rule(
            name="default",
            policy=PolicyPatch(
                max_attempts=4,
                backoff=Backoff.EXPONENTIAL,
                base_ms=2 * _S,
                factor=2.0,
                cap_ms=60 * _S,
                jitter=Jitter.ADDITIVE,
                jitter_ms=1000,
            ),
        ),
    ),
    fallback="default",
)


PRESETS: dict[str, Preset] = {p.name: p for p in (PRIORITY, SIMPLE, CHANNEL, FIXED, BROKER)}


def find_preset(name: str) -> Preset:
    """Returns the preset of this name. Raises `ConfigError` if there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError("preset", f"is {name!r}; it must be one of {', '.join(PRESETS)}") from None
