"""Reads the figures that the alert thresholds limit, and compares them with the thresholds.

`homing health`, `GET /queue/health` and the alerts all use this comparison, so a threshold has one meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from homing.core.durations import format_duration
from homing.core.notifications import Mode, Status
from homing.core.ports.stores import Backend, RegisteredSink
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.statistics import Tally, ThresholdCheck, Unacknowledged, count_statuses
from homing.core.times import moment
from homing.engine.settings import AlertThresholds

_HOUR = timedelta(hours=1)

_HOUR_MS = 3_600_000


class HealthFigures(Struct, frozen=True, kw_only=True):
    """The figures of one tenant, or of all, that have a threshold."""

    now: datetime
    retry_backlog: int
    """Number of notifications that wait for a retry."""
    oldest_retry: datetime | None
    sent: int
    """Number of notifications sent in the current clock hour and the one before."""
    failed: int
    """Number of new dead letters in the current clock hour and the one before."""
    failed_this_hour: int
    """Number of new dead letters in the current clock hour."""
    unacknowledged: Unacknowledged
    goals: Mapping[Mode, tuple[int, int]]
    """Delivery mode → numbers of notifications that were sent within its latency goal, and later.

    They are those of the current clock hour and the one before. A mode in which nothing was sent is missing.
    """


async def read_figures(
    backend: Backend, tenant: str | None, tallies: Sequence[Tally] | None = None
) -> HealthFigures:
    """Returns the figures of a tenant, or of all tenants together if `tenant` is None.

    The caller may give the tallies if it has just read them.
    """
    if tallies is None:
        tallies = await backend.tallies(tenant)
    now = moment(await backend.now_ms())
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    hours = [
        one for one in await backend.roll_ups(tenant, since_ms=_HOUR_MS) if one.hour_at >= this_hour - _HOUR
    ]
    goals: dict[Mode, tuple[int, int]] = {}
    for one in await backend.goal_roll_ups(tenant, since_ms=_HOUR_MS):
        met, missed = goals.get(one.mode, (0, 0))
        goals[one.mode] = met + one.met, missed + one.missed
    return HealthFigures(
        now=now,
        retry_backlog=count_statuses(tallies, Status.RETRYING),
        oldest_retry=await backend.oldest_retry_at(tenant),
        sent=sum(one.sent for one in hours),
        failed=sum(one.failed for one in hours),
        failed_this_hour=sum(one.failed for one in hours if one.hour_at == this_hour),
        unacknowledged=await backend.unacknowledged(tenant),
        goals=goals,
    )


def check_thresholds(figures: HealthFigures, limits: AlertThresholds) -> list[ThresholdCheck]:
    """Compares the figures with the thresholds. Each mode in which something was sent has a check."""
    return [
        _check_backlog(figures, limits),
        _check_failure_rate(figures, limits),
        _check_oldest_retry(figures, limits),
        _check_growth(figures, limits),
        _check_unacknowledged(figures, limits),
        _check_oldest_dead_letter(figures, limits),
        *(_check_goal(mode, *figures.goals[mode], limits) for mode in Mode if mode in figures.goals),
    ]


def _check_backlog(figures: HealthFigures, limits: AlertThresholds) -> ThresholdCheck:
    backlog = figures.retry_backlog
    return ThresholdCheck(
        name="RetryBacklog",
        metric="pending_retry_count",
        value=backlog,
        limit=limits.retry_backlog,
        exceeded=backlog > limits.retry_backlog,
        message=f"{backlog:,} waiting for a retry; see `homing waiting`",
    )


def _check_failure_rate(figures: HealthFigures, limits: AlertThresholds) -> ThresholdCheck:
    ended = figures.sent + figures.failed
    rate = round(100.0 * figures.failed / ended, 1) if ended else 0.0
    return ThresholdCheck(
        name="FailureRate",
        metric="recent_failure_rate",
        value=rate,
        limit=limits.failure_rate,
        exceeded=ended >= limits.failure_rate_of and rate > limits.failure_rate,
        message=f"{rate:.1f} % of {ended:,} failed in this hour and the one before; see `homing dead groups`",
        only_when=f"once {limits.failure_rate_of} have ended",
    )


def _check_oldest_retry(figures: HealthFigures, limits: AlertThresholds) -> ThresholdCheck:
    age_ms = _age_ms(figures.oldest_retry, figures.now)
    return ThresholdCheck(
        name="OldestRetry",
        metric="oldest_retry",
        value=age_ms,
        limit=limits.oldest_retry_ms,
        exceeded=age_ms > limits.oldest_retry_ms,
        message=f"a retry has waited for {format_duration(age_ms)}; check the workers with `homing doctor`",
    )


def _check_growth(figures: HealthFigures, limits: AlertThresholds) -> ThresholdCheck:
    this_hour, hour_before = figures.failed_this_hour, figures.failed - figures.failed_this_hour
    return ThresholdCheck(
        name="DeadLettersGrowing",
        metric="new_dead_letters_against_hour_before",
        value=this_hour - hour_before,
        limit=limits.dead_letters_growing,
        exceeded=this_hour - hour_before > limits.dead_letters_growing,
        message=f"{this_hour:,} dead letters this hour, {hour_before:,} the hour before: `homing dead list`",
    )


def _check_unacknowledged(figures: HealthFigures, limits: AlertThresholds) -> ThresholdCheck:
    number = figures.unacknowledged.count
    return ThresholdCheck(
        name="UnacknowledgedDeadLetters",
        metric="unacknowledged_dead_letters",
        value=number,
        limit=limits.unacknowledged,
        exceeded=number > limits.unacknowledged,
        message=f"{number:,} dead letters are not acknowledged; see `homing dead groups`",
    )


def _check_oldest_dead_letter(figures: HealthFigures, limits: AlertThresholds) -> ThresholdCheck:
    age_ms = _age_ms(figures.unacknowledged.oldest_at, figures.now)
    return ThresholdCheck(
        name="OldestDeadLetter",
        metric="oldest_dead_letter_ms",
        value=age_ms,
        limit=limits.oldest_dead_letter_ms,
        exceeded=age_ms > limits.oldest_dead_letter_ms,
        message=f"a dead letter of {format_duration(age_ms)} ago is not acknowledged; see `homing dead list`",
    )


def _check_goal(mode: Mode, met: int, missed: int, limits: AlertThresholds) -> ThresholdCheck:
    number, goal = met + missed, format_duration(MODE_INFO[mode].latency_goal_ms)
    share = 100.0 * met / number
    return ThresholdCheck(
        name="LatencyGoal",
        metric=f"within_goal_{mode.value}",
        value=round(share, 1),
        limit=limits.within_goal,
        exceeded=number >= limits.within_goal_of and share < limits.within_goal,
        message=(
            f"{missed:,} of {number:,} {mode.value} notifications were sent later than {goal} after "
            "acceptance, in this hour and the one before"
        ),
        at_least=True,
        only_when=f"once {limits.within_goal_of} were sent",
    )


def check_sinks(
    sinks: Iterable[RegisteredSink], now_ms: int, limits: AlertThresholds
) -> dict[str, list[ThresholdCheck]]:
    """Compares the backlog of each sink, in number and age, with the thresholds. Returns checks by sink."""
    return {sink.name: [_check_waiting(sink, limits), _check_lag(sink, now_ms, limits)] for sink in sinks}


def _check_waiting(sink: RegisteredSink, limits: AlertThresholds) -> ThresholdCheck:
    number = sink.waiting + sink.parked
    return ThresholdCheck(
        name="SinkBacklog",
        metric="sink_backlog",
        value=number,
        limit=limits.sink_backlog,
        exceeded=number > limits.sink_backlog,
        message=(
            f"{number:,} events of the sink {sink.name} are not published and fill the store; check the sink"
            " with `homing doctor`"
        ),
    )


def _check_lag(sink: RegisteredSink, now_ms: int, limits: AlertThresholds) -> ThresholdCheck:
    age_ms = 0 if sink.oldest_at is None else max(0, now_ms - sink.oldest_at)
    return ThresholdCheck(
        name="SinkLag",
        metric="sink_lag_ms",
        value=age_ms,
        limit=limits.sink_lag_ms,
        exceeded=age_ms > limits.sink_lag_ms,
        message=(
            f"an event has waited for the sink {sink.name} for {format_duration(age_ms)}; check the sink with"
            " `homing doctor`"
        ),
    )


def _age_ms(at: datetime | None, now: datetime) -> int:
    return 0 if at is None else (now - at) // timedelta(milliseconds=1)
