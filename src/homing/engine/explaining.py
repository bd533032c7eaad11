"""Why a notification is where it is; and that, and policies, as they go over the wire (REST and `--json`)."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from homing.core.model import Attempt, Cause, History, Notification, Reason, Status
from homing.core.policy import Backoff, BounceFailover, Jitter, OnTimeout, Resolution, RetryPolicy
from homing.core.reading import camel


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a notification is where it is, and what comes next."""

    history: History
    resolution: Resolution
    verdict: str
    next_step: str


class PolicyView(Struct, frozen=True, kw_only=True, rename="camel"):
    """All fields of a retry policy. Durations are in milliseconds."""

    max_attempts: int
    """All attempts at all providers, the first included."""
    backoff: Backoff
    base_ms: int
    factor: float
    steps_ms: tuple[int, ...]
    """For `fixed`: the delay after each attempt; the last one repeats."""
    cap_ms: int
    """0: none."""
    jitter: Jitter
    jitter_ratio: float
    jitter_ms: int
    failover_after: int
    timeout_ms: int
    on_timeout: OnTimeout
    max_age_ms: int
    bounce_failover: BounceFailover
    call: str | UnsetType = UNSET
    """For `callable`: the name of the function."""


class ExplanationView(Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened to a notification, by which policy, and what comes next."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]
    """What changed it besides attempts: commands, receipts, the guard."""
    policy: PolicyView
    rule: str | None
    """The rule that won, if one of the user's own matched."""
    preset_rule: str
    sources: dict[str, str]
    """Field of the policy → where it came from."""
    passed_over: tuple[str, ...]
    """Rules that matched too but were less specific."""
    verdict: str
    next_step: str


def policy_view(policy: RetryPolicy) -> PolicyView:
    """A policy of its own Python function is shown by that function's name."""
    values = {name: getattr(policy, name) for name in policy.__struct_fields__ if name != "call"}
    if policy.call is None:
        return PolicyView(**values)
    return PolicyView(**values, call=getattr(policy.call, "__qualname__", repr(policy.call)))


def explanation_view(found: Explanation) -> ExplanationView:
    """The whole explanation in one flat object."""
    resolution = found.resolution
    return ExplanationView(
        notification=found.history.notification,
        attempts=found.history.attempts,
        causes=found.history.causes,
        policy=policy_view(resolution.policy),
        rule=resolution.rule,
        preset_rule=resolution.preset_rule,
        sources={camel(name): source for name, source in resolution.sources.items()},
        passed_over=resolution.passed_over,
        verdict=found.verdict,
        next_step=found.next_step,
    )


def verdict(history: History) -> str:
    """What became of it so far, in one line."""
    n = history.notification
    error = f": {n.last_error}" if n.last_error else ""
    tries = f"{n.attempt_count} attempt{'' if n.attempt_count == 1 else 's'}"
    match n.status:
        case Status.SENT | Status.DELIVERED:
            return f"{n.status.value} by {n.provider} at attempt {n.attempt_count}"
        case Status.FAILED if n.reason is Reason.PROVIDER_UNAVAILABLE:
            return f"no provider took it within its maximum age, after {tries}{error}"
        case Status.FAILED:
            return f"failed after {tries} ({n.reason or 'no reason kept'}){error}"
        case Status.RETRYING:
            return f"{tries} so far{error}"
        case _:
            return f"{n.status.value}{f' ({n.reason.value})' if n.reason else ''}"
