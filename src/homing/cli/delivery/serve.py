"""`homing serve`: runs the REST API and a worker until a stop signal."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    Options,
    command,
    configure_logging,
    open_engine,
    redact_store_url,
    run_async,
)
from homing.cli.common.process_setup import (
    StopSignals,
    check_service_installed,
    open_with_telemetry,
    require_complete_templates,
    run_until_stopped,
)
from homing.cli.delivery.supervisor import Supervisor
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.library import Homing
    from homing.settings import Settings


_OTHER_FILES = 1_024
"""Number of open files reserved for the store and for connections to providers."""


@command(app, "serve")
def serve(
    options: Options,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address; default: 127.0.0.1:8080. Port 0 picks a free port.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", help="Number of processes that share the address; default: 1."
        ),
    ] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Serve the API only, without delivering.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Also serve /metrics at this address, without a key. Port 0 picks a free port.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log more, including every request.")
    ] = False,
) -> int:
    """Serve the API and deliver until SIGTERM or SIGINT. A second signal aborts what is in flight."""
    own = {"listen": listen, "workers": workers}
    flags: dict[str, Any] = {"service": {name: value for name, value in own.items() if value is not None}}
    if metrics is not None:
        flags["metrics"] = {"listen": metrics}
    settings = options.settings(**flags)
    configure_logging(settings, verbose=verbose)
    _check(settings)
    _allow_files(settings.service.max_connections)
    at = _bound(settings)

    def load() -> Settings:
        from homing.compose import service

        found = options.settings(**flags)
        service.listen_address(found)
        return found

    if settings.service.workers == 1:
        return int(run_async(_serve(options, settings, load, at, deliver=not no_worker)))
    run_async(_prepare(options, settings, at))

    def work(number: int, alive: int) -> int:
        def load_mine() -> Settings:
            return _of_process(load(), number)

        mine = _of_process(settings, number)
        return int(run_async(_serve(options, mine, load_mine, at, deliver=not no_worker, alive=alive)))

    return Supervisor(settings.service.workers, work).run()


def _check(settings: Settings) -> None:
    check_service_installed()
    if settings.service.workers > 1 and settings.store == "memory:":
        raise CliError(
            "--workers: several processes cannot share memory:; use a SQLite file, postgresql:// or mongodb://"
        )
    require_complete_templates(settings)


def _allow_files(connections: int) -> None:
    """Raises the limit of open files, which is often about 1,000: each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def _bound(settings: Settings) -> socket.socket:
    from homing.compose import service

    where = service.listen_address(settings)
    try:
        return service.bind_socket(where)
    except OSError as error:
        raise CliError(
            f"service.listen: {where.host}:{where.port} cannot be used: {error.strerror}"
        ) from None


def _of_process(settings: Settings, number: int) -> Settings:
    """Returns the settings for one process, with its own worker name and metrics port."""
    from homing.compose import service

    name, listen = settings.worker_name, settings.metrics.listen
    if listen:
        where = service.metrics_address(settings)
        listen = f"{_in_url(where.host)}:{where.port and where.port + number}"
    return replace(
        settings,
        worker_name=name and f"{name}:{number}",
        metrics=replace(settings.metrics, listen=listen),
    )


async def _prepare(options: Options, settings: Settings, at: socket.socket) -> None:
    """Opens the engine once before forking: migrates, checks the settings, creates the first key."""
    from homing.compose import service

    async with open_engine(options, settings) as homing:
        service.build_service(settings, homing)  # fails here, not in every child, if a setting is wrong
        await _greet(options, settings, homing, at)


async def _greet(options: Options, settings: Settings, homing: Homing, at: socket.socket) -> None:
    """Creates the first key if there is none, and prints how to start."""
    from homing.compose import service

    made = await service.ensure_first_key(settings, homing)
    host, port = at.getsockname()[:2]
    url = settings.service.public_url.rstrip("/") or f"http://{_in_url(host)}:{port}"
    file = service.key_file(settings)
    readable = os.access(file, os.R_OK)
    screen = options.screen
    screen.line(f"serving on {url} (store: {redact_store_url(settings.store)})")
    screen.line(f"dashboard: {url}/, API docs: {url}/docs")
    if _is_local(host) and not settings.service.public_url:
        link = await homing.web_sessions.create_link(settings.tenant, f"link:{socket.gethostname()}")
        screen.line(f"sign in once, within an hour: {url}/ui/sign-in?link={link}")
    if made:
        screen.line(f"a first key with all scopes is in {file}, readable only by you. Try:")
    elif readable:
        screen.line("try:")
    if made or readable:
        screen.line(
            f"  curl -X POST {url}/api/v1/notifications/send -H \"Authorization: Bearer $(cat '{file}')\" "
            "-H 'Content-Type: application/json' "
            '-d \'{"recipient": {"email": "ada@example.org"}, "channel": "email", '
            '"content": {"subject": "Hello", "body": "It works."}}\''
        )
    if not _is_local(host):
        options.notes.line(
            f"note: {host} may be reachable from other machines over plain HTTP; put a TLS proxy in front"
        )
    sys.stdout.flush()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


async def _serve(
    options: Options,
    settings: Settings,
    load: Callable[[], Settings],
    at: socket.socket,
    *,
    deliver: bool,
    alive: int | None = None,
) -> int:
    """Runs one process of the service until it is stopped.

    `load` reads its settings again. `alive` is the pipe to the parent, or None if this is the only process.
    """
    from homing.compose import service

    loop = asyncio.get_running_loop()
    began = loop.time()
    async with AsyncExitStack() as stack:
        homing, watchers, signals = await stack.enter_async_context(
            open_with_telemetry(options, settings, load, count=True)
        )
        served = service.build_service(settings, homing)
        homing.reloader.parts.append(service.reloadable_issuers(served))
        if alive is None:
            await _greet(options, settings, homing, at)
        else:
            stack.callback(_stop_with_parent(alive, signals))
        served.metrics = watchers.counted.shown if watchers.counted else None
        from homing.cli.operations.policy_simulate import build_simulator

        served.simulate = build_simulator()
        server = service.build_server(settings, served, watchers.all)

        async def stop(hard: bool) -> None:
            server.stop(hard=hard)
            await asyncio.gather(asyncio.wait([serving]), homing.stop_worker(hard=hard))

        serving = asyncio.create_task(server.serve([at]))
        both = asyncio.create_task(_run_both(serving, homing if deliver else None))
        hard = await run_until_stopped(
            options,
            signals,
            both,
            stop,
            lambda: (
                f"stopping, with {server.active_requests} requests "
                f"and {homing.worker.in_flight} sends in flight"
            ),
            lambda: (
                f"{homing.worker.in_flight} sends aborted; other workers retry them when the leases expire"
            ),
        )
        if alive is None:
            how = "stopped hard" if hard else "stopped"
            options.screen.line(f"{how} after {format_duration((loop.time() - began) * 1000)}")
    return ExitCode.NO if hard else ExitCode.OK


def _stop_with_parent(alive: int, signals: StopSignals) -> Callable[[], object]:
    """Requests one stop when the parent has exited. Returns a function that ends this watch.

    A second request would abort the work in flight.
    """
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(alive)  # a closed pipe stays readable
        signals.add()

    loop.add_reader(alive, gone)
    return lambda: loop.remove_reader(alive)


async def _run_both(serving: asyncio.Task[None], homing: Homing | None) -> None:
    """Runs the server and, unless `homing` is None, the worker. Returns or raises when either ends."""
    tasks: set[asyncio.Task[None]] = {serving}
    if homing is not None:
        tasks.add(asyncio.create_task(homing.run_worker()))
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
