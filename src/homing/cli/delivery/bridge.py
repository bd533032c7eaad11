"""`homing bridge`: brings requests in from a message broker, and delivers them until a stop signal."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Options, command, configure_logging
from homing.cli.common.process_setup import (
    StopSignals,
    open_with_telemetry,
    require_complete_templates,
    run_until_stopped,
)
from homing.cli.delivery.worker import LogMore, format_worker_summary
from homing.cli.root import add_command_group
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.library import Homing
    from homing.settings import Settings

bridge_app = add_command_group("bridge", "Bring requests in from a message broker, and deliver them.")


@command(bridge_app, "rabbitmq")
async def rabbitmq(
    options: Options,
    declare: Annotated[
        bool, typer.Option("--declare", help="Create queues that do not exist, as quorum queues.")
    ] = False,
    verbose: LogMore = False,
) -> int:
    """Retry messages of RabbitMQ: publish them again after a delay.

    Runs a worker too. Without a settings file, it reads RABBITMQ_URL, RETRY_QUEUE, MANUAL_REVIEW_QUEUE,
    DATABASE_URL, DEFAULT_MAX_RETRIES, BASE_DELAY_MS, MAX_DELAY_MS, RETRY_POLL_INTERVAL_MS, HTTP_PORT and
    SERVICE_NAME from the environment.
    """
    load = partial(_load, options, declare)
    settings = load()
    configure_logging(settings, verbose=verbose)
    if settings.store == "memory:":
        options.notes.line("warning: the store is in memory, so a restart loses all tasks")
    async with open_with_telemetry(options, settings, load) as (homing, _, signals):
        return await run_bridge(options, homing, "rabbitmq", signals)


Name = Annotated[str, typer.Argument(metavar="NAME", help="The bridge `[bridges.NAME]`.")]


@command(bridge_app, "kafka")
async def kafka(options: Options, name: Name = "kafka", verbose: LogMore = False) -> int:
    """Accept the requests of a Kafka topic, and deliver them.

    Runs a worker too. Start as many processes as you like: they share the partitions of the topic.
    """
    return await _run_named(options, name, verbose)


@command(bridge_app, "run")
async def run(options: Options, name: Name, verbose: LogMore = False) -> int:
    """Run a bridge of the settings, and a worker.

    It may be of a kind that another package has.
    """
    return await _run_named(options, name, verbose)


async def _run_named(options: Options, name: str, verbose: bool) -> int:
    settings = options.settings()
    configure_logging(settings, verbose=verbose)
    require_complete_templates(settings)
    async with open_with_telemetry(options, settings, options.settings) as (homing, _, signals):
        return await run_bridge(options, homing, name, signals)


def _load(options: Options, declare: bool) -> Settings:
    from homing import compose
    from homing.settings.retry_scheduler import read_retry_scheduler_variables

    settings = options.settings(partial(read_retry_scheduler_variables, os.environ))
    return compose.add_retry_scheduler(settings, declare=declare)


async def run_bridge(options: Options, homing: Homing, name: str, signals: StopSignals) -> int:
    """Runs a bridge and a worker until a stop signal. The bridge stops first."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    homing.bridges.start(name)
    options.screen.line(
        f"bridge {name} and worker {homing.settings.name} started: "
        f"polls every {format_duration(homing.settings.worker.poll_ms)}"
    )
    sys.stdout.flush()

    async def stop(hard: bool) -> None:
        if not hard:
            await homing.bridges.stop()
        await homing.stop_worker(hard=hard)

    hard = await run_until_stopped(
        options,
        signals,
        asyncio.create_task(homing.run_worker()),
        stop,
        lambda: f"stopping the bridge, with {homing.worker.in_flight} attempts in flight",
        lambda: (
            f"{homing.worker.in_flight} attempts aborted; other workers retry them when the leases expire"
        ),
    )
    state = homing.snapshot().bridges.get(name)
    if state is not None:
        options.screen.line(
            f"bridge {name}: {state.accepted} accepted, {state.duplicates} accepted before, "
            f"{state.rejected} rejected"
        )
    after = format_duration((loop.time() - began) * 1000)
    options.screen.line(format_worker_summary(homing, after, hard=hard))
    return ExitCode.NO if hard else ExitCode.OK
