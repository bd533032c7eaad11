"""Compares Homing with other queues in alternating rounds: delivery, bulk and concurrent enqueueing.

    make bench-peers
    python bench/peers/run.py --python .venv-peers/bin/python --rounds 5 --json peers.json

The job is the same for all: store it, claim it, post about 300 bytes to a local sink, record that it is
done. Each peer is used as its documentation recommends, in two processes, with the concurrency that suits
it best. Delivery rates are measured at the sink, from the first arrival to the last. The run fails if a
peer loses or repeats a job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.benching import InvalidMeasurement, accept_rate
from homing.benching.delivery_rate import check_sink, measure_delivery
from homing.benching.http_sink import HttpSink
from homing.benching.report import BenchReport, Figure, draw_chart, format_markdown, format_value
from homing.benching.run import describe_machine
from homing.benching.scratch_store import connect_postgres, open_scratch_store, temporary_database
from homing.benching.worker_processes import run_async
from homing.benching.workload import LONG

DELIVER, BULK, SINGLES = "deliver, two processes", "enqueue in bulk", "enqueue by 64 callers"
TEMPLATE = "enqueue in bulk, a template each"
PARTS = (DELIVER, BULK, TEMPLATE, SINGLES)
PROCESSES = 2
BARS = {
    (DELIVER, "PgQueuer"): 2.0,
    (DELIVER, "Procrastinate"): 10.0,
    (BULK, "PgQueuer"): 1.0,
    (TEMPLATE, "PgQueuer"): 0.5,
    (SINGLES, "PgQueuer"): 3.0,
}
"""Targets for Homing by (part, peer), as multiples of the peer's rate."""


class Peer(Struct, frozen=True, kw_only=True):
    """A peer: its script, and its numbers of jobs, chosen so that a round takes a few seconds."""

    name: str
    script: str
    deliveries: int
    bulk: int
    singles: int
    postgres: bool = True


PEERS = (
    Peer(name="PgQueuer", script="pgqueuer_peer", deliveries=15_000, bulk=50_000, singles=6_000),
    Peer(name="Celery", script="celery_peer", deliveries=8_000, bulk=8_000, singles=6_000, postgres=False),
    Peer(name="Dramatiq", script="dramatiq_peer", deliveries=8_000, bulk=0, singles=6_000, postgres=False),
    Peer(name="Procrastinate", script="procrastinate_peer", deliveries=3_000, bulk=10_000, singles=3_000),
)
HOMING = Peer(name="Homing", script="", deliveries=20_000, bulk=50_000, singles=20_000)

Rates = dict[tuple[str, str], list[float]]
"""Maps (part, peer) to jobs per second of each round."""


