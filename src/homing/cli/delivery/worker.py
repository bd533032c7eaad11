"""`homing worker`: delivers until a stop signal."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Options, command, configure_logging
from homing.cli.common.process_setup import (
    StopSignals,
    open_with_telemetry,
    require_complete_templates,
    run_until_stopped,
)
from homing.cli.common.units import parse_duration_ms
from homing.cli.delivery.process import format_totals
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.library import Homing


LogMore = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


@command(app, "worker")
async def worker(
    options: Options,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="DURATION", help="Maximum sleep while nothing is due."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", metavar="N", help="Maximum attempts in flight, per mode and channel."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve /metrics, /healthz and /readyz. Port 0 picks a free port.",
        ),
    ] = None,
    verbose: LogMore = False,
) -> int:
    """Deliver until SIGTERM or SIGINT. A second signal aborts what is in flight."""
    flags = _settings(interval, batch_size, metrics)
    settings = options.settings(**flags)
    configure_logging(settings, verbose=verbose)
    require_complete_templates(settings)
    async with open_with_telemetry(options, settings, lambda: options.settings(**flags)) as (
        homing,
        _,
        signals,
    ):
        return await _work(options, homing, signals)


async def _work(options: Options, homing: Homing, signals: StopSignals) -> int:
    loop = asyncio.get_running_loop()
    screen, began = options.screen, loop.time()
    settings = homing.settings
    screen.line(
        f"worker {settings.name} started: polls every {format_duration(settings.worker.poll_ms)}, "
        f"slots per channel: priority {settings.slots.priority}, standard {settings.slots.standard}, "
        f"bulk {settings.slots.bulk}"
    )
    sys.stdout.flush()
    hard = await run_until_stopped(
        options,
        signals,
        asyncio.create_task(homing.run_worker()),
        lambda hard: homing.stop_worker(hard=hard),
        lambda: f"stopping, with {homing.worker.in_flight} attempts in flight",
        lambda: (
            f"{homing.worker.in_flight} attempts aborted; other workers retry them when the leases expire"
        ),
    )
    screen.line(format_worker_summary(homing, format_duration((loop.time() - began) * 1000), hard=hard))
    return ExitCode.NO if hard else ExitCode.OK


def format_worker_summary(homing: Homing, after: str, *, hard: bool) -> str:
    """Returns a one-line summary of what the worker has done."""
    done, lateness = homing.worker.processed, homing.worker.lateness
    mean = f", {format_duration(lateness.total_ms / lateness.seen)} late on average" if lateness.seen else ""
    how = "stopped hard" if hard else "stopped"
    return f"worker {homing.settings.name} {how} after {after}: {format_totals(done)}{mean}"


def _settings(interval: str | None, batch_size: int | None, metrics: str | None) -> dict[str, Any]:
    from homing.engine.settings import LaneSlots, WorkerSettings
    from homing.settings import read_setting

    settings: dict[str, Any] = {}
    if metrics is not None:
        settings["metrics"] = {"listen": metrics}
    if interval is not None:
        poll_ms = parse_duration_ms(interval, "--interval")
        settings["worker"] = {"poll_ms": read_setting(poll_ms, WorkerSettings, "poll_ms", "--interval")}
    if batch_size is not None:
        settings["slots"] = {
            mode: read_setting(batch_size, LaneSlots, mode, "--batch-size")
            for mode in LaneSlots.__struct_fields__
        }
    return settings
