"""`homing bench`: what this machine does with Homing, measured in stores that are made for it."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.exits import ExitCode, Refused
from homing.cli.progress import Bar
from homing.cli.root import app
from homing.cli.screen import styled
from homing.cli.shared import Options, command

if TYPE_CHECKING:
    from homing.benching.figures import Report


@command(app, "bench")
async def bench(
    options: Options,
    stores: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STORE]...",
            help="postgresql://… of a server where databases may be made, or sqlite:FOLDER. Default: sqlite:",
        ),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="With a million waiting and five rounds: half an hour or more.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help="Only this part; repeatable.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all figures there.")
    ] = None,
    chart: Annotated[
        str | None, typer.Option("--chart", metavar="FILE", help="Write an SVG picture of the rates there.")
    ] = None,
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write the table as Markdown there.")
    ] = None,
) -> int:
    """Measure accepting, delivering, scheduling, callbacks, memory and start on this machine.

    Your own store is not touched: files and databases are made for this, and dropped. Only ratios within
    one run mean something on a machine that does other things too.
    """
    servers = stores or ([options.store] if options.store else ["sqlite:"])
    _check(servers)
    report = await _measured(options, servers, long, only or [])
    _show(options, report)
    _write(report, json, chart, markdown)
    return ExitCode.OK


def _check(servers: Sequence[str]) -> None:
    """What it measures, and what it measures with: that is more than the command line itself needs."""
    for server in servers:
        if "://" in server and not server.startswith(("postgresql://", "postgres://")):
            raise Refused(
                f"store: {server.partition('://')[0]}:// is not supported; give a file or postgresql://"
            )
    wanted = ["pycurl", "jinja2", *(["asyncpg"] if any("://" in server for server in servers) else [])]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise Refused(f"{' and '.join(missing)} missing, which bench needs: pip install 'homing[all]'")


async def _measured(options: Options, servers: Sequence[str], long: bool, only: Sequence[str]) -> Report:
    from homing.benching import Unsound
    from homing.benching.arena import Unusable
    from homing.benching.loops import cancel_on_sigterm
    from homing.benching.plan import LONG, QUICK
    from homing.benching.running import PARTS, measure

    known = [part.name for part in PARTS]
    for name in only:
        if name not in known:
            raise Refused(f"--only: is {name!r}; allowed are {', '.join(known)}")
    cancel_on_sigterm()
    with Bar(options, "bench", 100) as bar:
        try:
            return await measure(
                servers,
                LONG if long else QUICK,
                only=only,
                tell=lambda done, total, what: bar.at(100 * done // max(1, total), what),
            )
        except Unsound as error:
            told = f"the books do not balance, so there are no figures: {error}"
            raise Refused(told, ExitCode.NO) from None
        except asyncio.CancelledError:
            raise Refused("interrupted; what was made is dropped", ExitCode.INTERRUPTED) from None
        except Unusable as error:
            raise Refused(str(error), ExitCode.STORE) from None


def _show(options: Options, report: Report) -> None:
    from homing.benching import writing

    screen = options.screen
    screen.line(writing.machine(report))
    screen.line(f"{report.form} form; medians of rounds that take turns")
    screen.line("")
    rows = [(*row[:-1], _coloured(row[-1])) for row in writing.rows(report)]
    screen.table(writing.COLUMNS, rows)
    screen.line("")
    for note in report.notes:
        screen.line(f"left out: {note}")
    screen.line(writing.verdict(report))


def _coloured(bar: str) -> str:
    return styled(bar, "red" if bar.endswith("MISSED") else "green") if bar else bar


def _write(report: Report, json: str | None, chart: str | None, markdown: str | None) -> None:
    import msgspec

    from homing.benching import chart as picture
    from homing.benching import writing

    if json:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2)
        Path(json).write_bytes(text + b"\n")
    if chart:
        Path(chart).write_text(picture.draw(report), encoding="utf-8")
    if markdown:
        Path(markdown).write_text(writing.markdown(report), encoding="utf-8")
