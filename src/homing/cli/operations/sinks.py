"""`homing sinks`: lists event sinks, publishes parked events again, and removes unused sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, Who, Yes, command, confirm, open_engine, record_audit
from homing.cli.common.screen import print_json
from homing.cli.common.units import format_count, format_local_time, format_relative_time
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.ports.stores import RegisteredSink
    from homing.library import Homing

sinks = add_command_group("sinks", "List event sinks, and remove those that are no longer used.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name.")]


@command(sinks, "list")
async def list_(options: Options, json: Json = False) -> int:
    """List the registered sinks and the events that wait for each."""
    from homing.core.system_status import sink_status
    from homing.core.times import moment

    async with open_engine(options, existing=True) as homing:
        found = await homing.sinks()
    if json:
        print_json({"items": list(map(sink_status, found))})
        return ExitCode.OK
    if not found:
        options.notes.line("no sinks; a process registers those of its settings when it starts to deliver")
        return ExitCode.OK
    options.screen.table(
        ("NAME", "KIND", "WAITING>", "OLDEST", "PARKED>", "LAST SEEN", "EVENTS~"),
        [
            (
                sink.name,
                sink.kind,
                f"{sink.waiting:,}",
                "" if sink.oldest_at is None else format_relative_time(moment(sink.oldest_at)),
                f"{sink.parked:,}",
                format_local_time(moment(sink.last_seen_at)),
                ", ".join(sorted(sink.events)),
            )
            for sink in found
        ],
    )
    return ExitCode.OK


@command(sinks, "retry")
async def retry(options: Options, name: Name, who: Who = None, json: Json = False) -> int:
    """Publish the parked events of a sink again. The sink refused them before, so fix the sink first."""
    async with open_engine(options, existing=True) as homing:
        await _find(homing, name)
        await record_audit(homing, "sink.retry", name, who=who)
        released = await homing.release_sink_events(name)
    if json:
        print_json({"name": name, "releasedEvents": released})
    else:
        options.screen.line(f"{format_count(released, 'event')} of {name} wait to be published again")
    return ExitCode.OK


@command(sinks, "remove")
async def remove(options: Options, name: Name, who: Who = None, yes: Yes = False, json: Json = False) -> int:
    """Remove a sink and the events that wait for it. First remove it from the settings of all processes."""
    async with open_engine(options, existing=True) as homing:
        found = await _find(homing, name)
        waiting = found.waiting + found.parked
        if waiting and not confirm(f"Delete {format_count(waiting, 'event')} waiting for {name}?", yes=yes):
            return ExitCode.NO
        await record_audit(homing, "sink.remove", name, who=who, waiting=waiting)
        removed = await homing.remove_sink(name)
    if json:
        print_json({"name": name, "removedEvents": removed})
    else:
        options.screen.line(f"removed {name} and {format_count(removed, 'waiting event')}")
    return ExitCode.OK


async def _find(homing: Homing, name: str) -> RegisteredSink:
    """Returns a registered sink. Raises `NotFound` if no sink has this name."""
    from homing.core.system_status import find_sink

    return find_sink(await homing.sinks(), name)
