"""Compares the processor time that accepting and delivering take with that of another checkout.

    git worktree add ../homing-old COMMIT && make -C ../homing-old install
    python bench/compare_checkout.py --old ../homing-old sqlite:
    python bench/with_servers.py postgres -- python bench/compare_checkout.py --old ../homing-old {postgres}

Each checkout needs its own environment in `.venv`. A round starts one process per checkout, and they take
turns. A turn measures one case in a new store. The figure is the processor time per notification
of the process and of its workers, and of the PostgreSQL server. The server must run on this machine and do
nothing else, because its processes are read in /proc. A ratio is the time of the old checkout divided by that
of this one, each summed over the turns of a round. The table shows the median of the rounds and their spread.
A ratio above 1 means that this checkout takes less time.

Every turn checks that the store has each notification, and that each delivery arrived exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from homing.benching.accept_rate import ACCEPT_METHODS, measure_accept_round
from homing.benching.delivery_rate import SETTLED_WITHIN_S, check_sink
from homing.benching.http_sink import HttpSink
from homing.benching.scratch_store import open_scratch_store
from homing.benching.worker_processes import WorkerProcesses, run_async, run_homing_worker
from homing.benching.workload import QUICK, BenchPlan, accept_all, build_requests, check_store
from homing.library import Homing
from server_cpu import ServerCpu

BAR = 0.95

DELIVER = "deliver"

CASES = (*ACCEPT_METHODS, DELIVER)

Cost = tuple[float, float]
"""Microseconds of processor time per notification: (of Homing's processes, of the database server)."""


async def measure_accept(store: str, server: ServerCpu, case: str, plan: BenchPlan) -> Cost:
    """Accepts notifications in a new store and returns their cost."""
    server_us = 0.0

    async def counted(homing: Homing, plan: BenchPlan) -> int:
        nonlocal server_us
        before = server.read_s()
        count = await ACCEPT_METHODS[case](homing, plan)
        server_us = 1e6 * (server.read_s() - before) / count
        return count

    async with open_scratch_store(store) as place:
        found = await measure_accept_round(place, counted, plan)
    return found.cpu_us, server_us


async def measure_delivery(store: str, server: ServerCpu, plan: BenchPlan, sink: HttpSink) -> Cost:
    """Delivers notifications from a new store by one worker process and returns their cost."""
    count = plan.deliveries
    sink.reset()
    async with open_scratch_store(store) as place:
        settings = place.settings()
        async with Homing(loaded_settings=settings) as homing:
            await accept_all(homing, build_requests(count, sink.url))
            await place.rested()
            with WorkerProcesses(run_homing_worker, settings, 1) as workers:
                own_s, server_s = workers.cpu_s, server.read_s()
                workers.begin()
                await workers.finish(count, SETTLED_WITHIN_S)
                own_s, server_s = _since(workers.cpu_s, own_s), server.read_s() - server_s
            await check_store(homing, place, delivered=count)
            check_sink(sink, count)
    return 1e6 * own_s / count, 1e6 * server_s / count


def _since(now_s: float | None, before_s: float | None) -> float:
    if now_s is None or before_s is None:
        raise SystemExit("this system has no /proc")
    return now_s - before_s


# The process of one checkout -----------------------------------------------------------------------


async def take_turns(store: str, plan: BenchPlan) -> None:
    """Measures each case whose name arrives on standard input, and prints its cost."""
    server = await ServerCpu.of(store)
    with HttpSink() as sink:
        while case := (await asyncio.to_thread(sys.stdin.readline)).strip():
            gc.collect()
            if case == DELIVER:
                found = await measure_delivery(store, server, plan, sink)
            else:
                found = await measure_accept(store, server, case, plan)
            print(json.dumps(found), flush=True)


class Checkout:
    """A running process of one checkout."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        command = [str(folder / ".venv/bin/python"), __file__, *options, "--take-turns"]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def measure(self, case: str) -> Cost:
        """Returns the cost of one turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the measurement of {case!r} has failed")
        own_us, server_us = json.loads(line)
        return own_us, server_us


# The comparison ------------------------------------------------------------------------------------


def run_round(
    folders: Sequence[Path], options: Sequence[str], cases: Sequence[str], turns: int
) -> dict[str, tuple[Cost, Cost]]:
    """Returns the mean costs of each case with the old checkout and with the new one."""
    costs: dict[str, tuple[list[Cost], list[Cost]]] = {case: ([], []) for case in cases}
    with ExitStack() as stack:
        checkouts = [stack.enter_context(Checkout(folder, options)) for folder in folders]
        for turn in range(turns):
            for case in cases:
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    costs[case][which].append(checkouts[which].measure(case))
    return {case: (_mean(old), _mean(new)) for case, (old, new) in costs.items()}


def _mean(costs: Sequence[Cost]) -> Cost:
    return statistics.fmean(own for own, _ in costs), statistics.fmean(server for _, server in costs)


def print_table(rounds: Sequence[Mapping[str, tuple[Cost, Cost]]], bar: float) -> bool:
    """Prints the costs and ratios of each case. Returns True if no median is below `bar`."""
    print(f"\n{'case':<28}{'old':>17}{'new':>17}{'ratio':>8}   spread")
    good = True
    for case in rounds[0]:
        ratios = sorted(sum(one[case][0]) / sum(one[case][1]) for one in rounds)
        columns = [
            f"{statistics.median(one[case][which][0] for one in rounds):.1f}"
            f" + {statistics.median(one[case][which][1] for one in rounds):.1f}"
            for which in (0, 1)
        ]
        ratio = statistics.median(ratios)
        good = good and ratio >= bar
        print(
            f"{case:<28}{columns[0]:>17}{columns[1]:>17}{ratio:>8.3f}"
            f"   {ratios[0]:.2f}-{ratios[-1]:.2f}{'' if ratio >= bar else '   MISSED'}"
        )
    print("\nMicroseconds per notification: Homing's processes + the database server.")
    return good


def build_plan(given: argparse.Namespace) -> BenchPlan:
    sizes: dict[str, Any] = {name: getattr(QUICK, name) for name in QUICK.__struct_fields__}
    sizes.update(singles=300 * given.size, concurrent=3_000 * given.size)
    sizes.update(many=8_000 * given.size, deliveries=5_000 * given.size)
    return BenchPlan(**sizes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="sqlite:, sqlite:FOLDER or the URL of a PostgreSQL server")
    parser.add_argument("--old", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with new processes")
    parser.add_argument("--turns", type=int, default=2, help="turns of each checkout and case in a round")
    parser.add_argument("--size", type=int, default=1, help="multiplies the notifications of a turn")
    parser.add_argument("--only", action="append", choices=CASES, help="a case; may be repeated")
    parser.add_argument("--bar", type=float, default=BAR, help="exit code 1 if a median ratio is below this")
    parser.add_argument("--take-turns", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.take_turns:
        run_async(take_turns(given.store, build_plan(given)))
        return
    if given.old is None:
        parser.error("--old is missing")
    folders = (given.old.absolute(), Path(__file__).absolute().parents[1])
    rounds = []
    for number in range(given.rounds):
        options = [given.store, "--size", str(given.size)]
        rounds.append(run_round(folders, options, given.only or CASES, given.turns))
        shown = ", ".join(f"{sum(old) / sum(new):.2f}" for old, new in rounds[-1].values())
        print(f"round {number + 1}: {shown}", flush=True)
    raise SystemExit(0 if print_table(rounds, given.bar) else 1)


if __name__ == "__main__":
    main()
