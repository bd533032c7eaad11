"""Describes why a notification has its status, and defines the JSON views of explanations and policies."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from homing.core.notifications import Attempt, Cause, History, Notification, Reason, Status
from homing.core.request_decoding import to_camel_case
from homing.core.retry.policy import Backoff, BounceFailover, Jitter, OnTimeout, Resolution, RetryPolicy


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a notification has its status, and what happens next."""

    history: History
    resolution: Resolution
    verdict: str
    next_step: str


class PolicyView(Struct, frozen=True, kw_only=True, rename="camel"):
    """All fields of a retry policy. Durations are in milliseconds."""

    max_attempts: int
    """Maximum number of attempts at all providers together, including the first."""
    backoff: Backoff
    base_ms: int
    factor: float
    steps_ms: tuple[int, ...]
    """Delay after each attempt, for the `fixed` backoff. The last one repeats."""
    cap_ms: int
    """Maximum delay before jitter. 0 means no limit other than seven days."""
    jitter: Jitter
    jitter_ratio: float
    jitter_ms: int
    failover_after: int
    timeout_ms: int
    on_timeout: OnTimeout
    max_age_ms: int
    bounce_failover: BounceFailover
    call: str | UnsetType = UNSET
    """Name of the delay function, for the `callable` backoff."""


class ExplanationView(Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened to a notification, under which policy, and what happens next."""

    notification: Notification
    attempts: tuple[Attempt, ...]
    causes: tuple[Cause, ...]
    """Changes other than attempts: commands, receipts and pre-send checks."""
    policy: PolicyView
    rule: str | None
    """Name of the configured rule that applies. None if only the preset applies."""
    preset_rule: str
    sources: dict[str, str]
    """Field of the policy → rule or preset that set it."""
    passed_over: tuple[str, ...]
    """Names of rules that also matched but are less specific."""
    verdict: str
    next_step: str


def policy_view(policy: RetryPolicy) -> PolicyView:
    """Returns the view of a policy. A delay function is shown by its name."""
    values = {name: getattr(policy, name) for name in policy.__struct_fields__ if name != "call"}
    if policy.call is None:
        return PolicyView(**values)
    return PolicyView(**values, call=getattr(policy.call, "__qualname__", repr(policy.call)))


def explanation_view(found: Explanation) -> ExplanationView:
    """Returns an explanation as one flat object."""
    resolution = found.resolution
    return ExplanationView(
        notification=found.history.notification,
        attempts=found.history.attempts,
        causes=found.history.causes,
        policy=policy_view(resolution.policy),
        rule=resolution.rule,
        preset_rule=resolution.preset_rule,
        sources={to_camel_case(name): source for name, source in resolution.sources.items()},
        passed_over=resolution.passed_over,
        verdict=found.verdict,
        next_step=found.next_step,
    )


def describe_progress(history: History) -> str:
    """Returns one line that describes what has happened to a notification so far."""
    n = history.notification
    error = f": {n.last_error}" if n.last_error else ""
    tries = f"{n.attempt_count} attempt{'' if n.attempt_count == 1 else 's'}"
    match n.status:
        case Status.SENT | Status.DELIVERED:
            return f"{n.status.value} by {n.provider} at attempt {n.attempt_count}"
        case Status.FAILED if n.reason is Reason.PROVIDER_UNAVAILABLE:
            return f"no provider accepted it within its maximum age, after {tries}{error}"
        case Status.FAILED:
            return f"failed after {tries} ({n.reason or 'no reason recorded'}){error}"
        case Status.RETRYING:
            return f"{tries} so far{error}"
        case _:
            return f"{n.status.value}{f' ({n.reason.value})' if n.reason else ''}"
