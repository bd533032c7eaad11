"""The one line that tells what has happened to a notification, and the view of its policy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from homing.core.lifecycle.views import notification
from homing.core.notifications import History, Reason, Status
from homing.core.retry.policy import Backoff, RetryPolicy
from homing.engine.operations.explain import describe_progress, policy_view
from support.core_builders import make_new, make_row


def double(attempt: int) -> int:
    return attempt * 2


def test_a_delay_function_is_shown_by_its_name() -> None:
    policy = RetryPolicy(backoff=Backoff.CALLABLE, call=double)
    assert policy_view(policy).call == "double"
    nameless = partial(double, 1)
    assert policy_view(replace(policy, call=nameless)).call == repr(nameless)


def test_a_policy_without_a_delay_function_shows_none() -> None:
    shown = policy_view(RetryPolicy(base_ms=7))
    assert (shown.call, shown.base_ms) == (UNSET, 7)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"status": Status.SENT, "attempt_count": 2}, "sent by mail at attempt 2"),
        (
            {"status": Status.FAILED, "reason": Reason.PROVIDER_UNAVAILABLE, "last_error": "503"},
            "no provider accepted it within its maximum age, after 0 attempts: 503",
        ),
        (
            {"status": Status.FAILED, "reason": Reason.BAD_CONTENT, "attempt_count": 1, "last_error": "400"},
            "failed after 1 attempt (BAD_CONTENT): 400",
        ),
        ({"status": Status.FAILED}, "failed after 0 attempts (no reason recorded)"),
        ({"status": Status.RETRYING, "attempt_count": 3, "last_error": "x"}, "3 attempts so far: x"),
        ({"status": Status.SKIPPED, "reason": Reason.UNSUBSCRIBED}, "skipped (UNSUBSCRIBED)"),
        ({"status": Status.PENDING}, "pending"),
    ],
)
def test_the_progress_of_a_notification_in_one_line(fields: dict[str, Any], text: str) -> None:
    waiting = notification(make_row(), make_new().message)
    shown = replace(waiting, **{"provider": "mail", "reason": None, "last_error": None, **fields})
    assert describe_progress(History(notification=shown, attempts=(), causes=())) == text
