"""Traces one notification through the code and prints the functions it passes. `make walk` calls this script.

A `Homing` engine on a temporary SQLite file accepts an email, its worker delivers the email through a Python
function, and its relay publishes the events from the outbox to a callback. The script lists every function of
the package that runs on the way, step by step, in the order in which each one first runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import homing
from homing import Delivery, Homing
from homing.core.lifecycle.events import Event

PACKAGE = Path(homing.__file__).parent

STEPS = {
    "accept": "library.py::Homing.send",
    "claim": "engine/delivery/worker.py::Worker.run",
    "guard": "engine/delivery/worker.py::Worker._deliver",
    "send": "engine/delivery/deliverer.py::Deliverer.begin",
    "decide": "engine/delivery/deliverer.py::Deliverer._decide",
    "settle": "engine/delivery/worker.py::Worker._on_attempts_ended",
    "outbox": "engine/upkeep/outbox_relay.py::OutboxRelay.run_once",
}
"""The steps of the delivery path, in order. Each step begins when its function is called."""

_COLUMNS = 110
_PATH_COLUMNS = 44


@dataclass(frozen=True)
class Visit:
    """One call of a function of the package."""

    step: str
    path: str
    """Path of the module, relative to the folder of the package."""
    function: str
    """Qualified name of the function."""
    thread: str
    """Name of the thread that ran the function."""
    caller: str
    """Path of the module that called the function. Empty if the event loop or a new thread called it."""

    @property
    def place(self) -> str:
        """Module and function, as docs/explanation/code-map.md names them."""
        return f"{self.path}::{self.function}"


@dataclass(frozen=True)
class Totals:
    """Counts of one trace."""

    modules: int
    """Number of modules with at least one call."""
    functions: int
    """Number of different functions that were called."""
    calls: int
    crossing: int
    """Number of calls from a function of one module to a function of another module."""
    hops: int
    """Number of calls that are in another module than the call before them. This is how often a reader who
    follows the trace changes the file. Threads run side by side, so the number may vary by one or two."""


class Tracer:
    """A profile function that records the calls of the package's functions while `recording` is True.

    Lambdas and comprehensions are not recorded, nor is a coroutine that continues after an `await`.
    """

    def __init__(self) -> None:
        self.recording = False
        self.visits: list[Visit] = []
        self._step = ""
        self._starts = {place: step for step, place in STEPS.items()}
        self._paths: dict[CodeType, str] = {}
        self._seen: set[FrameType] = set()
        """The frames of all recorded calls. They are kept so that no other call gets the same frame."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.recording or event != "call" or frame in self._seen:
            return
        path, name = self._path(frame.f_code), frame.f_code.co_qualname.replace(".<locals>", "")
        if not path or frame.f_code.co_name.startswith("<"):
            return
        self._seen.add(frame)
        self._step = self._starts.get(f"{path}::{name}", self._step)
        thread = threading.current_thread().name
        self.visits.append(Visit(self._step, path, name, thread, self._caller(frame)))

    def _path(self, code: CodeType) -> str:
        """Returns the path of the module that has this code, or an empty text if it is not in the package."""
        if code not in self._paths:
            file = Path(code.co_filename)
            inside = file.is_relative_to(PACKAGE)
            self._paths[code] = file.relative_to(PACKAGE).as_posix() if inside else ""
        return self._paths[code]

    def _caller(self, frame: FrameType) -> str:
        """Returns the path of the nearest calling module of the package. Empty if there is none."""
        before = frame.f_back
        while before is not None:
            if path := self._path(before.f_code):
                return path
            before = before.f_back
        return ""


def walk() -> list[Visit]:
    """Traces one notification and returns the calls in their order.

    The notification is delivered twice, each time by a new engine. Only the second time is traced, so that
    the trace contains no imports.
    """
    tracer = Tracer()
    previous, previous_of_threads = sys.getprofile(), threading.getprofile()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "homing.toml").touch()
        threading.setprofile(tracer)  # the store starts its threads when it is opened
        sys.setprofile(tracer)
        try:
            asyncio.run(_deliver_one(folder, "untraced.db", Tracer()))
            asyncio.run(_deliver_one(folder, "traced.db", tracer))
        finally:
            sys.setprofile(previous)
            threading.setprofile(previous_of_threads)
    missing = [f"{step}: {place}" for step, place in STEPS.items() if place not in places(tracer.visits)]
    if missing:
        raise LookupError(f"these steps never began, because no such function ran: {', '.join(missing)}")
    return tracer.visits


async def _deliver_one(folder: Path, store: str, tracer: Tracer) -> None:
    """Takes one notification from `send` to the outbox and checks that its last event reports `sent`."""
    statuses: list[str] = []

    def provider(delivery: Delivery) -> None:
        """Accepts the message."""

    def on_event(event: Event) -> None:
        statuses.append(event.payload["status"])

    async with Homing(
        folder / store,
        config_file=folder / "homing.toml",
        providers={"local": provider},
        on_event=on_event,
    ) as engine:
        tracer.recording = True
        try:
            await engine.send("ada@example.org", channel="email", subject="Hi", body="Hello Ada")
            # `start_worker` would run the worker, the relay and upkeep side by side, each in its own task.
            worker = asyncio.create_task(engine.worker.run())
            await asyncio.sleep(0)  # the first claim has started
            engine.worker.drain()  # no second claim: the worker delivers what it has claimed and stops
            await worker
            await engine._relay.run_once()
        finally:
            tracer.recording = False
    assert statuses[-1:] == ["sent"], f"the notification was not sent: {statuses}"


def places(visits: Sequence[Visit]) -> list[str]:
    """Returns each function once, in the order of its first call."""
    return list(dict.fromkeys(visit.place for visit in visits))


def totals(visits: Sequence[Visit]) -> Totals:
    """Counts the modules, functions, calls and hops of a trace."""
    return Totals(
        modules=len({visit.path for visit in visits}),
        functions=len({visit.place for visit in visits}),
        calls=len(visits),
        crossing=sum(bool(visit.caller) and visit.caller != visit.path for visit in visits),
        hops=sum(before.path != after.path for before, after in pairwise(visits)),
    )


def report(visits: Sequence[Visit]) -> Iterator[str]:
    """Yields the lines of the table.

    For each step, they list the modules and functions in the order of their first call in that step.
    """
    number = 0
    for step, those in groupby(visits, key=lambda visit: visit.step):
        yield f"{step} (begins with {STEPS[step].partition('::')[2]})"
        first_calls = {visit.place: visit for visit in reversed(list(those))}
        new = sorted(first_calls.values(), key=visits.index)
        for path, run in groupby(new, key=lambda visit: visit.path):
            number += 1
            lead = f"{number:4}  {path:{_PATH_COLUMNS}}"
            names = ", ".join(dict.fromkeys(visit.function for visit in run))
            yield from textwrap.wrap(
                names,
                _COLUMNS,
                initial_indent=lead,
                subsequent_indent=" " * len(lead),
                break_long_words=False,
            )
        yield ""
    count = totals(visits)
    yield (
        f"{count.modules} modules, {count.functions} functions, {count.hops} hops between modules "
        f"({count.calls} calls, {count.crossing} of them from one module to another)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, or the raw trace with `--json`."""
    parser = argparse.ArgumentParser(description="Trace one notification from send to the outbox.")
    parser.add_argument("--json", action="store_true", help="print every call as JSON")
    options = parser.parse_args(arguments)
    visits = walk()
    if options.json:
        found: dict[str, Any] = {"calls": [asdict(one) for one in visits], "totals": asdict(totals(visits))}
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(report(visits)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
