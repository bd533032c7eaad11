"""Measures webhooks per second delivered to a local sink, compared with the bare loop on the same transport.

    python bench/deliver.py                                        (a temporary SQLite file, one process)
    python bench/deliver.py postgresql://postgres@127.0.0.1/postgres --processes 1 2
    python bench/deliver.py --notifications 20000 --rounds 5 --failing 0.1
    python bench/deliver.py --only homing --profile profile.svg    (profiles the worker process with py-spy)

The contestants alternate, and medians are reported. Each round checks that every accepted notification is
accounted for and has arrived.
"""

from __future__ import annotations

import argparse
import atexit
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from homing.benching import InvalidMeasurement
from homing.benching.delivery_rate import DeliveryRound, measure_bare_delivery, measure_delivery
from homing.benching.http_sink import HttpSink
from homing.benching.scratch_store import IN_FLIGHT
from homing.benching.worker_processes import run_async

Contestant = Callable[[], Awaitable[DeliveryRound]]


def contestants(options: argparse.Namespace, sink: HttpSink) -> dict[str, Contestant]:
    found: dict[str, Contestant] = {}
    for processes in options.processes:

        def ours(count: int = processes, failing: float = 0.0) -> Awaitable[DeliveryRound]:
            return measure_delivery(
                options.store,
                sink,
                options.notifications,
                processes=count,
                in_flight=options.in_flight,
                failing=failing,
                on_ready=profiling(options.profile),
            )

        def limit(count: int = processes) -> Awaitable[DeliveryRound]:
            return measure_bare_delivery(
                options.store,
                sink,
                options.notifications,
                processes=count,
                in_flight=options.in_flight,
                on_ready=profiling(options.profile),
            )

        if options.only in (None, "bare"):
            found[f"bare loop, {processes} process(es)"] = limit
        if options.only in (None, "homing"):
            found[f"homing, {processes} process(es)"] = ours
            if options.failing:
                name = f"homing, {processes} process(es), {options.failing:.0%} refused once"
                found[name] = lambda again=ours: again(failing=options.failing)  # type: ignore[misc]
    return found


def profiling(path: str | None) -> Callable[[list[int]], None] | None:
    """Returns a callback that profiles the first worker process with py-spy, or None without a path."""
    if path is None:
        return None
    program = str(Path(sys.executable).with_name("py-spy"))

    def start(pids: list[int]) -> None:
        command = [program, "record", "--nonblocking", "--rate", "200", "-o", path, "--pid", str(pids[0])]
        atexit.register(subprocess.Popen(command, stdout=subprocess.DEVNULL).wait)

    return start


async def measure(options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    with HttpSink() as sink:
        for number in range(options.rounds):
            for name, contestant in contestants(options, sink).items():
                one = await contestant()
                rates.setdefault(name, []).append(one.per_second)
                spent.setdefault(name, []).append(one.cpu_us or 0.0)
                accepting = f", accepted {one.accepted_per_second:,.0f}/s" if one.accepted_per_second else ""
                print(f"  round {number + 1} {name:<44} {one.per_second:>9,.0f}/s{accepting}", flush=True)
    print(f"medians of {options.rounds} rounds of {options.notifications:,}; all notifications accounted for")
    first = statistics.median(next(iter(rates.values())))
    for name, found in rates.items():
        rate = statistics.median(found)
        cpu_us = statistics.median(spent[name])
        spread = f"({min(found):,.0f}-{max(found):,.0f})"
        result = f"{rate:>9,.0f}/s  {rate / first:>5.2f}  {spread:<16} {cpu_us:>6,.0f} µs CPU each"
        print(f"  {name:<44} {result}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", nargs="?", default="sqlite:", help="postgresql://… or sqlite:FOLDER")
    parser.add_argument("--notifications", type=int, default=10_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument(
        "--failing", type=float, default=0.0, help="also measure with this share refused once"
    )
    parser.add_argument("--only", choices=["homing", "bare"])
    parser.add_argument("--profile", metavar="FILE", help="write py-spy's flame graph of a worker process")
    try:
        run_async(measure(parser.parse_args()))
    except InvalidMeasurement as error:
        print(f"invalid: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
