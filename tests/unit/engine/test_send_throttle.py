"""Quiet hours of claims, before their attempt."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from homing.core.notifications import Reason
from homing.core.recipients.quiet_hours import QuietHours, Window
from homing.core.retry.decide import NO_OBJECTION
from homing.core.routing.rate_limits import RateLimitRules
from homing.engine.delivery.guard import SendThrottle
from homing.testing.manual_clock import ManualClock
from support.core_builders import HOUR, NOW, make_claim


def test_quiet_hours_postpone_what_is_due_but_not_what_is_past_its_deadline() -> None:
    """A row past its deadline is not sent. It ends, or waits on until the time at which it is due."""
    shared: Any = None
    hour = NOW % (24 * HOUR) // HOUR * HOUR
    throttle = SendThrottle(
        shared,
        ManualClock(),
        quiet_hours=QuietHours(window=Window(hour, (hour + HOUR) % (24 * HOUR))),
        paces=RateLimitRules(),
        time_zone=UTC,
    )
    assert throttle.quiet(make_claim(), NO_OBJECTION, NOW).postpone_reason is Reason.QUIET_HOURS
    assert throttle.quiet(make_claim(overdue=True), NO_OBJECTION, NOW) is NO_OBJECTION
