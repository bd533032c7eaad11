"""`homing stats` and `homing health`: statistics, and thresholds for retries and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from homing.cli.common.disk_space import FULL_DISK_ADVICE, FULL_DISK_BYTES, free_disk_bytes
from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, command, open_engine
from homing.cli.common.screen import check_mark, print_json, styled
from homing.cli.common.units import format_local_time, format_relative_time
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.clock_steps import ClockStep
    from homing.core.statistics import HealthMetrics, RollUp
    from homing.engine.settings import AlertThresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCheck:
    """One threshold, the metric it limits, and the current state."""

    name: str
    metric: str
    value: float
    limit: float
    passed: bool
    """True if the threshold is exceeded. Part of the JSON output."""
    message: str
    at_least: bool = False
    """True if `limit` is the smallest value that is allowed, not the largest."""
    only_when: str = ""
    """Condition under which the threshold applies. Empty if it always applies."""


@command(app, "stats")
async def stats(options: Options, json: Json = False) -> int:
    """Show delivery statistics by status, attempts and hour."""
    async with open_engine(options) as homing:
        counts = await homing.queue_counts()
        retries = await homing.retry_statistics()
        success = await homing.success_by_attempt()
        sums = await homing.roll_ups(timedelta(hours=24))
    if json:
        print_json(
            {
                "queueCounts": counts,
                "retryStatistics": retries,
                "successByAttempt": success,
                "hourly": sums,
            }
        )
        return ExitCode.OK
    screen = options.screen
    screen.line("Notifications by status", style="bold")
    screen.table(
        ("STATUS", "COUNT>"),
        [(styled(name), f"{count:,}") for name, count in counts.items() if count] or [("none", 0)],
    )
    screen.heading("By number of attempts made")
    screen.table(
        ("ATTEMPTS>", "COUNT>", "WAITING>", "FAILED>"),
        [(s.attempts, s.count, s.pending_count, s.failed_count) for s in retries],
    )
    screen.heading("Success by attempt (including purged notifications)")
    screen.table(
        ("ATTEMPTS>", "ENDED>", "SENT>", "FAILED>", "SUCCESS>"),
        [(s.attempts, s.total, s.succeeded, s.failed, f"{s.success_rate:.2f} %") for s in success],
    )
    screen.heading("The last 24 hours, by hour")
    screen.table(
        (
            "HOUR",
            "CHANNEL",
            "PROVIDER",
            "ACCEPTED>",
            "ATTEMPTS>",
            "SENT>",
            "DELIVERED>",
            "RETRIED>",
            "FAILED>",
        ),
        [
            (
                format_local_time(s.hour_at)[:-3],
                s.channel.value,
                s.provider,
                s.accepted,
                s.attempts,
                s.sent,
                s.delivered,
                s.retried,
                s.failed,
            )
            for s in sums
        ],
    )
    return ExitCode.OK


@command(app, "health")
async def health(options: Options, json: Json = False) -> int:
    """Show retry metrics and thresholds. Exit code 1 if a threshold is exceeded."""
    import msgspec

    settings = options.settings()
    async with open_engine(options, settings=settings) as homing:
        await homing.shared.lead("health", homing.settings.name, 0)  # raises if nothing can be written
        metrics = await homing.health_metrics()
        sums = await homing.roll_ups(timedelta(hours=2))
        found = check_thresholds(metrics, sums, homing.settings.upkeep.thresholds, datetime.now(UTC))
        found.append(_check_workers(await homing.unattended_ms()))
        found.append(_check_clock(await homing.suspected_clock_step()))
    if (free := free_disk_bytes(settings.store)) is not None:
        found.append(_check_disk(free))
    passed = [check for check in found if check.passed]
    code = ExitCode.NO if passed else ExitCode.OK
    if json:
        thresholds = [_wire(check) for check in found]
        print_json({**msgspec.to_builtins(metrics), "healthy": not passed, "thresholds": thresholds})
        return code
    by_metric = {check.metric: check for check in found}
    screen = options.screen
    rows: list[tuple[Any, ...]] = [
        (name, _value(getattr(metrics, name)), *_mark(by_metric.get(name)))
        for name in metrics.__struct_fields__
    ]
    rows += [
        (check.metric, _limit(check.metric, check.value), *_mark(check))
        for check in found
        if check.metric not in metrics.__struct_fields__
    ]
    screen.table(("METRIC", "VALUE>", "", "THRESHOLD"), rows)
    screen.line("")
    for check in passed:
        screen.check(False, check.message)
    if not passed:
        screen.check(True, "healthy: no threshold is exceeded")
    return code


def check_thresholds(
    metrics: HealthMetrics, sums: Sequence[RollUp], limits: AlertThresholds, now: datetime
) -> list[ThresholdCheck]:
    """Compares the metrics with the thresholds.

    The dead letters of this hour are compared with those of the hour before.
    """
    this_hour, hour_before = _failed(sums, now, 0), _failed(sums, now, 1)
    ended = metrics.sent_count + metrics.failed_count
    age_ms = 0.0 if metrics.oldest_retry is None else (now - metrics.oldest_retry).total_seconds() * 1000
    return [
        ThresholdCheck(
            name="RetryBacklog",
            metric="pending_retry_count",
            value=metrics.pending_retry_count,
            limit=limits.retry_backlog,
            passed=metrics.pending_retry_count > limits.retry_backlog,
            message=f"{metrics.pending_retry_count:,} waiting for a retry; see `homing waiting`",
        ),
        ThresholdCheck(
            name="FailureRate",
            metric="failure_rate",
            value=metrics.failure_rate,
            limit=limits.failure_rate,
            passed=ended >= limits.failure_rate_of and metrics.failure_rate > limits.failure_rate,
            message=f"{metrics.failure_rate:.1f} % failed permanently; see `homing dead groups`",
            only_when=f"once {limits.failure_rate_of} notifications have ended",
        ),
        ThresholdCheck(
            name="OldestRetry",
            metric="oldest_retry",
            value=round(age_ms),
            limit=limits.oldest_retry_ms,
            passed=age_ms > limits.oldest_retry_ms,
            message=(
                f"a retry has waited for {format_duration(age_ms)}; check the workers with `homing doctor`"
            ),
        ),
        ThresholdCheck(
            name="DeadLettersGrowing",
            metric="new_dead_letters_against_hour_before",
            value=this_hour - hour_before,
            limit=limits.dead_letters_growing,
            passed=this_hour - hour_before > limits.dead_letters_growing,
            message=f"{this_hour} dead letters this hour, {hour_before} the hour before: `homing dead list`",
        ),
    ]


def _check_workers(unattended_ms: int) -> ThresholdCheck:
    """Checks that no work is overdue while no worker is alive."""
    from homing.engine.operations.workers import OVERDUE_AFTER_MS, describe_unattended

    return ThresholdCheck(
        name="NoLiveWorker",
        metric="unattended_ms",
        value=unattended_ms,
        limit=OVERDUE_AFTER_MS,
        passed=unattended_ms > OVERDUE_AFTER_MS,
        message=describe_unattended(unattended_ms),
        only_when="without a live worker",
    )


def _check_disk(free_bytes: int) -> ThresholdCheck:
    """Checks that the disk of the store is not full."""
    return ThresholdCheck(
        name="DiskSpace",
        metric="free_disk_bytes",
        value=free_bytes,
        limit=FULL_DISK_BYTES,
        passed=free_bytes < FULL_DISK_BYTES,
        message=f"{_limit('free_disk_bytes', free_bytes)} free on the disk of the store; {FULL_DISK_ADVICE}",
        at_least=True,
    )


def _check_clock(step: ClockStep | None) -> ThresholdCheck:
    """Checks that the store's clock was not set recently."""
    from homing.core.clock_steps import MAX_BELIEVED_STEP_MS, describe_step

    return ThresholdCheck(
        name="StoreClockStepped",
        metric="clock_step_ms",
        value=0 if step is None else abs(step.correction_ms),
        limit=MAX_BELIEVED_STEP_MS,
        passed=step is not None,
        message="" if step is None else f"{describe_step(step)}; it is accepted after ten minutes",
    )


def _failed(sums: Sequence[RollUp], now: datetime, hours_ago: int) -> int:
    hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours_ago)
    return sum(s.failed for s in sums if s.hour_at == hour)


def _wire(check: ThresholdCheck) -> dict[str, Any]:
    """Returns the check as JSON data, with the metric's name in camelCase like the metrics themselves."""
    from homing.core.request_decoding import to_camel_case

    values = {to_camel_case(field.name): getattr(check, field.name) for field in fields(check)}
    return {**values, "metric": to_camel_case(check.metric)}


def _mark(check: ThresholdCheck | None) -> tuple[Any, Any]:
    if check is None:
        return "", ""
    limit = _limit(check.metric, check.limit)
    bound = "at least" if check.at_least else "at most"
    return check_mark(not check.passed), f"{bound} {limit} {check.only_when}".rstrip()


def _limit(metric: str, value: float) -> str:
    if metric == "free_disk_bytes":
        return f"{value / 1_048_576:,.0f} MB"
    durations = ("oldest_retry", "unattended_ms", "clock_step_ms")
    return format_duration(value) if metric in durations else f"{value:g}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, datetime):
        return format_relative_time(value)
    return f"{value:,}"
