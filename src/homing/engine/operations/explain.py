"""Describes why a notification has its status, and converts explanations and policies to their views."""

from __future__ import annotations

from msgspec import Struct

from homing.core.lifecycle.states import SUCCESSFUL
from homing.core.notifications import History, Reason, Status
from homing.core.request_decoding import to_camel_case
from homing.core.retry.policy import Resolution, RetryPolicy
from homing.core.retry.policy_views import ExplanationView, PolicyView
from homing.core.routing.splits import SplitOverrideView


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a notification has its status, and what happens next."""

    history: History
    resolution: Resolution
    verdict: str
    next_step: str
    split: SplitOverrideView | None = None
    """Override of the split that was in force when the notification was accepted. None if there was none, or
    if its provider is pinned."""


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
        split=found.split,
    )


def describe_progress(history: History) -> str:
    """Returns one line that describes what has happened to a notification so far."""
    n = history.notification
    error = f": {n.last_error}" if n.last_error else ""
    tries = f"{n.attempt_count} attempt{'' if n.attempt_count == 1 else 's'}"
    match n.status:
        case status if status in SUCCESSFUL:
            return f"{n.status.value} by {n.provider} at attempt {n.attempt_count}"
        case Status.FAILED if n.reason is Reason.PROVIDER_UNAVAILABLE:
            return f"no provider accepted it within its maximum age, after {tries}{error}"
        case Status.FAILED:
            return f"failed after {tries} ({n.reason or 'no reason recorded'}){error}"
        case Status.RETRYING:
            return f"{tries} so far{error}"
        case _:
            return f"{n.status.value}{f' ({n.reason.value})' if n.reason else ''}"
