"""`homing now`: what is wrong right now, per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.cli.common.disk_space import FULL_DISK_ADVICE, FULL_DISK_BYTES, free_disk_bytes
from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, command, open_engine
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_count, format_relative_time
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.overview import ChannelNow


@command(app, "now")
async def now(options: Options, json: Json = False) -> int:
    """Show what is wrong right now. Exit code 1 if notifications are late, or the disk is full."""
    from datetime import UTC, datetime

    from homing.core.overview import VerdictLevel, give_verdict

    settings = options.settings()
    async with open_engine(options, settings, existing=True) as homing:
        found = await homing.overview()
        alerts = await homing.open_alerts()
    free = free_disk_bytes(settings.store)
    is_full = free is not None and free < FULL_DISK_BYTES
    code = ExitCode.NO if is_full or found.level is VerdictLevel.PROBLEM else ExitCode.OK
    if json:
        print_json({"overview": found, "alerts": alerts, "freeDiskBytes": free})
        return code
    _, local = give_verdict(
        found.now,
        found.channels,
        live_workers=found.live_workers,
        failed_last_hour=found.failed_last_hour,
        unacknowledged=found.unacknowledged,
        zone=datetime.now().astimezone().tzinfo or UTC,
    )
    screen = options.screen
    if is_full:
        screen.check(False, f"the disk of the store is full; {FULL_DISK_ADVICE}")
    screen.check(found.level is VerdictLevel.OK, local)
    screen.line("")
    screen.table(
        ("CHANNEL", "PER MINUTE>", "SUCCESS>", "P99 LATE>", "WAITING>", "LATE>", "OLDEST"),
        [_row(one) for one in found.channels],
    )
    screen.line("")
    workers = format_count(found.live_workers, "live worker")
    screen.line(f"{workers}, {format_count(found.dead_letters, 'dead letter')}")
    if alerts:
        screen.heading("Open alerts")
        screen.table(
            ("SINCE", "ALERT", "MESSAGE~"),
            [(format_relative_time(one.since), styled(one.name), one.message) for one in alerts],
        )
    return code


def _row(one: ChannelNow) -> tuple[str, ...]:
    more = "" if one.complete else "+"
    return (
        one.channel.value,
        f"{one.per_minute:,.1f}",
        "–" if one.success_rate is None else f"{one.success_rate:.1f} %",
        "–" if one.p99_late_ms is None else format_duration(one.p99_late_ms),
        f"{one.waiting:,}{more}",
        f"{one.late:,}{more}",
        "–" if one.oldest_at is None else format_relative_time(one.oldest_at),
    )
