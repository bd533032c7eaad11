"""`homing workers`: lists the workers of all processes that use the store."""

from __future__ import annotations

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Json, Options, command, open_store, require_existing_store
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_relative_time
from homing.cli.root import app


@command(app, "workers")
async def workers(options: Options, json: Json = False) -> int:
    """List the workers of all processes, with their last heartbeat."""
    from homing.engine.operations.workers import list_workers

    settings = options.settings()
    require_existing_store(settings.store)
    async with open_store(settings, existing=True) as store:
        found = await list_workers(store)
    if json:
        print_json({"items": found})
        return ExitCode.OK
    if not found:
        options.notes.line("no workers; start one with `homing worker`")
        return ExitCode.OK
    options.screen.table(
        ("NAME", "STATE", "VERSION", "STARTED", "SEEN", "SLOTS>", "PROVIDERS~"),
        [
            (
                worker.name,
                styled(worker.state.value),
                worker.version,
                format_relative_time(worker.started_at),
                format_relative_time(worker.seen_at),
                f"{sum(worker.lanes.values()):,}",
                ", ".join(worker.providers),
            )
            for worker in found
        ],
    )
    return ExitCode.OK
