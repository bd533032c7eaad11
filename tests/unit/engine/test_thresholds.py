"""Thresholds of the health figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from homing.core.notifications import Mode
from homing.core.statistics import ThresholdCheck, Unacknowledged
from homing.engine.operations.health import HealthFigures, check_thresholds
from homing.engine.settings import AlertThresholds

NOW = datetime(2026, 11, 18, tzinfo=UTC)


def check(name: str, limits: AlertThresholds, **figures: Any) -> ThresholdCheck:
    """Returns one check of these figures. All others are those of an engine in which nothing happens."""
    quiet: dict[str, Any] = {
        "now": NOW,
        "retry_backlog": 0,
        "oldest_retry": None,
        "sent": 0,
        "failed": 0,
        "failed_this_hour": 0,
        "unacknowledged": Unacknowledged(count=0, oldest_at=None),
        "goals": {},
    }
    [found] = [
        one for one in check_thresholds(HealthFigures(**{**quiet, **figures}), limits) if one.name == name
    ]
    return found


@pytest.mark.parametrize(
    ("this_hour", "hour_before", "exceeded"), [(10, 0, False), (11, 0, True), (14, 4, False), (15, 4, True)]
)
def test_dead_letters_grow_if_this_hour_has_more_of_them_than_the_hour_before(
    this_hour: int, hour_before: int, exceeded: bool
) -> None:
    growth = check(
        "DeadLettersGrowing",
        AlertThresholds(dead_letters_growing=10),
        failed=this_hour + hour_before,
        failed_this_hour=this_hour,
    )
    assert (growth.value, growth.exceeded) == (this_hour - hour_before, exceeded)


@pytest.mark.parametrize(("age_ms", "exceeded"), [(60_000, False), (60_001, True)])
def test_a_retry_is_too_old_once_it_has_waited_for_longer_than_the_limit(age_ms: int, exceeded: bool) -> None:
    since = NOW - timedelta(milliseconds=age_ms)
    found = check("OldestRetry", AlertThresholds(oldest_retry_ms=60_000), oldest_retry=since)
    assert (found.value, found.exceeded) == (age_ms, exceeded)


@pytest.mark.parametrize(("age_ms", "exceeded"), [(60_000, False), (60_001, True)])
def test_a_dead_letter_is_too_old_once_it_has_waited_for_longer_than_the_limit(
    age_ms: int, exceeded: bool
) -> None:
    oldest = Unacknowledged(count=1, oldest_at=NOW - timedelta(milliseconds=age_ms))
    found = check("OldestDeadLetter", AlertThresholds(oldest_dead_letter_ms=60_000), unacknowledged=oldest)
    assert (found.value, found.exceeded) == (age_ms, exceeded)


@pytest.mark.parametrize(("met", "exceeded"), [(90, False), (89, True)])
def test_the_share_within_a_goal_must_be_at_least_the_limit(met: int, exceeded: bool) -> None:
    """All other figures must be at most their limit."""
    limits = AlertThresholds(within_goal=90.0, within_goal_of=100)
    goals = {Mode.STANDARD: (met, 100 - met)}
    found = check("LatencyGoal", limits, goals=goals)
    assert (found.value, found.at_least, found.exceeded) == (float(met), True, exceeded)
    assert not check("RetryBacklog", limits, goals=goals).at_least
