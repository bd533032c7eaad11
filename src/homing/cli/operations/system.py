"""`homing system`: the workers, sinks, bridges and timers of all processes, with what waits for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, command, open_engine
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_relative_time
from homing.cli.root import app

if TYPE_CHECKING:
    from homing.core.system_status import BridgeStatus, TimerStatus


@command(app, "system")
async def system(options: Options, json: Json = False) -> int:
    """Show workers, sinks, bridges and timers, with their lag."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.system()
    if json:
        print_json(found)
        return ExitCode.OK
    screen = options.screen
    screen.heading("Workers")
    screen.table(
        ("NAME", "STATE", "SEEN", "PROVIDERS~"),
        [
            (one.name, styled(one.state.value), format_relative_time(one.seen_at), ", ".join(one.providers))
            for one in found.workers
        ],
        empty="none",
    )
    screen.heading("Sinks")
    screen.table(
        ("NAME", "KIND", "WAITING>", "OLDEST", "PARKED>", "SEEN"),
        [
            (
                one.name,
                one.kind,
                f"{one.waiting:,}",
                "" if one.oldest_at is None else format_relative_time(one.oldest_at),
                f"{one.parked:,}",
                format_relative_time(one.last_seen_at),
            )
            for one in found.sinks
        ],
        empty="none",
    )
    if found.bridges:
        screen.heading("Bridges")
        screen.table(
            ("NAME", "PROCESS", "STATUS", "WAITING>", "ACCEPTED>", "REJECTED>", "FAILURES>", "SEEN"),
            list(map(_bridge_row, found.bridges)),
        )
    if found.timers:
        screen.heading("Timers")
        screen.table(
            ("NAME", "PROCESS", "STATUS", "WAITING>", "SCHEDULED>", "DISCARDED>", "SEEN"),
            list(map(_timer_row, found.timers)),
        )
    return ExitCode.OK


def _bridge_row(one: BridgeStatus) -> tuple[str, ...]:
    return (
        one.name,
        one.process,
        styled(one.status if one.live else "dead"),
        "" if one.waiting is None else f"{one.waiting:,}",
        f"{one.accepted:,}",
        f"{one.rejected:,}",
        f"{one.failures:,}",
        format_relative_time(one.seen_at),
    )


def _timer_row(one: TimerStatus) -> tuple[str, ...]:
    return (
        one.name,
        one.process,
        styled("dead" if not one.live else "connected" if one.connected else "not connected"),
        f"{one.waiting:,}",
        f"{one.scheduled:,}",
        f"{one.discarded:,}",
        format_relative_time(one.seen_at),
    )