class Scripts:
    """Runs the script of one peer in the peers' environment."""

    def __init__(self, python: str, peer: Peer, sink: HttpSink, postgres: str) -> None:
        self._command = [python, str(Path(__file__).with_name(f"{peer.script}.py"))]
        self._env = {
            **os.environ,
            "BENCH_SINK": sink.url,
            "BENCH_POSTGRES": postgres,
            "BENCH_PROCESSES": str(PROCESSES),
        }

    def call(self, *words: str) -> Any:
        done = subprocess.run(
            [*self._command, *words], env=self._env, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise InvalidMeasurement(f"{' '.join(words)} of {self._command[1]} failed: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def working(self) -> Iterator[None]:
        """Runs the peer's workers, and kills them with all their children afterwards."""
        log = subprocess.DEVNULL
        workers = subprocess.Popen(
            [*self._command, "worker"], env=self._env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(workers.pid, signal.SIGKILL)
            workers.wait()


async def peer_round(python: str, server: str, peer: Peer, sink: HttpSink, rates: Rates) -> None:
    """Runs one round of a peer: delivery, bulk and concurrent enqueueing, each with an empty queue."""
    name = f"homing_bench_{os.getpid()}_peer"
    async with temporary_database(server, name) as url:
        scripts = Scripts(python, peer, sink, url)
        scripts.call("prepare")
        scripts.call("bulk", str(peer.deliveries))
        if peer.postgres:
            async with connect_postgres(url) as connection:
                await connection.execute("VACUUM ANALYZE")
                await connection.execute("CHECKPOINT")
        sink.reset()
        with scripts.working():
            await _until_done(scripts, sink, peer)
        note(rates, DELIVER, peer.name, _arrival_rate(sink))
    for what, count in ((BULK, peer.bulk), (SINGLES, peer.singles)):
        if not count:
            continue
        async with temporary_database(server, name) as url:
            scripts = Scripts(python, peer, sink, url)
            scripts.call("prepare")
            seconds = scripts.call("bulk" if what is BULK else "singles", str(count))
            if (left := scripts.call("left")) != count:
                raise InvalidMeasurement(f"{peer.name} was given {count:,} jobs, but has {left:,}")
            note(rates, what, peer.name, count / seconds)
            if not peer.postgres:  # empties the broker
                scripts.call("prepare")


async def _until_done(scripts: Scripts, sink: HttpSink, peer: Peer) -> None:
    until = time.monotonic() + 300
    while sink.report().taken < peer.deliveries:
        if time.monotonic() > until:
            raise InvalidMeasurement(
                f"{peer.name} delivered only {sink.report().taken:,} of {peer.deliveries:,}"
            )
        await asyncio.sleep(0.25)
    while scripts.call("left"):
        if time.monotonic() > until:
            raise InvalidMeasurement(
                f"{peer.name} delivered all jobs, but reports {scripts.call('left'):,} as left"
            )
    check_sink(sink, peer.deliveries)


def _arrival_rate(sink: HttpSink) -> float:
    seen = sink.report()
    return (seen.taken - 1) / (seen.last_at - seen.first_at)


async def homing_round(server: str, own: Peer, sink: HttpSink, rates: Rates) -> None:
    """Runs one round of Homing, with the usual consistency checks."""
    await measure_delivery(server, sink, own.deliveries, processes=PROCESSES)
    note(rates, DELIVER, own.name, _arrival_rate(sink))
    plan = replace(LONG, many=own.bulk, concurrent=own.singles)
    for what, way in (
        (BULK, accept_rate.SEND_MANY),
        (TEMPLATE, accept_rate.SEND_MANY_TEMPLATE),
        (SINGLES, accept_rate.MANY_CALLERS),
    ):
        async with open_scratch_store(server) as place:
            found = await accept_rate.measure_accept_round(place, accept_rate.ACCEPT_METHODS[way], plan)
        note(rates, what, own.name, found.per_second)


def note(rates: Rates, what: str, who: str, rate: float) -> None:
    rates.setdefault((what, who), []).append(rate)
    print(f"  {what:<34} {who:<14} {rate:>10,.0f}/s", flush=True)


def figures(rates: Rates) -> list[Figure]:
    """Returns the rates of Homing and its peers, then Homing's rate as a multiple of each peer's."""
    found = [
        Figure(part=what, name=who, store=_kind(who), unit="/s", rounds=tuple(rounds))
        for (what, who), rounds in sorted(rates.items(), key=lambda item: PARTS.index(item[0][0]))
    ]
    for (what, who), theirs in rates.items():
        for mine in (what, TEMPLATE) if what == BULK else (what,):
            ours = rates.get((mine, HOMING.name))
            if ours and who != HOMING.name:
                pairs = zip(ours, theirs, strict=True)
                found.append(
                    Figure(
                        part=mine,
                        name=f"Homing / {who}",
                        store=HOMING.name,
                        unit="",
                        rounds=tuple(one / other for one, other in pairs),
                        at_least=BARS.get((mine, who)),
                    )
                )
    return found


def _kind(who: str) -> str:
    return HOMING.name if who == HOMING.name else "peer"


def show(report: BenchReport) -> None:
    print(f"\nmedians of alternating rounds ({report.seconds:,.0f} s)")
    for part in dict.fromkeys(figure.part for figure in report.figures):
        print(f"\n{part}")
        for result in report.results:
            figure = result.figure
            if figure.part == part:
                times = "" if figure.unit else " times"
                spread = f"({format_value(min(figure.rounds), '')}-{format_value(max(figure.rounds), '')})"
                bar = (
                    f"target {figure.at_least:g}: {'met' if result.met else 'MISSED'}"
                    if figure.at_least
                    else ""
                )
                value = format_value(statistics.median(figure.rounds), figure.unit)
                print(f"  {figure.name:<24} {value + times:>14}  {spread:<18} {bar}".rstrip())


async def measure(options: argparse.Namespace) -> BenchReport:
    began, began_at = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rates: Rates = {}
    chosen = [peer for peer in PEERS if not options.only or peer.name.lower() in options.only]
    with HttpSink() as sink:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            await homing_round(options.server, scaled(HOMING, options.scale), sink, rates)
            for peer in chosen:
                await peer_round(options.python, options.server, scaled(peer, options.scale), sink, rates)
    return BenchReport(
        machine=await describe_machine([options.server]),
        form="peers",
        began_at=began_at,
        seconds=time.monotonic() - began,
        figures=tuple(figures(rates)),
    )


def scaled(peer: Peer, by: float) -> Peer:
    counts = {name: round(by * getattr(peer, name)) for name in ("deliveries", "bulk", "singles")}
    return replace(peer, **counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=".venv-peers/bin/python", help="Python of the peers' environment")
    parser.add_argument("--server", default="postgresql://postgres@127.0.0.1:5432/postgres")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the numbers of jobs")
    parser.add_argument("--only", nargs="+", help="only these peers, in lowercase")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--chart", type=Path, help="file for an SVG chart")
    parser.add_argument("--markdown", type=Path, help="file for the Markdown table")
    options = parser.parse_args()
    try:
        report = run_async(measure(options))
    except InvalidMeasurement as error:
        print(f"invalid: {error}", file=sys.stderr)
        return 1
    show(report)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if options.chart:
        options.chart.write_text(draw_chart(report), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(format_markdown(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
