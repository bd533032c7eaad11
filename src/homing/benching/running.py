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
from homing.benching import accepting, costing, delivering, hearing, serving, standing, waiting
from homing.benching.arena import connected, is_postgres
from homing.benching.figures import Figure, Machine, Report
from homing.benching.plan import Plan, Stage
from homing.benching.sink import Sink


class Part(Struct, frozen=True):
    """One part of the benchmark, which can also run alone."""

    name: str
    steps: Callable[[Plan, bool], int]
    """Returns the number of steps for a plan. The flag is True for PostgreSQL."""
    measure: Callable[[Stage], AsyncIterator[Figure]]


PARTS = (
    Part("accept", accepting.steps, accepting.measure),
    Part("serve", serving.steps, serving.measure),
    Part("deliver", delivering.steps, delivering.measure),
    Part("schedule", waiting.steps, waiting.measure),
    Part("callbacks", hearing.steps, hearing.measure),
    Part("standing", standing.steps, standing.measure),
    Part("costs", costing.steps, costing.measure),
)
"""All parts, in the order in which they run and are shown.

`schedule` also measures the memory of a backlog. `standing` measures idle CPU time and startup. `costs` runs
only in a long run on PostgreSQL.
"""

Tell = Callable[[int, int, str], None]
"""Called with (steps done, total steps, name of the current step)."""


async def measure(
    servers: Sequence[str],
    plan: Plan,
    *,
    only: Sequence[str] = (),
    tell: Tell = lambda done, total, what: None,
) -> Report:
    """Measures all parts, or `only` some, on each store. Raises `Unsound` if a consistency check fails."""
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

    with Sink() as sink:
        for part in chosen:
            for server in servers:
                stage = Stage(server=server, plan=plan, sink=sink, step=step, note=notes.append)
                figures += [figure async for figure in part.measure(stage)]
    tell(total, total, "done")
    return Report(
        machine=await machine(servers),
        form=plan.form,
        began_at=began_at.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        figures=tuple(figures),
        notes=tuple(dict.fromkeys(notes)),
    )


async def machine(servers: Sequence[str]) -> Machine:
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
    if not is_postgres(server):
        return f"SQLite {sqlite3.sqlite_version}"
    async with connected(server) as connection:
        version = str(await connection.fetchval("SHOW server_version"))
        return f"PostgreSQL {version.partition(' ')[0]}"  # drops the packager's suffix
