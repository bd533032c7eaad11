"""Runs every part of the benchmark on every store and builds the report."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from homing import __version__
from homing.benching import (
    accept_rate,
    callback_rate,
    database_cost,
    delivery_rate,
    http_accept_rate,
    idle_cost,
    lateness,
)
from homing.benching.http_sink import HttpSink
from homing.benching.report import BenchReport, Figure, Machine
from homing.benching.scratch_store import connect_mongo, connect_postgres, is_mongo, is_postgres
from homing.benching.workload import BenchContext, BenchPlan


class BenchPart(Struct, frozen=True):
    """One part of the benchmark, which can also run alone."""

    name: str
    steps: Callable[[BenchPlan, bool], int]
    """Returns the number of steps for a plan. The flag is True for PostgreSQL."""
    measure: Callable[[BenchContext], AsyncIterator[Figure]]


PARTS = (
    BenchPart("accept", accept_rate.count_steps, accept_rate.measure),
    BenchPart("serve", http_accept_rate.count_steps, http_accept_rate.measure),
    BenchPart("deliver", delivery_rate.count_steps, delivery_rate.measure),
    BenchPart("schedule", lateness.count_steps, lateness.measure),
    BenchPart("callbacks", callback_rate.count_steps, callback_rate.measure),
    BenchPart("standing", idle_cost.count_steps, idle_cost.measure),
    BenchPart("costs", database_cost.count_steps, database_cost.measure),
)
"""All parts, in the order in which they run and are shown.

`schedule` also measures the memory of a backlog. `standing` measures idle CPU time and startup. `costs` runs
only in a long run on PostgreSQL, and `serve` only if uvicorn, httptools and Starlette are installed.
"""


OnProgress = Callable[[int, int, str], None]
"""Called with (steps done, total steps, name of the current step)."""


async def run_bench(
    servers: Sequence[str],
    plan: BenchPlan,
    *,
    only: Sequence[str] = (),
    tell: OnProgress = lambda done, total, what: None,
) -> BenchReport:
    """Measures all parts, or only those named in `only`, on each store.

    Raises `InvalidMeasurement` if a consistency check fails.
    """
    chosen = [part for part in PARTS if not only or part.name in only]
    total = sum(part.steps(plan, is_postgres(server)) for part in chosen for server in servers)
    began, began_at = time.monotonic(), datetime.now(UTC)
    figures: list[Figure] = []
    notes: list[str] = []
    done = 0

    def step(what: str) -> None:
        nonlocal done
        tell(done, total, what)
        done += 1

    with HttpSink() as sink:
        for part in chosen:
            for server in servers:
                stage = BenchContext(server=server, plan=plan, sink=sink, step=step, note=notes.append)
                figures += [figure async for figure in part.measure(stage)]
    tell(total, total, "done")
    return BenchReport(
        machine=await describe_machine(servers),
        form=plan.form,
        began_at=began_at.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        figures=tuple(figures),
        notes=tuple(dict.fromkeys(notes)),
    )


async def describe_machine(servers: Sequence[str]) -> Machine:
    """Describes this machine and the versions in use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gb=round(memory, 1),
        python=platform.python_version(),
        stores=tuple([await _version(server) for server in servers]),
        homing=__version__,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


async def _version(server: str) -> str:
    if is_mongo(server):
        async with connect_mongo(server) as database:
            return f"MongoDB {(await database.client.server_info())['version']}"
    if not is_postgres(server):
        return f"SQLite {sqlite3.sqlite_version}"
    async with connect_postgres(server) as connection:
        version = str(await connection.fetchval("SHOW server_version"))
        return f"PostgreSQL {version.partition(' ')[0]}"  # drops the packager's suffix
