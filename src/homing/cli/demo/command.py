"""`homing demo`: shows Homing at work in less than half a minute."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import Options, command
from homing.cli.common.screen import Screen, styled
from homing.cli.root import app

if TYPE_CHECKING:
    from homing.cli.demo.fake_providers import DemoProvider
    from homing.library import Homing


@command(app, "demo")
async def demo(
    options: Options,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store, to explore it afterwards.")] = False,
) -> int:
    """Show an outage, failover and a killed worker in half a minute."""
    logging.getLogger("homing").setLevel(logging.CRITICAL)  # the demo prints the same events itself
    folder = Path(tempfile.mkdtemp(prefix="homing-demo-"))
    try:
        whole = await _perform(options.screen, folder)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    _what_next(options.screen, folder if keep else None)
    return ExitCode.OK if whole else ExitCode.NO


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
            ("homing demo --keep", "the same, keeping its store to explore"),
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
