"""`homing serve`: the API, and beside it a worker, until it is told to stop."""

from __future__ import annotations

import asyncio
import importlib.util
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

from homing.cli.exits import ExitCode, Refused
from homing.cli.root import app
from homing.cli.shared import Options, command, configure_logging, engine, run_async, shown
from homing.cli.simulating import simulator
from homing.cli.stopping import Signals, until_stopped
from homing.cli.supervising import Supervisor
from homing.cli.watched import watched
from homing.cli.words import span

if TYPE_CHECKING:
    from homing.config import Settings
    from homing.library import Homing


_OTHER_FILES = 1_024
"""Of the store, and of connections to providers."""


@command(app, "serve")
def serve(
    options: Options,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Where; default: 127.0.0.1:8080. Port 0: any."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Processes that share the address; default: 1."),
    ] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Accept and answer only; deliver nothing from here.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT", help="Serve /metrics there too, without a key; 0: any port."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more, and every request.")] = False,
) -> int:
    """Serve the API and deliver, until SIGTERM or SIGINT; a second signal breaks off what is under way."""
    own = {"listen": listen, "workers": workers}
    flags: dict[str, Any] = {"service": {name: value for name, value in own.items() if value is not None}}
    if metrics is not None:
        flags["metrics"] = {"listen": metrics}
    settings = options.settings(**flags)
    configure_logging(settings, verbose=verbose)
    _check(settings)
    _allow_files(settings.service.max_connections)
    at = _bound(settings)
    if settings.service.workers == 1:
        return int(run_async(_serve(options, settings, at, deliver=not no_worker)))
    run_async(_prepare(options, settings, at))

    def work(number: int, alive: int) -> int:
        mine = _of_process(settings, number)
        return int(run_async(_serve(options, mine, at, deliver=not no_worker, alive=alive)))

    return Supervisor(settings.service.workers, work).run()


def _check(settings: Settings) -> None:
    missing = [name for name in ("uvicorn", "httptools") if not _has(name)]
    if missing:
        raise Refused(
            f"{' and '.join(missing)} missing, which the service needs: pip install 'homing[service]'"
        )
    if settings.service.workers > 1 and settings.store == "memory:":
        raise Refused("--workers: several processes cannot share memory:; name a store that they can")


def _allow_files(connections: int) -> None:
    """A connection is an open file, and many systems allow a thousand unless they are asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _bound(settings: Settings) -> socket.socket:
    from homing.compose import service

    where = service.listen(settings)
    try:
        return service.bound(where)
    except OSError as error:
        raise Refused(f"service.listen: {where.host}:{where.port} cannot be used: {error.strerror}") from None


def _of_process(settings: Settings, number: int) -> Settings:
    """Names and ports that processes must not share."""
    from homing.compose import service

    name, listen = settings.worker_name, settings.metrics.listen
    if listen:
        where = service.metrics_listen(settings)
        listen = f"{_in_url(where.host)}:{where.port and where.port + number}"
    return replace(
        settings,
        worker_name=name and f"{name}:{number}",
        metrics=replace(settings.metrics, listen=listen),
    )


async def _prepare(options: Options, settings: Settings, at: socket.socket) -> None:
    """What is done once, before there are several."""
    from homing.compose import service

    async with engine(options, settings) as homing:
        service.behind(
            settings, homing
        )  # what is wrong in the settings would end each of them, again and again
        await _greet(options, settings, homing, at)


async def _greet(options: Options, settings: Settings, homing: Homing, at: socket.socket) -> None:
    """Makes the first key where there is none, and says how to begin."""
    from homing.compose import service

    made = await service.first_key(settings, homing)
    host, port = at.getsockname()[:2]
    url = settings.service.public_url.rstrip("/") or f"http://{_in_url(host)}:{port}"
    file = service.key_file(settings)
    readable = os.access(file, os.R_OK)
    screen = options.screen
    screen.line(f"serving on {url} (store: {shown(settings.store)}); what there is to call: {url}/docs")
    if made:
        screen.line(f"a first key, which may do everything, is in {file}; only you can read it. Try:")
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
            f"note: {host} can be reached from elsewhere, and this is HTTP: put a proxy with TLS in front"
        )
    sys.stdout.flush()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


async def _serve(
    options: Options, settings: Settings, at: socket.socket, *, deliver: bool, alive: int | None = None
) -> int:
    """One process. `alive`: it is one of several, and ends with the parent at the other end."""
    from homing.compose import service

    loop = asyncio.get_running_loop()
    began = loop.time()
    async with AsyncExitStack() as stack:
        homing, watchers = await stack.enter_async_context(watched(options, settings, count=True))
        told = Signals()  # not before: one that comes while the store is waited for ends it at once
        served = service.behind(settings, homing)
        if alive is None:
            await _greet(options, settings, homing, at)
        else:
            stack.callback(_hear_end(alive, told))
        served.metrics = watchers.counted.shown if watchers.counted else None
        served.simulate = simulator()
        server = service.server(settings, served, watchers.all)

        async def stop(hard: bool) -> None:
            server.stop(hard=hard)
            await asyncio.gather(asyncio.wait([serving]), homing.stop_worker(hard=hard))

        serving = asyncio.create_task(server.serve([at]))
        both = asyncio.create_task(_both(serving, homing if deliver else None))
        hard = await until_stopped(
            options,
            told,
            both,
            stop,
            lambda: (
                f"no more is taken, {server.under_way} requests and {homing.worker.in_flight} sends under way"
            ),
            lambda: f"{homing.worker.in_flight} sends broken off; their leases run out and others take them",
        )
        if alive is None:
            how = "stopped hard" if hard else "stopped"
            options.screen.line(f"{how} after {span((loop.time() - began) * 1000)}")
    return ExitCode.NO if hard else ExitCode.OK


def _hear_end(alive: int, told: Signals) -> Callable[[], object]:
    """Tells when the parent is gone: once, as a second time would break off what is under way."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(alive)  # an end can be read for ever
        told.tell()

    loop.add_reader(alive, gone)
    return lambda: loop.remove_reader(alive)


async def _both(serving: asyncio.Task[None], homing: Homing | None) -> None:
    """Ends when one of them does: half a service is none."""
    tasks: set[asyncio.Task[None]] = {serving}
    if homing is not None:
        tasks.add(asyncio.create_task(homing.run_worker()))
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
