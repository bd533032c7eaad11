"""`homing bench`: measures Homing on this machine, in temporary stores."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import Options, command
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import styled
from homing.cli.root import app

if TYPE_CHECKING:
    from homing.benching.report import BenchReport


_POSTGRES = ("postgresql://", "postgres://")
_MONGO = ("mongodb://", "mongodb+srv://")


@command(app, "bench")
async def bench(
    options: Options,
    stores: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STORE]...",
            help="sqlite:FOLDER, or postgresql://… or mongodb://… where you may create databases; "
            "default: sqlite:",
        ),
    ] = None,
    long: Annotated[
        bool,
        typer.Option("--long", help="Five rounds with a backlog of a million; takes 30 minutes or more."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help="Measure only this part; repeatable.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all figures to FILE.")
    ] = None,
    chart: Annotated[
        str | None, typer.Option("--chart", metavar="FILE", help="Write an SVG chart of the rates to FILE.")
    ] = None,
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="Write the table to FILE as Markdown.")
    ] = None,
) -> int:
    """Measure the performance of Homing on this machine.

    Covers accepting, delivery, scheduling, callbacks, memory, idle cost and startup. Your own store is
    not touched: the benchmark creates temporary files and databases and drops them. On a busy machine
    only the ratios within one run are meaningful.
    """
    servers = stores or ([options.store] if options.store else ["sqlite:"])
    _check(servers)
    report = await _measured(options, servers, long, only or [])
    _show(options, report)
    _write(report, json, chart, markdown)
    return ExitCode.OK


def _check(servers: Sequence[str]) -> None:
    """Raises CliError if a store is not supported or a package that the benchmark needs is missing."""
    for server in servers:
        if "://" in server and not server.startswith((*_POSTGRES, *_MONGO)):
            raise CliError(
                f"store: {server.partition('://')[0]}:// is not supported; use a file, postgresql:// or "
                "mongodb://"
            )
    drivers = {"asyncpg": _POSTGRES, "pymongo": _MONGO}
    needed = [name for name, schemes in drivers.items() if any(one.startswith(schemes) for one in servers)]
    wanted = ["pycurl", "jinja2", *needed]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise CliError(f"bench needs {' and '.join(missing)}; install with pip install 'homing[all]'")


async def _measured(options: Options, servers: Sequence[str], long: bool, only: Sequence[str]) -> BenchReport:
    from homing.benching import InvalidMeasurement
    from homing.benching.run import PARTS, run_bench
    from homing.benching.scratch_store import ServerUnusable
    from homing.benching.worker_processes import cancel_on_sigterm
    from homing.benching.workload import LONG, QUICK

    known = [part.name for part in PARTS]
    for name in only:
        if name not in known:
            raise CliError(f"--only: is {name!r}; it must be one of {', '.join(known)}")
    cancel_on_sigterm()
    with ProgressBar(options, "bench", 100) as bar:
        try:
            return await run_bench(
                servers,
                LONG if long else QUICK,
                only=only,
                tell=lambda done, total, what: bar.at(100 * done // max(1, total), what),
            )
        except InvalidMeasurement as error:
            message = f"a consistency check failed, so there are no figures: {error}"
            raise CliError(message, ExitCode.NO) from None
        except asyncio.CancelledError:
            raise CliError(
                "interrupted; temporary files and databases are removed", ExitCode.INTERRUPTED
            ) from None
        except ServerUnusable as error:
            raise CliError(str(error), ExitCode.STORE) from None


def _show(options: Options, report: BenchReport) -> None:
    from homing.benching.report import COLUMNS, format_machine, format_verdict, table_rows

    screen = options.screen
    screen.line(format_machine(report))
    screen.line(f"{report.form} run; medians of alternating rounds")
    screen.line("")
    rows = [(*row[:-1], _coloured(row[-1])) for row in table_rows(report)]
    screen.table(COLUMNS, rows)
    screen.line("")
    for note in report.notes:
        screen.line(f"skipped: {note}")
    screen.line(format_verdict(report))


def _coloured(bar: str) -> str:
    return styled(bar, "red" if bar.endswith("MISSED") else "green") if bar else bar


def _write(report: BenchReport, json: str | None, chart: str | None, markdown: str | None) -> None:
    import msgspec

    from homing.benching.report import (
        draw_chart,
        format_markdown,
    )

    if json:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2)
        Path(json).write_bytes(text + b"\n")
    if chart:
        Path(chart).write_text(draw_chart(report), encoding="utf-8")
    if markdown:
        Path(markdown).write_text(format_markdown(report), encoding="utf-8")
