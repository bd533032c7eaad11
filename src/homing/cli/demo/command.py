"""`homing demo`: shows Homing at work, on the dashboard or in the terminal."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Options, command
from homing.cli.common.process_setup import check_service_installed
from homing.cli.common.screen import Screen, styled
from homing.cli.root import app

if TYPE_CHECKING:
    from homing.cli.demo.fake_providers import DemoProvider
    from homing.library import Homing
    from homing.settings import Settings


@command(app, "demo")
async def demo(
    options: Options,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store, to explore it afterwards.")] = False,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show it in the terminal, in half a minute.")
    ] = False,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address of the dashboard. Port 0 picks a free one."
        ),
    ] = "127.0.0.1:8080",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the dashboard in the browser.")
    ] = True,
) -> int:
    """Show an outage, failover and a killed worker on the dashboard."""
    if not terminal:
        check_service_installed(", or watch the demo with --terminal")
    # The demo shows outages and dead letters itself. What it cannot show is an error of its own.
    logging.getLogger("homing").setLevel(logging.CRITICAL if terminal else logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="homing-demo-"))
    try:
        if not terminal:
            await _show(options, folder, listen, browser=browser)
            return ExitCode.OK
        whole = await _perform(options.screen, folder)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    _what_next(options.screen, folder if keep else None)
    return ExitCode.OK if whole else ExitCode.NO


async def _show(options: Options, folder: Path, listen: str, *, browser: bool) -> None:
    """Serves the dashboard of a demo until a stop signal."""
    from homing import compose
    from homing.cli.common.process_setup import StopSignals
    from homing.cli.demo.fake_providers import SETTINGS, DemoProvider, build_demo_engine
    from homing.cli.demo.live_story import LiveStory
    from homing.cli.operations.policy_simulate import build_simulator
    from homing.compose import service
    from homing.settings import load_settings

    pigeon, hawk = DemoProvider("pigeon"), DemoProvider("hawk")
    (folder / "homing.toml").write_text(SETTINGS, encoding="utf-8")
    settings = load_settings(folder / "homing.toml", flags={"service": {"listen": listen}})
    at = _bind(settings)
    host, port = at.getsockname()[:2]
    backend = compose.build_store(str(folder / "homing.db"))
    async with build_demo_engine(folder, backend, pigeon, hawk) as homing:
        signals = StopSignals()
        story = LiveStory(homing, folder, pigeon, hawk)
        served = service.build_service(settings, homing)
        served.simulate = build_simulator()
        server = service.build_server(settings, served, demo=story.events)
        serving = asyncio.create_task(server.serve([at]))
        homing.start_worker()
        telling = asyncio.create_task(story.run())
        url = f"http://{host}:{port}/"
        options.screen.line(f"The dashboard of the demo is at {url}", style="bold")
        options.screen.line("An outage starts in 20 seconds; the buttons there start others. Ctrl-C ends it.")
        sys.stdout.flush()
        if browser and sys.stdout.isatty():
            await asyncio.to_thread(webbrowser.open, url)
        await asyncio.wait(
            [serving, telling, asyncio.create_task(signals.next())], return_when=asyncio.FIRST_COMPLETED
        )
        ended = [task for task in (serving, telling) if task.done()]
        telling.cancel()
        server.stop(hard=True)
        await asyncio.gather(serving, telling, return_exceptions=True)
        await homing.stop_worker(hard=True)
        for task in ended:
            task.result()  # raises the error that ended the demo, if one did


def _bind(settings: Settings) -> socket.socket:
    """Returns a listening socket, on another port if the wanted one is taken."""
    from homing.compose import service

    where = service.listen_address(settings)
    try:
        return service.bind_socket(where)
    except OSError:
        return service.bind_socket(replace(where, port=0))


async def _perform(screen: Screen, folder: Path) -> bool:
    from homing import compose
    from homing.cli.demo.fake_providers import SETTINGS, DemoProvider, build_demo_engine
    from homing.cli.demo.scenario import DemoShow
    from homing.cli.demo.screen import DemoScreen

    began = time.monotonic()
    pigeon, hawk = DemoProvider("pigeon"), DemoProvider("hawk")
    (folder / "homing.toml").write_text(SETTINGS, encoding="utf-8")
    backend = compose.build_store(str(folder / "homing.db"))
    screen.line("Homing delivers notifications and keeps trying until they land.", style="bold")
    screen.line("Two simulated email providers, real time, a real SQLite file.")
    homing = build_demo_engine(folder, backend, pigeon, hawk)
    try:
        await homing.open()
        with DemoScreen(screen) as stage:
            show = DemoShow(homing, backend, folder, stage, pigeon, hawk)
            await show.perform()
        return await _tally(screen, homing, show.accepted, (pigeon, hawk), time.monotonic() - began)
    finally:
        await homing.close()


async def _tally(
    screen: Screen, homing: Homing, accepted: int, providers: tuple[DemoProvider, ...], took_s: float
) -> bool:
    """Prints the counts and returns True if every accepted notification is accounted for."""
    counts = {status: count for status, count in (await homing.queue_counts()).items() if count}
    health = await homing.health_metrics()
    accounted = sum(counts.values())
    screen.heading(f"Totals after {took_s:.0f} seconds")
    rows = [(styled(status), count, _meaning(status)) for status, count in counts.items()]
    screen.table(
        ("STATUS", "COUNT>", ""),
        [
            *rows,
            (styled("accounted for", "bold"), accounted, ""),
            (styled("accepted", "bold"), accepted, _verdict(accepted, accounted)),
        ],
    )
    summary = ", ".join(f"{one.name} sent {one.accepted_count}" for one in providers)
    screen.line(f"{summary}; {health.recovered_by_retry_count} were delivered only because of a retry")
    return accepted == accounted


def _meaning(status: str) -> str:
    return {
        "sent": "handed to a provider",
        "failed": "the dead letter, acknowledged and resent as a new notification",
    }.get(status, "")


def _verdict(accepted: int, accounted: int) -> str:
    return "nothing is lost" if accepted == accounted else "THE TWO NUMBERS SHOULD BE EQUAL"


def _what_next(screen: Screen, kept: Path | None) -> None:
    screen.heading("What to type next")
    if kept is not None:
        pairs = [
            (f"cd {kept}", "the demo's settings and store are here"),
            ("homing list", "its notifications"),
            ("homing dead list", "its dead letter"),
            ("homing stats", "success rate by attempt"),
        ]
    else:
        pairs = [
            ("homing demo", "the same on the dashboard, with buttons"),
            ("homing init", "write a commented homing.toml"),
            ("homing send --to you@example.org --channel email --body Hello", "accept a notification"),
            ("homing process --verbose", "deliver what is due, then exit"),
        ]
    pairs += [
        ("homing serve", "the REST API, with a page at http://127.0.0.1:8080/"),
        ("homing policy table", "how long each preset waits"),
        ("homing policy simulate --outage 10m", "how an outage would go"),
    ]
    width = max(len(typed) for typed, _ in pairs)
    for typed, what in pairs:
        screen.line(f"  {typed:<{width}} ", styled(what, "bright_black"))
