"""`homing stats` and `homing health`: statistics, and thresholds for retries and failures."""

from __future__ import annotations

from datetime import datetime, timedelta
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
    from homing.core.ports.observers import SinkBacklogs
    from homing.core.statistics import ThresholdCheck
    from homing.engine.settings import AlertThresholds


@command(app, "stats")
async def stats(options: Options, json: Json = False) -> int:
    """Show delivery statistics by status, attempts and hour."""
    async with open_engine(options, existing=True) as homing:
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
        [(styled(name), f"{count:,}") for name, count in counts.items() if count],
        empty="none",
    )
    screen.heading("By number of attempts made")
    screen.table(
        ("ATTEMPTS>", "COUNT>", "WAITING>", "FAILED>"),
        [(s.attempts, s.count, s.pending_count, s.failed_count) for s in retries],
        empty="none",
    )
    screen.heading("Success by attempt (including purged notifications)")
    screen.table(
        ("ATTEMPTS>", "TOTAL>", "SENT>", "FAILED>", "SUCCESS>"),
        [(s.attempts, s.total, s.succeeded, s.failed, f"{s.success_rate:.2f} %") for s in success],
        empty="none",
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
            "OPENED>",
            "CLICKED>",
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
                s.opened,
                s.clicked,
            )
            for s in sums
        ],
        empty="none",
    )
    return ExitCode.OK


@command(app, "health")
async def health(options: Options, json: Json = False) -> int:
    """Show retry metrics and thresholds. Exit code 1 if a threshold is exceeded."""
    import msgspec

    from homing.core.statistics import HealthMetrics

    settings = options.settings()
    async with open_engine(options, settings=settings, existing=True) as homing:
        await homing.shared.lead("health", homing.settings.name, 0)  # raises if nothing can be written
        health = await homing.health()
        found = list(health.thresholds)
        found.append(_check_workers(await homing.unattended_ms(), settings.thresholds.unattended_ms))
        found.append(_check_clock(await homing.suspected_clock_step()))
        found += _check_sinks(await homing.sink_backlogs(), settings.thresholds)
    if (free := free_disk_bytes(settings.store)) is not None:
        found.append(_check_disk(free))
    exceeded = [check for check in found if check.exceeded]
    code = ExitCode.NO if exceeded else ExitCode.OK
    if json:
        thresholds = [_wire(check) for check in found]
        print_json({**msgspec.to_builtins(health), "healthy": not exceeded, "thresholds": thresholds})
        return code
    by_metric = {check.metric: check for check in found}
    screen = options.screen
    rows: list[tuple[Any, ...]] = [
        (name, _value(getattr(health, name)), *_mark(by_metric.get(name)))
        for name in HealthMetrics.__struct_fields__
    ]
    rows += [
        (check.metric, _limit(check.metric, check.value), *_mark(check))
        for check in found
        if check.metric not in HealthMetrics.__struct_fields__
    ]
    screen.table(("METRIC", "VALUE>", "", "THRESHOLD"), rows)
    screen.line("")
    for check in exceeded:
        screen.check(False, check.message)
    if not exceeded:
        screen.check(True, "healthy: no threshold is exceeded")
    return code


def _check_workers(unattended_ms: int, limit_ms: int) -> ThresholdCheck:
    """Checks that no work is overdue while no worker is alive."""
    from homing.core.statistics import ThresholdCheck
    from homing.engine.operations.workers import describe_unattended

    return ThresholdCheck(
        name="NoLiveWorker",
        metric="unattended_ms",
        value=unattended_ms,
        limit=limit_ms,
        exceeded=unattended_ms > limit_ms,
        message=describe_unattended(unattended_ms),
        only_when="without a live worker",
    )


def _check_sinks(backlogs: SinkBacklogs, limits: AlertThresholds) -> list[ThresholdCheck]:
    """Checks the backlog of each sink. The name of the sink follows the name of the figure."""
    from msgspec.structs import replace

    from homing.engine.operations.health import check_sinks

    by_sink = check_sinks(backlogs.sinks, backlogs.now_ms, limits)
    return [
        replace(check, metric=f"{check.metric}:{sink}")
        for sink, checks in by_sink.items()
        for check in checks
    ]


def _check_disk(free_bytes: int) -> ThresholdCheck:
    """Checks that the disk of the store is not full."""
    from homing.core.statistics import ThresholdCheck

    return ThresholdCheck(
        name="DiskSpace",
        metric="free_disk_bytes",
        value=free_bytes,
        limit=FULL_DISK_BYTES,
        exceeded=free_bytes < FULL_DISK_BYTES,
        message=f"{_limit('free_disk_bytes', free_bytes)} free on the disk of the store; {FULL_DISK_ADVICE}",
        at_least=True,
    )


def _check_clock(step: ClockStep | None) -> ThresholdCheck:
    """Checks that the store's clock was not set recently."""
    from homing.core.clock_steps import MAX_BELIEVED_STEP_MS, describe_step
    from homing.core.statistics import ThresholdCheck

    return ThresholdCheck(
        name="StoreClockStepped",
        metric="clock_step_ms",
        value=0 if step is None else abs(step.correction_ms),
        limit=MAX_BELIEVED_STEP_MS,
        exceeded=step is not None,
        message="" if step is None else f"{describe_step(step)}; it is accepted after ten minutes",
    )


def _wire(check: ThresholdCheck) -> ThresholdCheck:
    """Returns the check with the metric's name in camelCase, like the metrics themselves."""
    from msgspec.structs import replace

    from homing.core.request_decoding import to_camel_case

    name, mark, subject = check.metric.partition(":")
    return replace(check, metric=f"{to_camel_case(name)}{mark}{subject}")


def _mark(check: ThresholdCheck | None) -> tuple[Any, Any]:
    if check is None:
        return "", ""
    limit = _limit(check.metric, check.limit)
    bound = "at least" if check.at_least else "at most"
    return check_mark(not check.exceeded), f"{bound} {limit} {check.only_when}".rstrip()


def _limit(metric: str, value: float) -> str:
    if metric == "free_disk_bytes":
        return f"{value / 1_048_576:,.0f} MB"
    durations = ("oldest_retry", "oldest_dead_letter_ms", "unattended_ms", "clock_step_ms", "sink_lag_ms")
    return format_duration(value) if metric.partition(":")[0] in durations else f"{value:g}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, datetime):
        return format_relative_time(value)
    return f"{value:,}"
